//! The whole run: load and faults, then the comparison of all data, and the figures.

use crate::fault::Fault;
use crate::stand::{LIMIT, Stand, until};
use crate::tree;
use crate::watch::{Sample, Watch};
use crate::worker::{Outcome, Worker};
use anyhow::{Context, Result, bail, ensure};
use nfsrdma_test_support::Random;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of the mounts: a small cache, so that data is evicted and read again, and a short
/// `timeo`, so that stalls exceed it.
const OPTIONS: &str = "timeo=15,retrans=2,cache=24M";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long, without the comparison at the end
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// Seed of the random choices; printed, so that a run can be repeated
    #[arg(long)]
    seed: Option<u64>,
    /// Processes of the load
    #[arg(long, default_value_t = 3)]
    workers: u64,
    /// Further mount options
    #[arg(long, default_value = "")]
    options: String,
    /// A further argument of the responder; may be given again
    #[arg(long, allow_hyphen_values = true)]
    responder: Vec<String>,
    /// No faults
    #[arg(long)]
    calm: bool,
    /// Where nfsrdma and nfsrdma-responder are
    #[arg(long)]
    bin: PathBuf,
}

/// The figures of a run.
#[derive(Debug, Default)]
struct Figures {
    operations: BTreeMap<String, u64>,
    compared: u64,
    faults: BTreeMap<Fault, u64>,
    watches: Vec<Watch>,
    carried: u64,
    connections: u64,
}

