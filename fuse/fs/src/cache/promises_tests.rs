//! Single promises of [`WriteBack`]: what it sends next, within which limits, and what it tells of itself.

use super::write_back::MOST_RESTARTS;
use super::write_back_tests::{WTMAX, answer, limits, user_with, written};
use super::{Accepted, Action, Goal, PAGE, WriteBack, WriteCall, WriteLimits};
use nfsrdma_rdma::Pool;
use nfsrdma_xdr::nfs3::{Stable, Verifier};

fn next_write(file: &mut WriteBack, goal: Goal, limits: &WriteLimits) -> WriteCall {
    match file.next(goal, limits) {
        Action::Write(call) => call,
        other => panic!("{other:?}"),
    }
}

fn commit(file: &mut WriteBack, verifier: Verifier) {
    let next = file.next(Goal::Committed, &limits());
    assert!(matches!(next, Action::Commit(_)), "{next:?}");
    file.commit_answered(verifier);
    file.commit_ended();
}

fn write_as(file: &mut WriteBack, pool: &Pool, user: u32, at: u64, len: usize) -> Accepted {
    let (user, data) = (user_with(user), vec![7; len]);
    file.write(&user, at, &data, 0, usize::MAX, &mut |len| pool.alloc(len))
}

/// A page of a mapping.
fn late(file: &mut WriteBack, pool: &Pool, page: u64) -> Accepted {
    let mut alloc = |len: usize| pool.alloc(len);
    let data = (&[1; 8]).into();
    file.write_late(&user_with(0), page * PAGE, data, 0, usize::MAX, &mut alloc)
}

#[test]
fn write_back_is_due_once_the_oldest_data_is_old_and_a_commit_at_once() {
    let pool = Pool::new(4 << 20).unwrap();
    let mut file = WriteBack::default();
    let write = |file: &mut WriteBack, now: u64| {
        let mut alloc = |len: usize| pool.alloc(len);
        file.write(
            &user_with(0),
            now * PAGE,
            &[7; 8],
            now,
            usize::MAX,
            &mut alloc,
        )
    };
    assert!(!file.is_due(u64::MAX));
    for now in [5, 9] {
        assert_eq!(write(&mut file, now), Accepted::All);
    }
    assert!(!file.is_due(4) && file.is_due(5));
    let calls = [(); 2].map(|()| next_write(&mut file, Goal::Started, &limits()));
    assert!(!file.is_due(u64::MAX), "all of it is under way");
    for call in calls {
        answer(&mut file, call, Stable::Unstable, Verifier::default());
    }
    assert!(file.is_due(0), "a COMMIT is left");
    commit(&mut file, Verifier::default());
    assert!(!file.is_due(u64::MAX));
    assert_eq!(write(&mut file, 20), Accepted::All);
    assert!(!file.is_due(19) && file.is_due(20));
}

#[test]
fn flushes_at_the_same_time_last_until_the_last_one_ends_and_admit_no_more_data_than_one() {
    let (pool, mut file) = written([0], 8);
    assert!(!file.is_flushing());
    file.begin_flush();
    assert_eq!(late(&mut file, &pool, 1), Accepted::All);
    let call = next_write(&mut file, Goal::Committed, &limits());
    answer(&mut file, call, Stable::Unstable, Verifier::default());
    file.begin_flush();
    assert_eq!(late(&mut file, &pool, 2), Accepted::Wait);
    file.end_flush();
    assert!(file.is_flushing());
    let write = file.write(&user_with(0), 0, &[1; 8], 0, usize::MAX, &mut |_| None);
    assert_eq!(write, Accepted::Wait);
    file.end_flush();
    assert!(!file.is_flushing());
}

#[test]
fn dirty_data_takes_the_memory_that_it_may_and_one_write_always_has_room() {
    let page = PAGE as usize;
    for (first, second, accepted) in [
        (page, page, Accepted::All),
        (page, page + 1, Accepted::Wait),
        (3 * page, 1, Accepted::Wait),
    ] {
        let pool = Pool::new(4 << 20).unwrap();
        let mut file = WriteBack::default();
        let mut write = |at: u64, len: usize| {
            let mut alloc = |len: usize| pool.alloc(len);
            file.write(&user_with(0), at, &vec![7; len], 0, 2 * page, &mut alloc)
        };
        assert_eq!(write(0, first), Accepted::All);
        assert_eq!(write(8 * PAGE, second), accepted, "{first} and {second}");
    }
}

#[test]
fn small_writes_wait_for_more_data_unless_memory_is_short() {
    let limits = WriteLimits {
        wtmax: WTMAX,
        dirty_file_bytes: 4 * PAGE as usize,
        ..limits()
    };
    let sent = |pages: &[u64], len: u32, crowded| {
        let (_pool, mut file) = written(pages.iter().map(|n| n * PAGE), len as usize);
        let limits = WriteLimits { crowded, ..limits };
        match file.next(Goal::Full, &limits) {
            Action::Write(call) => Some(call.job.len),
            other => {
                assert!(matches!(other, Action::Wait), "{other:?}");
                None
            }
        }
    };
    assert_eq!(sent(&[0], WTMAX - 1, false), None);
    assert_eq!(sent(&[0], WTMAX - 1, true), Some(WTMAX - 1));
    assert_eq!(sent(&[0], WTMAX, false), Some(WTMAX));
    assert_eq!(sent(&[1], 2 * WTMAX, false), Some(WTMAX));
    assert_eq!(sent(&[0, 2], 8, false), None, "half of the limit");
    assert_eq!(sent(&[0, 2, 4], 8, false), Some(8));
}

