use super::model::{TIMES, answered, attributes, change};
use super::*;

/// A cache with its own counter of events and its own clock.
struct Case {
    cache: AttributeCache,
    event: u64,
    now: Nanos,
}

impl Case {
    fn new(first: &Attributes) -> Self {
        let mut case = Case {
            cache: AttributeCache::default(),
            event: 0,
            now: 0,
        };
        let sent = case.send();
        assert!(!case.hear(sent, first).foreign);
        case
    }

    fn send(&mut self) -> u64 {
        self.event
    }

    fn span(&mut self, sent: u64) -> Span {
        self.event += 1;
        let arrived = self.event;
        Span { sent, arrived }
    }

    fn hear(&mut self, sent: u64, new: &Attributes) -> Seen {
        let span = self.span(sent);
        self.cache.apply(span, new, self.now, TIMES)
    }

    fn name(&mut self) {
        self.event += 1;
        self.cache.named_otherwise(self.event);
    }

    fn begin(&mut self) -> u64 {
        self.event += 1;
        self.cache.begin_change(self.event);
        self.event
    }

    fn end(&mut self, sent: u64, before: Option<&Attributes>, after: &Attributes) -> Seen {
        self.end_at(sent, before, after, 0)
    }

    fn end_at(
        &mut self,
        sent: u64,
        before: Option<&Attributes>,
        after: &Attributes,
        floor: u64,
    ) -> Seen {
        let data = change(before, after);
        let span = self.span(sent);
        let change = Answered {
            floor,
            ..answered(Kind::Write, &data)
        };
        self.cache.end_change(span, &change, self.now, TIMES)
    }

    /// As [`Case::end`], for a change of a directory.
    fn end_in(&mut self, sent: u64, before: &Attributes, after: &Attributes) -> Seen {
        let (span, data) = (self.span(sent), change(Some(before), after));
        let change = answered(Kind::Contents, &data);
        self.cache.end_change(span, &change, self.now, TIMES)
    }

    fn known(&self) -> Attributes {
        *self.cache.attributes().unwrap()
    }

    fn is_fresh(&self) -> bool {
        self.cache.fresh(self.now).is_some()
    }
}

#[test]
fn times_adapt_and_changes_reset_them() {
    let a = attributes(1, 1);
    let mut case = Case::new(&a);
    assert_eq!(case.cache.fresh_for(0), TIMES.min);
    for expected in [20, 40, 80, 80] {
        case.now += case.cache.fresh_for(case.now);
        let sent = case.send();
        assert!(!case.hear(sent, &a).foreign);
        assert_eq!(case.cache.fresh_for(case.now), expected);
    }
    let sent = case.send();
    assert!(case.hear(sent, &attributes(1, 2)).foreign);
    assert_eq!(case.cache.fresh_for(case.now), TIMES.min);
}

#[test]
fn a_reply_to_a_later_call_is_newer_whatever_its_clock_says() {
    let mut case = Case::new(&attributes(5, 9));
    let sent = case.begin();
    assert!(
        !case
            .end(sent, Some(&attributes(5, 9)), &attributes(8, 3))
            .foreign
    );
    assert_eq!((case.known().size, case.is_fresh()), (8, true));
    let sent = case.send();
    assert!(case.hear(sent, &attributes(2, 1)).foreign);
    assert_eq!((case.known().size, case.is_fresh()), (2, true));
}

#[test]
fn of_replies_that_overlapped_and_differ_neither_is_believed() {
    let old = attributes(5, 1);
    let mut case = Case::new(&old);
    let (early, late) = (case.send(), case.send());
    let mut new = old;
    new.mode ^= 0o111;
    assert!(!case.hear(late, &new).foreign);
    assert!(case.is_fresh());
    let seen = case.hear(early, &old);
    assert!(!seen.foreign && seen.ambiguous);
    assert!(!case.is_fresh());
    // Equal attributes need no order; the access time and the space used may differ.
    let (early, late) = (case.send(), case.send());
    assert!(!case.hear(late, &old).foreign);
    let (atime, used) = (attributes(5, 7).atime, old.used + 1);
    let alike = Attributes { atime, used, ..old };
    assert!(!case.hear(early, &alike).foreign);
    assert!(case.is_fresh());
}

#[test]
fn own_changes_at_the_same_time_are_own_in_any_order() {
    let states: Vec<_> = (1..=4).map(|n| attributes(n, n as u32)).collect();
    for (order, given) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]]
        .into_iter()
        .flat_map(|order| [(order, true), (order, false)])
    {
        let mut case = Case::new(&states[0]);
        let sent: Vec<_> = (0..3).map(|_| case.begin()).collect();
        for i in order {
            let (before, after) = (given.then_some(&states[i]), &states[i + 1]);
            let floor = if given { 0 } else { after.size };
            let seen = case.end_at(sent[i], before, after, floor);
            assert!(!seen.foreign, "{order:?}");
        }
        assert!(given || (case.known(), case.is_fresh()) == (states[3], true));
        let sent = case.send();
        assert!(!case.hear(sent, &states[3]).foreign);
        assert_eq!((case.known(), case.is_fresh()), (states[3], true));
    }
}

