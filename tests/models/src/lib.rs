//! Code that threads share, built over Shuttle, which runs its threads one at a time in orders of
//! its choice: with the feature `shuttle`, `sync` of each crate takes its locks, waits and threads
//! from there (`tests/shuttle`).
//!
//! A model is a function that Shuttle runs again and again; `tests/` runs each for seconds.
//! `NFSRDMA_SCHEDULES` sets how often. A failure prints a schedule that `shuttle::replay`
//! takes.

pub mod budget;
pub mod engine;
pub mod pool;
pub mod two_clients;
pub mod waiting;
pub mod write_back;

/// Runs `body` in `often` orders of its threads, times what `NFSRDMA_SCHEDULES` says: half
/// of them at random, half with few changes of thread at the worst places.
pub fn explore(often: usize, body: impl Fn() + Send + Sync + 'static) {
    let times = std::env::var("NFSRDMA_SCHEDULES").ok();
    let times: usize = times.and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut config = shuttle::Config::new();
    // More is a thread that waits for what does not come.
    config.max_steps = shuttle::MaxSteps::FailAfter(200_000);
    config.stack_size = 256 * 1024;
    let body = std::sync::Arc::new(body);
    let half = (often * times).div_ceil(2);
    let random = shuttle::scheduler::RandomScheduler::new(half);
    let again = body.clone();
    shuttle::Runner::new(random, config.clone()).run(move || again());
    let few = shuttle::scheduler::PctScheduler::new(3, half);
    shuttle::Runner::new(few, config).run(move || body());
}
