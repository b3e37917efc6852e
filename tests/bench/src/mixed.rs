//! `--mixed MINUTES`: dbench, fio, untar with rm -rf, and random operations on names at the same time on one mount,
//! and what a bystander notices of them: how long its stat(2) takes, of a name nobody asked for before and of a file
//! it knows. Reported with it: the mounting process's memory, each minute, at its peak and after a rest; its
//! connections; what it logged.
//!
//! A tool that is not installed is an error: the report is of all of them.

use crate::target::{Mounted, Target, end_with_this_process};
use crate::workload;
use anyhow::{Context, Result, ensure};
use nfsrdma_test_support::Random;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Between two stats of the bystander.
const PAUSE: Duration = Duration::from_millis(10);
/// After the load, before memory is looked at for the last time.
const REST: Duration = Duration::from_secs(75);
/// Objects of one worker of random operations.
const NAMES: usize = 200;

/// How long one kind of stat took.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Latency {
    count: usize,
    median_ms: f64,
    p99_ms: f64,
    most_ms: f64,
}

/// What one load did.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Load {
    name: &'static str,
    rounds: u64,
    /// Why it ended before its time.
    failed: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Mixed {
    target: String,
    minutes: u64,
    loads: Vec<Load>,
    lookup: Latency,
    stat: Latency,
    /// Each minute, in MiB.
    resident_mib: Vec<f64>,
    peak_mib: f64,
    rested_mib: f64,
    /// TCP connections that were seen.
    connections: usize,
    log_lines: usize,
    /// The last of them.
    log: Vec<String>,
    cpu_seconds: f64,
    /// Of the machine, of one minute, each minute: what else it was doing.
    load_average: Vec<f64>,
}

fn latency(mut taken: Vec<Duration>) -> Latency {
    taken.sort_unstable();
    let ms = |at: usize| taken.get(at).map_or(f64::NAN, |t| t.as_secs_f64() * 1e3);
    Latency {
        count: taken.len(),
        median_ms: ms(taken.len() / 2),
        p99_ms: ms(taken.len().saturating_sub(1) * 99 / 100),
        most_ms: ms(taken.len().saturating_sub(1)),
    }
}

/// A program that is ended with this process, at low priority, in a place of its own.
fn nice(own: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("nice");
    command
        .args(["-n", "10", name])
        .args(arguments)
        .current_dir(own)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    end_with_this_process(&mut command);
    command
}

fn run(own: &Path, name: &str, arguments: &[&str]) -> Result<()> {
    let output = nice(own, name, arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name}: {}: {}",
        output.status,
        said.trim()
    );
    Ok(())
}

fn dbench(own: &Path, _: &Path) -> Result<()> {
    run(own, "dbench", &["-t", "20", "-D", ".", "4"])
}

/// Random writes all over a file, synced at the end and read back by their checksums.
fn fio(own: &Path, _: &Path) -> Result<()> {
    let common = "--name=mixed --filename=fio --size=256m --bs=512-64k --rw=randrw --rwmixread=40";
    let more = "--io_size=64m --end_fsync=1 --verify=crc32c --do_verify=1 --verify_fatal=1";
    let words: Vec<&str> = common.split(' ').chain(more.split(' ')).collect();
    run(own, "fio", &words)?;
    Ok(fs::remove_file(own.join("fio"))?)
}

fn untar(own: &Path, archive: &Path) -> Result<()> {
    run(own, "tar", &["-xf", &archive.to_string_lossy()])?;
    run(own, "rm", &["-rf", "tree"])
}