#[test]
fn a_gap_between_own_changes_of_a_directory_is_somebody_else_s() {
    let states: Vec<_> = (1..=4).map(|n| attributes(n, n as u32)).collect();
    for order in [[0, 1], [1, 0]] {
        let mut case = Case::new(&states[0]);
        let sent = [case.begin(), case.begin()];
        for at in order {
            let (before, after) = [(0, 1), (2, 3)][at];
            let seen = case.end_in(sent[at], &states[before], &states[after]);
            assert!(!seen.foreign);
        }
        assert!(!case.is_fresh());
        let sent = case.send();
        assert!(case.hear(sent, &states[3]).foreign);
    }
    // Somebody else's change before the first own one.
    let mut case = Case::new(&states[0]);
    let sent = case.begin();
    assert!(case.end(sent, Some(&states[1]), &states[2]).foreign);
}

#[test]
fn within_one_tick_own_changes_stay_own_and_an_idle_one_elsewhere_is_a_gap() {
    let (a, b) = (attributes(10, 1), attributes(20, 1));
    let mut case = Case::new(&a);
    let sent = [case.begin(), case.begin(), case.begin()];
    assert!(!case.end(sent[2], Some(&b), &b).foreign);
    assert!(!case.end(sent[0], Some(&a), &a).foreign);
    assert!(!case.end(sent[1], Some(&a), &b).foreign);
    assert_eq!((case.known(), case.is_fresh()), (b, true));
    let mut case = Case::new(&a);
    let sent = case.begin();
    assert!(case.end(sent, Some(&b), &b).foreign);
}

/// As of a server whose pre-operation attributes are not taken in one step with the change.
#[test]
fn several_writes_are_own_if_one_of_them_began_with_what_was_known() {
    let states: Vec<_> = (1..=4).map(|n| attributes(n, n as u32)).collect();
    for (before, foreign) in [
        ([0, 0], false),
        ([0, 2], false),
        ([1, 0], false),
        ([1, 2], true),
    ] {
        let mut case = Case::new(&states[0]);
        let sent = [case.begin(), case.begin()];
        assert!(
            !case
                .end(sent[0], Some(&states[before[0]]), &states[2])
                .foreign
        );
        let seen = case.end(sent[1], Some(&states[before[1]]), &states[3]);
        assert_eq!(seen.foreign, foreign, "{before:?}");
        assert_eq!(case.known(), states[3]);
    }
}

#[test]
fn without_before_a_write_is_own() {
    let (a, b, c) = (attributes(1, 1), attributes(2, 2), attributes(3, 3));
    let mut case = Case::new(&a);
    let sent = case.begin();
    assert!(!case.end_at(sent, None, &b, b.size).foreign);
    assert_eq!((case.known(), case.is_fresh()), (b, true));
    // Neither an open nor time ends that.
    case.now += TIMES.max;
    let sent = case.send();
    assert!(!case.hear(sent, &b).foreign);
    assert!(case.cache.verified_since(sent));
    // What somebody else does afterwards is seen.
    let sent = case.send();
    assert!(case.hear(sent, &c).foreign);
}

#[test]
fn without_before_a_size_that_own_writes_do_not_make_is_somebody_elses() {
    for (size, floor) in [(9, 7), (7, 3), (3, 2)] {
        let mut case = Case::new(&attributes(5, 1));
        let sent = case.begin();
        let seen = case.end_at(sent, None, &attributes(size, 2), floor);
        assert!(seen.foreign, "{size} after a WRITE up to {floor}");
        assert_eq!(case.known().size, size);
    }
    // Of several, the next reply decides.
    let mut case = Case::new(&attributes(5, 1));
    let sent = [case.begin(), case.begin()];
    for (sent, floor) in sent.into_iter().zip([6, 7]) {
        assert!(!case.end_at(sent, None, &attributes(9, 2), floor).foreign);
    }
    assert!(!case.is_fresh());
    let sent = case.send();
    assert!(case.hear(sent, &attributes(9, 2)).foreign);
}

/// As a directory's, of a server that gives no pre-operation attributes at all.
#[test]
fn without_before_other_changes_are_not_known_to_be_own() {
    let (a, b) = (attributes(1, 1), attributes(2, 2));
    let mut case = Case::new(&a);
    let sent = case.begin();
    let (span, data) = (case.span(sent), change(None, &b));
    let change = answered(Kind::Contents, &data);
    assert!(case.cache.end_change(span, &change, 0, TIMES).foreign);
    // The reply is newer, though the server's clock has stepped back.
    let sent = case.begin();
    let (span, data) = (case.span(sent), super::model::change(None, &a));
    let change = answered(Kind::Contents, &data);
    assert!(case.cache.end_change(span, &change, 0, TIMES).foreign);
    assert_eq!(case.known(), a);
}