impl Figures {
    fn take(&mut self, outcome: &Outcome) {
        for (name, count) in &outcome.operations {
            *self.operations.entry(name.clone()).or_default() += count;
        }
        self.compared += outcome.compared;
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let seed = options.seed.unwrap_or_else(Random::any_seed);
    println!("seed {seed} (--seed {seed} repeats the choices)");
    let time = Duration::from_secs_f64(options.minutes * 60.0);
    let begin = Instant::now();
    let mut arguments = vec!["--fake-unstable"];
    arguments.extend(options.responder.iter().map(String::as_str));
    let mut stand = Stand::new(&options.bin, &arguments)?;
    let mut figures = Figures::default();
    let result = go(options, seed, time, &mut stand, &mut figures);
    tell(&figures, begin.elapsed());
    if let Err(error) = result {
        stand.keep = true;
        bail!("seed {seed}: {error:#}");
    }
    println!("no losses");
    Ok(())
}

/// The load, from the first mount to the last unmount.
fn go(
    options: &Options,
    seed: u64,
    time: Duration,
    stand: &mut Stand,
    figures: &mut Figures,
) -> Result<()> {
    let mount_options = match options.options.as_str() {
        "" => OPTIONS.to_owned(),
        more => format!("{OPTIONS},{more}"),
    };
    stand.mount(&mount_options)?;
    figures.watches.push(Watch::default());
    look(stand, figures)?;
    let before: Vec<_> = stand.mounts.iter().map(Sample::of).collect::<Result<_>>()?;
    let export = stand.export();
    let mut workers = Vec::new();
    for number in 0..options.workers {
        let seed = seed.wrapping_mul(1000).wrapping_add(number);
        let name = format!("w{number}");
        workers.push(Worker::start(name, &stand.mounts[0].dir, &export, seed)?);
    }
    let mut chance = Random::new(seed ^ 0xfa17);
    let end = Instant::now() + time;
    let result = faults(options, &mut workers, stand, figures, end, &mut chance);
    result.inspect_err(|_| evidence(stand, &workers))?;
    // From here on there are no faults.
    workers.iter_mut().for_each(Worker::halt);
    let limit = Instant::now() + LIMIT;
    for worker in &mut workers {
        while worker.outcome.is_none() {
            worker.listen(Duration::from_millis(100))?;
            if Instant::now() > limit {
                evidence(stand, std::slice::from_ref(worker));
                bail!("{} does not come to an end", worker.name);
            }
        }
    }
    let outcomes = workers.iter_mut().filter_map(|w| w.outcome.take());
    let outcomes: Vec<_> = outcomes.collect();
    for outcome in &outcomes {
        figures.take(outcome);
        if let Some(failure) = &outcome.failure {
            evidence(stand, &workers);
            bail!("{failure}");
        }
    }
    wait_until_idle(stand, &before, figures)?;
    stand.unmount()?;
    // Compare the data at the server, without a mount, and the data that a new mount sees.
    for (worker, outcome) in workers.iter().zip(&outcomes) {
        figures.compared += tree::verify(&export.join(&worker.name), &outcome.manifest)
            .context("in the exported directory after unmounting")?;
    }
    stand.mount(&mount_options)?;
    for (worker, outcome) in workers.iter().zip(&outcomes) {
        let dir = stand.mounts[0].dir.join(&worker.name);
        figures.compared +=
            tree::verify(&dir, &outcome.manifest).context("after mounting again")?;
    }
    stand.unmount()?;
    figures.carried = stand.proxy.bytes();
    figures.connections = stand.proxy.accepted();
    let complaints = stand.complaints();
    ensure!(complaints.is_empty(), "the logs say {complaints:#?}");
    Ok(())
}

fn look(stand: &Stand, figures: &mut Figures) -> Result<()> {
    for (mount, watch) in stand.mounts.iter().zip(&mut figures.watches) {
        watch.look(mount)?;
    }
    Ok(())
}

/// Reads messages of the workers. Fails if a worker failed or makes no progress.
fn attend(workers: &mut [Worker]) -> Result<()> {
    for worker in workers {
        worker.listen(Duration::from_millis(1))?;
        if let Some(Outcome {
            failure: Some(failure),
            ..
        }) = &worker.outcome
        {
            bail!("{}: {failure}", worker.name);
        }
        ensure!(
            worker.outcome.is_some() || worker.moved.elapsed() < LIMIT,
            "{} hangs: nothing done in {LIMIT:?}",
            worker.name
        );
    }
    Ok(())
}

/// Sleeps, while reading messages of the workers and watching the clients.
fn wait(
    time: Duration,
    workers: &mut [Worker],
    stand: &Stand,
    figures: &mut Figures,
    looked: &mut Instant,
) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        attend(workers)?;
        if looked.elapsed() > Duration::from_secs(1) {
            *looked = Instant::now();
            look(stand, figures)?;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Makes faults at random moments.
fn faults(
    options: &Options,
    workers: &mut [Worker],
    stand: &mut Stand,
    figures: &mut Figures,
    end: Instant,
    chance: &mut Random,
) -> Result<()> {
    let mut looked = Instant::now();
    while Instant::now() < end {
        let pause = *chance.pick(&[20, 200, 1000, 2500]);
        let pause = Duration::from_millis(chance.below(pause) as u64);
        wait(pause, workers, stand, figures, &mut looked)?;
        if options.calm {
            continue;
        }
        let fault = Fault::any(chance);
        *figures.faults.entry(fault).or_default() += 1;
        fault.begin(stand)?;
        let result = wait(fault.lasts(chance), workers, stand, figures, &mut looked);
        fault.end(stand)?;
        result?;
    }
    Ok(())
}

/// Waits until no call is under way, and checks that nothing is left.
fn wait_until_idle(stand: &Stand, before: &[Sample], figures: &mut Figures) -> Result<()> {
    for (number, mount) in stand.mounts.iter().enumerate() {
        let mut last = Sample::default();
        // Descriptors of callers that ended are closed within two seconds.
        let quiet = until(
            "no call, registration, descriptor or thread is left",
            || {
                last = Sample::of(mount)?;
                Ok(last.registrations + last.in_flight + last.waiting == 0
                    && last.descriptors <= before[number].descriptors + 2
                    && last.threads <= before[number].threads + 2)
            },
        );
        quiet.with_context(|| format!("{:?} before, {last:?} after", before[number]))?;
        figures.watches[number].samples.push(last);
        // A short run has no trend.
        let watch = &figures.watches[number];
        if watch.samples.len() >= 100 {
            let (early, late) = watch.trend(|s| s.resident);
            ensure!(
                late <= early + early / 5 + (16 << 10),
                "resident memory grows: {early} KiB, then {late} KiB"
            );
        }
    }
    Ok(())
}

/// Collects information about a hang or a failure.
fn evidence(stand: &Stand, workers: &[Worker]) {
    for mount in &stand.mounts {
        if let Ok(stats) = mount.stats() {
            let _ = fs::write(stand.base.join("stats.json"), format!("{stats:#}"));
        }
    }
    for worker in workers {
        let place = fs::read_to_string(format!("/proc/{}/wchan", worker.pid()));
        eprintln!(
            "worker {} (process {}) waits in {}",
            worker.name,
            worker.pid(),
            place.unwrap_or_default()
        );
    }
}

fn tell(figures: &Figures, took: Duration) {
    let sum: u64 = figures.operations.values().sum();
    println!("== {:.0} s", took.as_secs_f64());
    println!("   operations  {sum}: {}", list(&figures.operations));
    let faults: BTreeMap<String, u64> = figures
        .faults
        .iter()
        .map(|(fault, count)| (format!("{fault:?}").to_lowercase(), *count))
        .collect();
    let sum: u64 = figures.faults.values().sum();
    println!("   faults      {sum}: {}", list(&faults));
    println!(
        "   compared    {} MiB; {} MiB carried over {} connections",
        figures.compared >> 20,
        figures.carried >> 20,
        figures.connections
    );
    for (number, watch) in figures.watches.iter().enumerate() {
        let (early, late) = watch.trend(|s| s.resident);
        println!(
            "   client {number}    resident {} MiB at most (second quarter {} MiB, last {} MiB), descriptors {}, \
             threads {}, registrations {}, inodes {} at most; connects {}, calls retransmitted {}, time-outs {}, violations {}",
            watch.most(|s| s.resident) >> 10,
            early >> 10,
            late >> 10,
            watch.most(|s| s.descriptors),
            watch.most(|s| s.threads),
            watch.most(|s| s.registrations),
            watch.most(|s| s.inodes),
            watch.most(|s| s.connects),
            watch.most(|s| s.retransmits),
            watch.most(|s| s.timeouts),
            watch.most(|s| s.violations),
        );
    }
}

fn list(counts: &BTreeMap<String, u64>) -> String {
    let words: Vec<_> = counts
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    words.join(", ")
}
