//! The contract as test cases, all of which every provider must pass.
//!
//! In a provider's tests, one line makes each case a separate test:
//!
//! ```ignore
//! nfsrdma_rdma_testing::conformance_tests!(provider(), "127.0.0.1:0".parse().unwrap());
//! ```
//!
//! [`run_all`] runs them elsewhere, for example in a guest with devices. A case panics if the
//! provider violates the contract. It waits only for conditions, and gives up after [`PATIENCE`].

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod access;
mod bulk;
mod ending;
mod harness;
mod message;
mod setup;

pub use access::*;
pub use bulk::*;
pub use ending::*;
pub use harness::{Bench, PATIENCE};
pub use message::*;
pub use setup::*;

use nfsrdma_rdma::Provider;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A test of one guarantee of the contract.
pub type Case = fn(&Bench<'_>);

/// Makes a `#[test]` of each case. `$provider` is evaluated in each of them; `$at` is an address
/// that the provider can listen on and connect to, with port 0.
#[macro_export]
macro_rules! conformance_tests {
    (@cases $mode:ident $($args:tt)*) => {
        $crate::conformance_tests! { @$mode ($($args)*)
            private_data_goes_both_ways
            private_data_has_a_largest_size
            rejection_carries_private_data
            a_dropped_request_is_a_rejection
            refused_where_nobody_listens
            silence_times_out
            closing_a_listener_ends_accept
            a_pool_too_small_for_the_receives_is_a_local_error
            reads_are_negotiated
            connections_are_independent
            sends_of_every_size_arrive
            sends_are_gathered
            sends_put_off_keep_their_order
            a_large_send_arrives
            sends_arrive_in_order
            sends_cross
            a_full_send_queue_gives_the_rest_back
            unsignaled_sends_complete_silently
            misuse_is_reported_and_harmless
            a_send_longer_than_the_receive_ends_the_connection
            a_send_without_a_receive_ends_the_connection
            a_send_can_invalidate
            an_exposure_names_its_memory
            writes_of_every_size_are_placed
            reads_of_every_size_are_filled
            writes_gather_and_reads_scatter
            a_send_comes_after_the_writes_before_it
            more_reads_than_the_limit_complete_in_order
            bulk_moves_both_ways_at_once
            an_invalidated_handle_is_refused
            a_remotely_invalidated_handle_is_refused
            a_handle_is_good_for_one_connection
            bounds_are_checked
            a_sink_is_not_read
            a_source_is_not_written
            an_unknown_handle_is_refused
            nothing_is_exposed_after_the_end
            a_dropped_exposure_keeps_its_memory
            disconnecting_flushes_everything_once
            being_disconnected_flushes_everything_once
            dropping_a_connection_ends_it
            what_is_posted_after_the_end_is_flushed
            the_reason_of_the_end_is_repeated
            who_keeps_posting_learns_of_the_end
            wake_returns_a_poll
            a_poll_waits_no_longer_than_told
        }
    };
    (@tests ($provider:expr, $at:expr) $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let provider = $provider;
                $crate::conformance::$name(&$crate::conformance::Bench::new(&provider, $at));
            }
        )*
    };
    (@table () $($name:ident)*) => {
        &[$((stringify!($name), $name as Case)),*]
    };
    ($provider:expr, $at:expr $(,)?) => {
        $crate::conformance_tests! { @cases tests $provider, $at }
    };
}

/// All cases with their names.
pub const CASES: &[(&str, Case)] = crate::conformance_tests! { @cases table };

/// Runs the cases whose name contains `filter`, and prints one line for each. Returns the names of
/// those that failed.
pub fn run_all(provider: &dyn Provider, at: SocketAddr, filter: &str) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for (name, case) in CASES.iter().filter(|(name, _)| name.contains(filter)) {
        let began = std::time::Instant::now();
        let bench = Bench::new(provider, at);
        let outcome = catch_unwind(AssertUnwindSafe(|| case(&bench)));
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{name} ... {verdict} ({} ms)", began.elapsed().as_millis());
        if outcome.is_err() {
            failed.push(*name);
        }
    }
    failed
}