#[test]
fn an_own_rename_is_no_foreign_change() {
    let a = attributes(1, 1);
    let mut case = Case::new(&a);
    let ctime = |tick| Attributes {
        ctime: attributes(1, tick).ctime,
        ..a
    };
    case.name();
    let sent = case.send();
    assert!(!case.hear(sent, &ctime(2)).foreign);
    // Only one change of the ctime is accepted.
    let sent = case.send();
    assert!(case.hear(sent, &ctime(3)).foreign);
    // A rename between own changes.
    let sent = [case.begin(), case.begin()];
    let b = attributes(2, 4);
    assert!(!case.end(sent[0], Some(&ctime(3)), &b).foreign);
    case.name();
    let renamed = Attributes {
        ctime: attributes(1, 5).ctime,
        ..b
    };
    assert!(!case.end(sent[1], Some(&renamed), &attributes(3, 6)).foreign);
}

#[test]
fn a_reply_to_a_call_from_before_a_name_was_changed_is_not_believed_for_long() {
    let a = attributes(1, 1);
    let b = Attributes { nlink: 2, ..a };
    let mut case = Case::new(&b);
    let sent = case.begin();
    case.name();
    assert!(!case.end(sent, Some(&b), &b).foreign);
    assert!(!case.is_fresh());
    let sent = case.send();
    case.name();
    assert!(!case.hear(sent, &b).foreign);
    assert!(!case.is_fresh());
    let sent = case.send();
    case.name();
    let change = case.begin();
    assert!(!case.hear(sent, &b).foreign);
    assert!(!case.is_fresh(), "nor if a change began since");
    let span = case.span(change);
    assert!(!case.cache.fail_change(span, true).foreign);
    let sent = case.send();
    assert!(!case.hear(sent, &a).foreign);
    assert_eq!((case.known().nlink, case.is_fresh()), (a.nlink, true));
}

#[test]
fn an_unclear_size_is_not_shorter_than_what_the_server_took() {
    let a = attributes(1, 1);
    let mut case = Case::new(&a);
    let sent = [case.begin(), case.begin()];
    let mut end = |n: usize, size: u64| {
        let after = attributes(size, 2);
        case.end_at(sent[n], None, &after, size)
    };
    assert!(!end(1, 200).foreign);
    // The server ran this WRITE first, and its reply arrives last.
    assert!(!end(0, 100).foreign);
    assert_eq!(case.known().size, 200);
}

/// The attributes of a directory after another name was created in it.
fn with_ctime(of: &Attributes, seconds: u32) -> Attributes {
    let mut new = *of;
    new.ctime.seconds = seconds;
    new.mtime.seconds = seconds;
    new
}

#[test]
fn own_changes_account_for_a_ctime_only_if_they_leave_no_gap() {
    let states: Vec<_> = (1..=5).map(|n| with_ctime(&attributes(5, 1), n)).collect();
    let mut case = Case::new(&states[0]);
    let sent = case.begin();
    let seen = case.end_in(sent, &states[0], &states[1]);
    assert!(seen.changed && seen.own_ctime, "{seen:?}");
    // Two at the same time, answered in reverse order: a gap until the first is answered.
    let (first, second) = (case.begin(), case.begin());
    let seen = case.end_in(second, &states[2], &states[3]);
    assert!(seen.changed && !seen.own_ctime, "{seen:?}");
    let seen = case.end_in(first, &states[1], &states[2]);
    assert!(!seen.changed && !seen.foreign, "{seen:?}");
    // Somebody else's change in between.
    let sent = case.begin();
    let seen = case.end_in(sent, &with_ctime(&states[0], 9), &states[4]);
    assert!(seen.foreign && !seen.own_ctime, "{seen:?}");
}

#[test]
fn a_mode_that_an_own_change_set_is_more_than_a_ctime() {
    let old = attributes(5, 1);
    let mut new = with_ctime(&old, 7);
    new.mode ^= 0o070;
    let mut case = Case::new(&old);
    let sent = case.begin();
    let seen = case.end(sent, Some(&old), &new);
    assert!(seen.changed && !seen.own_ctime, "{seen:?}");
}

