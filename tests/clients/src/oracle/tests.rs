//! Cases of what each mount may see of others' changes.

use super::*;

fn oracle() -> (Oracle, Id) {
    let hour = Duration::from_secs(3600);
    let mut oracle = Oracle::new(&["a", "b"], 3, hour, Duration::ZERO);
    let id = oracle.create();
    oracle.bind(1, "a", Some(id));
    (oracle, id)
}

fn sees(oracle: &Oracle, actor: usize, data: &[u8]) -> bool {
    oracle.view(actor, 0).check(0, 100, data).is_ok()
}

#[test]
fn a_write_is_seen_after_close_and_open() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 2, 7);
    assert!(sees(&oracle, 1, &[7, 7]) && !sees(&oracle, 1, &[]));
    assert!(sees(&oracle, 2, &[7, 7]) && sees(&oracle, 2, &[]));
    oracle.flush(1, id);
    assert!(sees(&oracle, 2, &[]), "not opened since");
    assert!(!sees(&oracle, SERVER, &[]));
    oracle.opened(2, id, false);
    assert!(sees(&oracle, 2, &[7, 7]) && !sees(&oracle, 2, &[]));
}

#[test]
fn what_is_synced_to_a_file_that_is_gone_may_be_lost() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 4, 7);
    oracle.bind(2, "a", None);
    oracle.flush(1, id);
    assert!(sees(&oracle, SERVER, &[]) && sees(&oracle, SERVER, &[7; 4]));
}

#[test]
fn of_two_writers_either_may_be_the_last() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 1, 7);
    oracle.write(2, id, 0, 1, 8);
    oracle.flush(1, id);
    oracle.flush(2, id);
    for actor in 1..3 {
        oracle.opened(actor, id, false);
        assert!(sees(&oracle, actor, &[7]) && sees(&oracle, actor, &[8]));
        assert!(!sees(&oracle, actor, &[]));
    }
}

#[test]
fn what_was_written_early_may_get_the_time_of_what_another_wrote_later() {
    let (mut oracle, id) = oracle();
    oracle.tick = Duration::from_secs(1);
    let past = Instant::now().checked_sub(2 * oracle.tick).unwrap();
    oracle.objects[id].touched.fill(past);
    oracle.write(2, id, 0, 2, 7);
    oracle.opened(1, id, true);
    oracle.write(1, id, 0, 4, 8);
    oracle.flush(1, id);
    oracle.flush(2, id);
    oracle.found(id, &[7, 7, 8, 8]);
    oracle.opened(1, id, false);
    assert!(sees(&oracle, 1, &[7, 7, 8, 8]) && sees(&oracle, 1, &[8; 4]));

    // A second later the time differs, which the next open shows.
    oracle.objects[id].touched.fill(past);
    oracle.objects[id].dirty_since.fill(past);
    oracle.write(2, id, 2, 4, 9);
    oracle.flush(2, id);
    oracle.found(id, &[7, 7, 9, 9]);
    oracle.opened(1, id, false);
    assert!(sees(&oracle, 1, &[7, 7, 9, 9]) && !sees(&oracle, 1, &[8; 4]));
}

#[test]
fn what_a_process_at_the_server_changed_beside_a_change_may_stay_unnoticed_until_the_next() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 4, 7);
    oracle.flush(1, id);
    oracle.opened(1, id, true);
    oracle.write(SERVER, id, 0, 4, 8);
    oracle.truncate(1, id, 3);
    oracle.changed_beside(1, id);
    oracle.found(id, &[8; 3]);
    oracle.opened(1, id, false);
    assert!(sees(&oracle, 1, &[8; 3]) && sees(&oracle, 1, &[7; 3]));

    oracle.write(SERVER, id, 0, 3, 9);
    oracle.opened(1, id, false);
    assert!(sees(&oracle, 1, &[9; 3]) && !sees(&oracle, 1, &[7; 3]));
}

#[test]
fn one_after_the_other_the_later_counts() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 4, 7);
    oracle.flush(1, id);
    oracle.opened(2, id, false);
    oracle.write(2, id, 1, 2, 8);
    oracle.flush(2, id);
    oracle.write(1, id, 2, 3, 9);
    oracle.flush(1, id);
    oracle.opened(1, id, false);
    assert!(sees(&oracle, 1, &[7, 8, 9, 7]));
    assert!(!sees(&oracle, 1, &[7, 7, 9, 7]));
}