/// A thousand random operations on a few names. What fails because of the name (there is one, there is none) is part
/// of it; anything else is a failure.
fn names(own: &Path, _: &Path) -> Result<()> {
    static SEED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let mut random = Random::new(SEED.fetch_add(1, Ordering::Relaxed));
    for _ in 0..1000 {
        let name = |random: &mut Random| own.join(format!("n{}", random.below(NAMES)));
        let (a, b) = (name(&mut random), name(&mut random));
        let len = random.below(100_000);
        let open = |path: &Path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
        };
        let done = match random.below(12) {
            0..3 => open(&a)
                .and_then(|file| file.write_all_at(&vec![b'r'; len], random.below(1 << 20) as u64)),
            3 => OpenOptions::new()
                .append(true)
                .open(&a)
                .and_then(|mut file| file.write_all(&[b'a'; 700])),
            4 => fs::read(&a).map(drop),
            5 => open(&a).and_then(|file| file.set_len(len as u64)),
            6 => fs::rename(&a, &b),
            7 => fs::hard_link(&a, &b),
            8 => symlink("n1", &a),
            9 => fs::create_dir(&a),
            10 => fs::remove_file(&a),
            _ => {
                fs::remove_dir(&a).or_else(|_| fs::read_dir(own).map(|list| list.count()).map(drop))
            }
        };
        match done {
            Ok(()) => {}
            // Also ELOOP, EISDIR and the like: several names are links to one that changes.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {}
            Err(e)
                if [
                    libc::EISDIR,
                    libc::ENOTDIR,
                    libc::EPERM,
                    libc::ENOTEMPTY,
                    libc::ELOOP,
                ]
                .contains(&e.raw_os_error().unwrap_or(0)) => {}
            Err(e) => return Err(e).context(format!("an operation on {}", a.display())),
        }
    }
    Ok(())
}

type Work = fn(&Path, &Path) -> Result<()>;

/// Repeats one load until it is told to stop.
fn repeat(name: &'static str, work: Work, own: &Path, archive: &Path, stop: &AtomicBool) -> Load {
    let mut load = Load {
        name,
        rounds: 0,
        failed: None,
    };
    if let Err(error) = fs::create_dir(own) {
        load.failed = Some(error.to_string());
        return load;
    }
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = work(own, archive) {
            load.failed = Some(format!("{error:#}"));
            break;
        }
        load.rounds += 1;
    }
    load
}

/// Looks at two names every now and then: one that nobody has asked for, and a file.
fn stand_by(own: &Path, stop: &AtomicBool) -> Result<(Latency, Latency)> {
    let file = own.join("bystander");
    fs::write(&file, "b")?;
    let (mut lookups, mut stats) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let found = fs::metadata(own.join(format!("absent-{}", lookups.len())));
        lookups.push(begin.elapsed());
        ensure!(found.is_err(), "a file that nobody made is there");
        let begin = Instant::now();
        fs::metadata(&file)?;
        stats.push(begin.elapsed());
        thread::sleep(PAUSE);
    }
    Ok((latency(lookups), latency(stats)))
}

fn resident_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = kib.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// The inode numbers of a process's TCP sockets that are connected.
fn connections(pid: u32) -> BTreeSet<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let links = links.filter_map(|link| fs::read_link(link.path()).ok());
    let own: BTreeSet<String> = links
        .filter_map(|to| {
            let to = to.to_str()?.strip_prefix("socket:[")?;
            Some(to.trim_end_matches(']').to_owned())
        })
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let connected = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // 01 is ESTABLISHED.
        (fields.get(3) == Some(&"01")).then(|| fields.get(9).copied().unwrap_or("").to_owned())
    });
    connected.filter(|inode| own.contains(inode)).collect()
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next();
    first.and_then(|f| f.parse().ok()).unwrap_or(f64::NAN)
}

/// The loads, each of which needs its program.
fn loads() -> Result<[(&'static str, Work); 5]> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    for program in ["dbench", "fio", "tar"] {
        let mut dirs = std::env::split_paths(&paths);
        ensure!(
            dirs.any(|dir| dir.join(program).exists()),
            "{program} is missing, and is part of the load: install the package {program}"
        );
    }
    Ok([
        ("dbench", dbench),
        ("fio", fio),
        ("tar", untar),
        ("names-1", names),
        ("names-2", names),
    ])
}

