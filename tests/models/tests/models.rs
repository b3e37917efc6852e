//! The models, each in many orders of its threads.

use nfsrdma_models::{budget, engine, explore, pool, waiting, write_back};

#[test]
fn pool_blocks_have_one_owner() {
    explore(1000, pool::blocks_have_one_owner);
}

#[test]
fn every_clean_block_of_the_page_cache_can_be_dropped() {
    explore(2000, budget::every_clean_block_can_be_dropped);
}

#[test]
fn writers_of_many_files_get_room() {
    explore(300, write_back::writers_of_many_files_get_room);
}

#[test]
fn each_waiting_request_is_answered_once() {
    explore(2000, waiting::each_request_is_answered_once);
}

#[test]
fn no_interrupt_is_lost() {
    explore(2000, waiting::no_interrupt_is_lost);
}

#[test]
fn calls_survive_lost_connections_and_end_once() {
    explore(600, engine::calls_survive_lost_connections);
}

#[test]
fn abandoned_calls_and_a_shutdown_leave_nothing() {
    explore(600, engine::shutdown_frees_everything);
}

#[test]
fn what_is_written_is_kept_over_restarts() {
    explore(600, write_back::what_is_written_is_kept);
}

#[test]
fn what_the_server_refuses_is_told() {
    explore(600, write_back::what_is_lost_is_told);
}
