//! Models of code that is shared by threads, built with Shuttle, which runs the threads one at a
//! time in orders that it chooses. With the feature `shuttle`, the module `sync` of each crate
//! takes its locks, waits and threads from `tests/shuttle`.
//!
//! A model is a function that Shuttle runs many times; `tests/` runs each for some seconds.
//! `NFSRDMA_SCHEDULES` multiplies the number of runs. A failure prints a schedule for
//! `shuttle::replay`.

pub mod budget;
pub mod engine;
pub mod pool;
pub mod waiting;
pub mod write_back;

/// Runs `body` in `often` orders of its threads, multiplied by `NFSRDMA_SCHEDULES`: half of them at
/// random, half with few switches at the worst places.
pub fn explore(often: usize, body: impl Fn() + Send + Sync + 'static) {
    let times = std::env::var("NFSRDMA_SCHEDULES").ok();
    let times: usize = times.and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut config = shuttle::Config::new();
    // A thread with more steps waits for something that does not come.
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