/// All loads on one mounted target.
fn on(
    target: &Target,
    mounted: &Mounted,
    log: &Path,
    archive: &Path,
    minutes: u64,
) -> Result<Mixed> {
    let pid = mounted.pid().context("only a mount can be looked at")?;
    let own = mounted.dir.join("scratch").join("mixed");
    let _ = fs::remove_dir_all(&own);
    fs::create_dir(&own)?;
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let mut resident = Vec::new();
    let mut averages = Vec::new();
    let mut seen = BTreeSet::new();
    let works = loads()?;
    let (loads, bystander) = thread::scope(|scope| {
        let workers: Vec<_> = works
            .into_iter()
            .map(|(name, work)| {
                let (own, stop) = (own.join(name), &stop);
                scope.spawn(move || repeat(name, work, &own, archive, stop))
            })
            .collect();
        let bystander = scope.spawn(|| stand_by(&own, &stop));
        for second in 0..minutes * 60 {
            thread::sleep(Duration::from_secs(second + 1).saturating_sub(begin.elapsed()));
            seen.append(&mut connections(pid));
            if second % 60 == 59 {
                resident.push(resident_mib(pid));
                averages.push(load_average());
            }
        }
        stop.store(true, Ordering::Relaxed);
        let bystander = bystander.join();
        let loads: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        (loads, bystander)
    });
    let loads = loads
        .into_iter()
        .map(|load| load.map_err(|_| anyhow::anyhow!("a load panicked")))
        .collect::<Result<Vec<_>>>()?;
    let (lookup, stat) = bystander.map_err(|_| anyhow::anyhow!("the bystander panicked"))??;
    fs::remove_dir_all(&own)?;
    let usage = mounted.usage();
    thread::sleep(REST);
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    Ok(Mixed {
        target: target.name.clone(),
        minutes,
        loads,
        lookup,
        stat,
        resident_mib: resident,
        peak_mib: usage.peak_bytes as f64 / f64::from(1 << 20),
        rested_mib: resident_mib(pid),
        connections: seen.len(),
        log_lines: lines.len(),
        log: lines
            .iter()
            .rev()
            .take(20)
            .rev()
            .map(|line| (*line).to_owned())
            .collect(),
        cpu_seconds: usage.cpu_seconds,
        load_average: averages,
    })
}

/// Runs the mixed load on each target for so many minutes, and prints what was seen.
pub(crate) fn report(
    targets: &[Target],
    mounts: &Path,
    data: &Path,
    shrink: usize,
    minutes: u64,
    json: bool,
) -> Result<()> {
    // Of the exported data, by their own path: reading it is not part of the load.
    let files = workload::archives(shrink).max().unwrap_or(1);
    let archive = data.join(format!("tree-{files}.tar")).canonicalize()?;
    let mut reports = Vec::new();
    for target in targets {
        let point: PathBuf = mounts.join(format!("{}-mixed", target.name));
        let mounted = target.mount(&point, data)?;
        let log = point.with_extension("log");
        let result = on(target, &mounted, &log, &archive, minutes);
        drop(mounted);
        let _ = fs::remove_dir(&point);
        reports.push(result.with_context(|| format!("the mixed load on {}", target.name))?);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        reports.iter().for_each(print);
    }
    let failed: Vec<_> = reports
        .iter()
        .flat_map(|report| report.loads.iter().map(move |load| (report, load)))
        .filter_map(|(report, load)| {
            Some(format!(
                "{}: {}: {}",
                report.target,
                load.name,
                load.failed.as_ref()?
            ))
        })
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

fn print(report: &Mixed) {
    println!("{}, {} minutes", report.target, report.minutes);
    for load in &report.loads {
        let failed = load.failed.as_deref().unwrap_or("");
        println!("  {:<10} {} rounds {failed}", load.name, load.rounds);
    }
    for (what, of) in [("a new name", report.lookup), ("a file", report.stat)] {
        println!(
            "  stat of {what}: median {:.2} ms, 99 of 100 within {:.1} ms, at most {:.0} ms ({} times)",
            of.median_ms, of.p99_ms, of.most_ms, of.count
        );
    }
    let minutes: Vec<String> = report
        .resident_mib
        .iter()
        .map(|m| format!("{m:.0}"))
        .collect();
    println!(
        "  memory, MiB: {}; peak {:.0}; {:.0} after {} s of rest",
        minutes.join(" "),
        report.peak_mib,
        report.rested_mib,
        REST.as_secs()
    );
    let averages: Vec<String> = report
        .load_average
        .iter()
        .map(|l| format!("{l:.0}"))
        .collect();
    println!(
        "  {} connections, {} lines logged, {:.0} s of CPU; load averages {}",
        report.connections,
        report.log_lines,
        report.cpu_seconds,
        averages.join(" ")
    );
    report.log.iter().for_each(|line| println!("  | {line}"));
}