#[test]
fn a_truncation_is_at_the_server_at_once() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 4, 7);
    oracle.truncate(1, id, 2);
    oracle.flush(1, id);
    oracle.opened(2, id, false);
    assert!(sees(&oracle, 2, &[7, 7]));
    assert!(!sees(&oracle, 2, &[7, 7, 7, 7]));
    oracle.truncate(2, id, 3);
    assert!(sees(&oracle, SERVER, &[7, 7, 0]));
    assert!(!sees(&oracle, SERVER, &[7, 7, 7]));
}

#[test]
fn a_name_of_others_may_be_old_and_one_of_ones_own_not() {
    let (mut oracle, id) = oracle();
    let other = oracle.create();
    assert_eq!(oracle.bindings(1, "a"), [Some(id)]);
    oracle.bind(2, "a", Some(other));
    assert_eq!(oracle.bindings(2, "a"), [Some(other)]);
    assert!(oracle.bindings(1, "a").contains(&Some(id)));
    oracle.confirm(1, "a");
    assert_eq!(oracle.bindings(1, "a"), [Some(other)]);
    assert!(oracle.is_gone(id) && !oracle.is_gone(other));
    assert_eq!(oracle.bindings(SERVER, "a"), [Some(other)]);
}

#[test]
fn zeros_behind_a_cut_end_are_seen_only_by_whose_pages_may_hold_them() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 9000, 7);
    oracle.flush(1, id);
    oracle.opened(1, id, false);
    let zero = |oracle: &Oracle, at| oracle.seen(1, id).check(at, 1, &[0]).is_ok();
    oracle.zeros_behind_end(1, id);
    assert!(!zero(&oracle, 6000), "nobody has cut it");
    oracle.truncate(2, id, 5000);
    assert!(zero(&oracle, 6000) && !zero(&oracle, 4000));
    assert!(oracle.seen(2, id).check(6000, 1, &[0]).is_err());
}

#[test]
fn a_cut_that_is_learned_during_a_write_may_zero_the_rest_of_its_page_until_it_is_written_again() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 9000, 7);
    oracle.flush(1, id);
    oracle.opened(1, id, true);
    oracle.truncate(2, id, 5000);
    assert_eq!(oracle.objects[id].cuts_unknown_to(1, &[]), [5000]);
    let holds = |oracle: &Oracle, actor, at, byte| {
        let view = oracle.view(actor, 0);
        view.check(at, 1, &[byte]).is_ok()
    };
    oracle.write(1, id, 4000, 9000, 8);
    assert!(
        oracle.objects[id].cuts_unknown_to(1, &[]).is_empty(),
        "its own"
    );
    assert_eq!(
        oracle.objects[id].cuts_unknown_to(1, &[5000, 13_000]),
        [5000]
    );
    oracle.cut_during_write(1, id, 4000, 9000, 5000);
    let zeros =
        |oracle: &Oracle, actor| [4999, 5000, 8191, 8192].map(|at| holds(oracle, actor, at, 0));
    assert_eq!(zeros(&oracle, 1), [false, true, true, false]);
    oracle.flush(1, id);
    oracle.opened(2, id, false);
    for actor in [SERVER, 1, 2] {
        assert_eq!(zeros(&oracle, actor), [false, true, true, false]);
        assert!(holds(&oracle, actor, 5000, 8));
    }
    oracle.write(1, id, 5000, 8192, 9);
    oracle.flush(1, id);
    assert!(holds(&oracle, SERVER, 5000, 9) && !holds(&oracle, SERVER, 5000, 0));
}