#[test]
fn two_writes_may_always_be_under_way_and_more_within_the_limits() {
    let (_pool, mut file) = written((0..4).map(|n| n * 2 * PAGE), 100);
    let of = |free, most_bytes| WriteLimits {
        free,
        most_bytes,
        ..limits()
    };
    let _calls = [(); 2].map(|()| next_write(&mut file, Goal::Started, &of(0, 0)));
    for limits in [of(0, 0), of(0, 201), of(1, 200)] {
        let next = file.next(Goal::Started, &limits);
        assert!(matches!(next, Action::Wait), "{limits:?}");
    }
    next_write(&mut file, Goal::Started, &of(1, 201));
    assert_eq!(file.writes(), 3);
}

#[test]
fn the_data_of_one_write_needs_no_commit() {
    let limits = WriteLimits {
        wtmax: WTMAX,
        ..limits()
    };
    let stable = |pages: &[u64], len: u32, goal| {
        let (_pool, mut file) = written(pages.iter().map(|n| n * PAGE), len as usize);
        next_write(&mut file, goal, &limits).stable
    };
    assert_eq!(stable(&[0], WTMAX, Goal::Committed), Stable::FileSync);
    assert_eq!(stable(&[0], WTMAX, Goal::Written), Stable::Unstable);
    assert_eq!(stable(&[0], WTMAX + 1, Goal::Committed), Stable::Unstable);
    assert_eq!(stable(&[0, 2], 8, Goal::Committed), Stable::Unstable);
    // Nor if other data waits for a COMMIT anyway, or may need one.
    let (_pool, mut file) = written([0, 2 * PAGE], 8);
    let first = next_write(&mut file, Goal::Started, &limits);
    let second = next_write(&mut file, Goal::Committed, &limits);
    assert_eq!(second.stable, Stable::Unstable);
    file.write_ended(second.job.offset..second.job.offset + 8);
    answer(&mut file, first, Stable::Unstable, Verifier::default());
    let second = next_write(&mut file, Goal::Committed, &limits);
    assert_eq!(second.stable, Stable::Unstable);
}

#[test]
fn after_many_restarts_data_is_sent_file_sync_until_all_is_safe() {
    let (pool, mut file) = written([0, 2 * PAGE], 8);
    let mut sent = 0;
    let last = loop {
        let call = next_write(&mut file, Goal::Started, &limits());
        if call.stable == Stable::FileSync {
            break call;
        }
        sent += 1;
        answer(&mut file, call, Stable::Unstable, Verifier([sent; 8]));
    };
    // The first one told of no restart.
    assert_eq!(u32::from(sent), MOST_RESTARTS + 1);
    answer(&mut file, last, Stable::FileSync, Verifier([sent; 8]));
    commit(&mut file, Verifier([sent; 8]));
    assert!(file.is_safe());
    assert_eq!(write_as(&mut file, &pool, 0, 0, 8), Accepted::All);
    let call = next_write(&mut file, Goal::Started, &limits());
    assert_eq!(call.stable, Stable::Unstable);
}

#[test]
fn a_commit_is_sent_once_enough_memory_waits_for_it() {
    let (_pool, mut file) = written([0], PAGE as usize);
    let call = next_write(&mut file, Goal::Started, &limits());
    answer(&mut file, call, Stable::Unstable, Verifier::default());
    assert!(matches!(file.commit_of(PAGE + 1), Action::Done));
    assert!(matches!(file.commit_of(PAGE), Action::Commit(_)));
    assert!(file.is_under_way());
    assert!(matches!(file.commit_of(PAGE), Action::Wait));
}

#[test]
fn what_a_commit_loses_is_told_in_as_few_ranges_as_there_are() {
    let (_pool, mut file) = written([0, PAGE, 2 * PAGE, 8 * PAGE], PAGE as usize);
    while let Action::Write(call) = file.next(Goal::Started, &limits()) {
        answer(&mut file, call, Stable::Unstable, Verifier::default());
    }
    assert!(matches!(file.commit_of(1), Action::Commit(_)));
    assert_eq!(file.commit_failed(), [0..3 * PAGE, 8 * PAGE..9 * PAGE]);
    file.commit_ended();
    assert!(file.is_safe());
}