#[test]
fn a_ctime_that_a_call_on_the_name_changed_is_not_accounted_for() {
    let old = attributes(5, 1);
    let mut renamed = old;
    renamed.ctime.seconds += 3;
    let mut case = Case::new(&old);
    case.name();
    let sent = case.begin();
    let seen = case.end(sent, Some(&renamed), &with_ctime(&old, 70));
    assert!(!seen.foreign && !seen.own_ctime, "{seen:?}");
    case.name();
    let sent = case.begin();
    let before = with_ctime(&old, 70);
    let seen = case.end_in(sent, &before, &with_ctime(&old, 71));
    assert!(seen.changed && !seen.foreign && !seen.own_ctime, "{seen:?}");
}

#[test]
fn nothing_is_accounted_for_without_pre_operation_attributes() {
    let old = attributes(5, 1);
    let mut case = Case::new(&old);
    let sent = case.begin();
    let seen = case.end(sent, None, &with_ctime(&old, 7));
    assert!(!seen.own_ctime, "{seen:?}");
}

#[test]
fn attributes_that_are_still_valid_are_not_valid_for_longer_after_the_same_reply() {
    let a = attributes(1, 1);
    let mut case = Case::new(&a);
    case.now += TIMES.min - 1;
    let sent = case.send();
    assert!(!case.hear(sent, &a).foreign);
    assert_eq!(case.cache.fresh_for(case.now), TIMES.min);
    let later = case.now + 3;
    assert_eq!(case.cache.fresh_for(later), TIMES.min - 3);
    assert_eq!((case.cache.age(case.now), case.cache.age(later)), (0, 3));
    case.cache.expire();
    assert_eq!(case.cache.fresh_for(case.now), 0);
}

#[test]
fn calls_are_ordered_against_the_replies_and_the_own_changes() {
    let (a, b) = (attributes(1, 1), attributes(2, 2));
    let mut case = Case::new(&a);
    let cache = &case.cache;
    assert!(cache.unheard_since(1) && !cache.unheard_since(0));
    assert!(cache.verified_since(0) && !cache.verified_since(1));
    assert!(cache.undisturbed(0));
    let sent = case.begin();
    let cache = &case.cache;
    assert!(cache.is_changing() && !cache.undisturbed(sent));
    assert!(!cache.verified_since(0), "until it is answered");
    assert!(!case.end(sent, Some(&a), &b).foreign);
    let cache = &case.cache;
    assert!(!cache.is_changing());
    assert!(cache.undisturbed(case.event) && !cache.undisturbed(case.event - 1));
    assert!(cache.verified_since(sent) && !cache.verified_since(sent + 1));
}

#[test]
fn a_size_that_the_server_accepted_is_believed_and_asked_for() {
    let mut case = Case::new(&attributes(5, 1));
    case.cache.grow(5);
    assert_eq!((case.known().size, case.is_fresh()), (5, true));
    case.cache.grow(6);
    assert_eq!((case.known().size, case.is_fresh()), (6, false));
    let mut case = Case::new(&attributes(5, 1));
    case.cache.set_size(2);
    assert_eq!((case.known().size, case.is_fresh()), (2, false));
}

#[test]
fn a_change_that_was_not_answered_may_have_been_made() {
    for answered in [true, false] {
        let mut case = Case::new(&attributes(5, 1));
        let sent = case.begin();
        let span = case.span(sent);
        assert!(!case.cache.fail_change(span, answered).foreign);
        assert_eq!(
            (case.is_fresh(), case.cache.is_changing()),
            (answered, false)
        );
    }
}

#[test]
fn a_write_answered_without_attributes_makes_the_file_as_long_as_it_must_be() {
    let mut case = Case::new(&attributes(5, 1));
    let sent = case.begin();
    let (span, data) = (case.span(sent), WccData::default());
    let change = Answered {
        floor: 9,
        ..answered(Kind::Write, &data)
    };
    let seen = case.cache.end_change(span, &change, case.now, TIMES);
    assert!(!seen.foreign);
    assert_eq!((case.known().size, case.is_fresh()), (9, false));
}

#[test]
fn a_change_that_fails_last_tells_that_the_others_began_elsewhere() {
    let states: Vec<_> = (1..=3).map(|n| attributes(n, n as u32)).collect();
    let mut case = Case::new(&states[0]);
    let sent = [case.begin(), case.begin()];
    assert!(!case.end(sent[0], Some(&states[1]), &states[2]).foreign);
    let span = case.span(sent[1]);
    assert!(case.cache.fail_change(span, true).foreign);
}

#[test]
fn of_own_changes_under_way_a_reply_that_overlaps_and_leaves_a_gap_is_not_believed() {
    let states: Vec<_> = (1..=5).map(|n| attributes(n, n as u32)).collect();
    let mut case = Case::new(&states[0]);
    let sent = [case.begin(), case.begin(), case.begin()];
    assert!(!case.end_in(sent[0], &states[1], &states[2]).foreign);
    assert!(case.is_fresh(), "it is the newest");
    assert!(!case.end_in(sent[1], &states[3], &states[4]).foreign);
    assert!(!case.is_fresh());
}