#[test]
fn a_page_cache_may_keep_old_data_and_bring_whole_pages() {
    let (mut oracle, id) = oracle();
    oracle.page_cache(2);
    oracle.write(1, id, 0, 4, 7);
    oracle.flush(1, id);
    oracle.opened(2, id, false);
    assert!(sees(&oracle, 2, &[7; 4]) && !sees(&oracle, 2, &[]));
    oracle.write(1, id, 0, 4, 8);
    oracle.flush(1, id);
    oracle.opened(2, id, false);
    assert!(!sees(&oracle, 2, &[7; 4]), "it only reads");
    oracle.opened(2, id, true);
    oracle.write(1, id, 0, 4, 9);
    oracle.flush(1, id);
    oracle.opened(2, id, false);
    assert!(sees(&oracle, 2, &[8; 4]) && sees(&oracle, 2, &[9; 4]));
    assert!(sees(&oracle, SERVER, &[9; 4]) && !sees(&oracle, SERVER, &[8; 4]));
    oracle.write(2, id, 1, 2, 5);
    oracle.flush(2, id);
    for data in [[8, 5, 8, 8], [9, 5, 9, 9]] {
        assert!(sees(&oracle, SERVER, &data));
    }
    assert!(!sees(&oracle, SERVER, &[7, 5, 7, 7]) && !sees(&oracle, SERVER, &[9; 4]));
}

#[test]
fn bytes_between_two_pieces_of_a_page_stay_what_another_wrote() {
    let (mut oracle, id) = oracle();
    oracle.write(2, id, 0, 100, 7);
    oracle.flush(2, id);
    oracle.opened(1, id, false);
    oracle.write(1, id, 10, 20, 1);
    oracle.write(1, id, 30, 40, 2);
    oracle.write(2, id, 25, 27, 5);
    oracle.flush(2, id);
    oracle.flush(1, id);
    assert!(oracle.view(SERVER, id).check(25, 2, &[5, 5]).is_ok());
    assert!(oracle.view(SERVER, id).check(25, 2, &[7, 7]).is_err());
}

#[test]
fn a_page_cache_may_bring_back_what_it_had_not_written_when_it_created_the_file_empty() {
    for dirty in [true, false] {
        let (mut oracle, id) = oracle();
        oracle.page_cache(2);
        oracle.opened(2, id, true);
        oracle.write(2, id, 0, 4, 7);
        oracle.flush(2, id);
        if dirty {
            oracle.write(2, id, 1, 2, 8);
        }
        oracle.created_empty(2, id);
        for actor in [SERVER, 1, 2] {
            assert!(sees(&oracle, actor, &[]));
            assert_eq!(sees(&oracle, actor, &[7, 8, 7, 7]), dirty);
        }
        oracle.flush(2, id);
        assert_eq!(sees(&oracle, SERVER, &[7, 8, 7, 7]), dirty);
        oracle.truncate(2, id, 0);
        assert!(!sees(&oracle, SERVER, &[7, 8, 7, 7]));
    }
}

#[test]
fn a_page_cache_may_show_again_what_it_kept_over_a_truncation_that_changed_nothing() {
    let (mut oracle, id) = oracle();
    oracle.page_cache(2);
    oracle.opened(2, id, true);
    oracle.write(2, id, 0, 4, 7);
    oracle.flush(2, id);
    oracle.truncate(SERVER, id, 0);
    oracle.truncate(2, id, 0);
    assert!(sees(&oracle, 2, &[]) && !sees(&oracle, 2, &[7; 4]));
    oracle.truncate(2, id, 4);
    assert!(sees(&oracle, 2, &[0; 4]) && sees(&oracle, 2, &[7; 4]));
    assert!(!sees(&oracle, SERVER, &[7; 4]));
    oracle.truncate(2, id, 2);
    oracle.truncate(2, id, 4);
    assert!(!sees(&oracle, 2, &[7; 4]) && sees(&oracle, 2, &[7, 7, 0, 0]));
}

#[test]
fn a_time_that_was_set_holds_until_somebody_writes() {
    let (mut oracle, id) = oracle();
    oracle.write(1, id, 0, 4, 7);
    oracle.set_mtime(1, id, 1000);
    assert_eq!(
        (oracle.mtime(1, id), oracle.mtime(2, id)),
        (Some(1000), None)
    );
    oracle.flush(1, id);
    oracle.opened(2, id, false);
    assert_eq!(oracle.mtime(2, id), Some(1000));
    oracle.write(2, id, 0, 4, 8);
    assert_eq!(oracle.mtime(1, id), None);
    oracle.set_mtime(1, id, 1001);
    assert_eq!(oracle.mtime(1, id), None, "the write may come later");
}