#[test]
fn what_is_given_up_is_told_and_other_users_wait_until_its_error_is_recorded() {
    let (pool, mut file) = written([0, 2 * PAGE, 4 * PAGE], 8);
    let call = next_write(&mut file, Goal::Started, &limits());
    answer(&mut file, call, Stable::Unstable, Verifier::default());
    let under_way = next_write(&mut file, Goal::Started, &limits());
    assert_eq!(under_way.job.offset, 2 * PAGE);
    assert_eq!(file.give_up(), [4 * PAGE..4 * PAGE + 8, 0..8]);
    assert_eq!(file.unsafe_cred(), Some(&user_with(0)));
    answer(&mut file, under_way, Stable::FileSync, Verifier::default());
    assert_eq!((file.is_safe(), file.writes()), (true, 1));
    assert_eq!(file.unsafe_cred(), None);
    assert_eq!(write_as(&mut file, &pool, 1, 0, 8), Accepted::OtherUser);
    file.write_ended(0..0);
    assert!(!file.is_under_way());
    assert_eq!(write_as(&mut file, &pool, 1, 0, 8), Accepted::All);
    let call = next_write(&mut file, Goal::Started, &limits());
    assert_eq!(call.cred, user_with(1));
    assert_eq!(write_as(&mut file, &pool, 0, 0, 8), Accepted::OtherUser);
}

#[test]
fn the_end_of_the_data_is_known_until_all_of_it_is_safe() {
    let (pool, mut file) = written([100], 8);
    assert_eq!(file.end(), 108);
    assert_eq!(write_as(&mut file, &pool, 0, 108, 4), Accepted::All);
    assert_eq!(file.end(), 112);
    file.take_back(108, 108);
    assert_eq!((file.end(), file.pages().dirty()), (108, 8));
    file.truncate(200);
    assert_eq!(file.end(), 108);
    file.truncate(104);
    assert_eq!((file.end(), file.pages().dirty()), (104, 4));
    let call = next_write(&mut file, Goal::Started, &limits());
    answer(&mut file, call, Stable::Unstable, Verifier::default());
    assert_eq!(file.end(), 104);
    commit(&mut file, Verifier::default());
    assert_eq!(file.end(), 0);
}

#[test]
fn without_memory_only_what_was_stored_is_part_of_the_file() {
    let pool = Pool::new(4 << 20).unwrap();
    let mut file = WriteBack::default();
    let mut left = 1;
    let mut alloc = |len: usize| {
        left -= 1;
        pool.alloc(len).filter(|_| left >= 0)
    };
    let two = vec![7; 2 * PAGE as usize];
    let taken = file.write(&user_with(0), PAGE / 2, &two, 0, usize::MAX, &mut alloc);
    let stored = file.pages().dirty();
    assert!(stored > 0 && taken == Accepted::Short(stored as usize));
    assert_eq!(file.end(), PAGE / 2 + stored);
    let far = file.write(&user_with(0), 8 * PAGE, &two, 0, usize::MAX, &mut |_| None);
    assert_eq!((far, file.end()), (Accepted::Short(0), PAGE / 2 + stored));
}

#[test]
fn a_flush_waits_until_a_write_that_was_answered_has_ended() {
    let (_pool, mut file) = written([0], 8);
    let call = next_write(&mut file, Goal::Written, &limits());
    file.write_answered(0..8, 8, Stable::FileSync, Verifier::default());
    drop(call);
    for goal in [Goal::Written, Goal::Committed] {
        assert!(matches!(file.next(goal, &limits()), Action::Wait));
    }
    file.write_ended(0..0);
    for goal in [Goal::Written, Goal::Committed] {
        assert!(matches!(file.next(goal, &limits()), Action::Done));
    }
}

/// Otherwise a flush would last as long as a program dirties pages of a mapping.
#[test]
fn a_flush_admits_data_until_a_call_has_ended() {
    let (pool, mut file) = written([0], 8);
    let end_a_write = |file: &mut WriteBack| {
        let call = next_write(file, Goal::Committed, &limits());
        file.write_ended(call.job.offset..call.job.offset + u64::from(call.job.len));
    };
    file.begin_flush();
    let later = file.write(&user_with(0), PAGE, &[1; 8], 0, usize::MAX, &mut |_| None);
    assert_eq!(later, Accepted::Wait);
    for page in 1..3 {
        assert_eq!(late(&mut file, &pool, page), Accepted::All);
    }
    end_a_write(&mut file);
    assert_eq!(late(&mut file, &pool, 3), Accepted::Wait);
    file.end_flush();
    // It may come late when the flush has just ended.
    assert_eq!(late(&mut file, &pool, 3), Accepted::All);
    end_a_write(&mut file);
    file.begin_flush();
    let accepted = late(&mut file, &pool, 4);
    assert_eq!(accepted, Accepted::All, "another flush");
    file.end_flush();
    while let Action::Write(call) = file.next(Goal::Started, &limits()) {
        answer(&mut file, call, Stable::Unstable, Verifier::default());
    }
    file.begin_flush();
    let next = file.next(Goal::Committed, &limits());
    assert!(matches!(next, Action::Commit(_)));
    assert_eq!(late(&mut file, &pool, 5), Accepted::All);
    file.commit_answered(Verifier::default());
    file.commit_ended();
    assert_eq!(late(&mut file, &pool, 6), Accepted::Wait);
}
