//! Compares calls on several mounts of one server, and on its own side, with what close-to-open
//! permits. See README.md.

mod call;
mod content;
mod executor;
mod map;
mod oracle;
mod run;
mod signals;
mod stand;
mod variant;
mod watch;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use stand::Given;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use variant::Variant;

/// Several mounts of one server in an order that a seed repeats, judged by an oracle.
#[derive(Debug, Clone, Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Options {
    #[command(subcommand)]
    command: Option<Other>,

    /// Where nfsrdma and nfsrdma-responder are
    #[arg(long, value_name = "DIR", required_unless_present_any = ["at", "remote"])]
    bin: Option<PathBuf>,

    /// Starts no server: NAME works in DIR, a mount that is there already; the name `server` is
    /// for the exported directory itself. May be given again
    #[arg(long, value_name = "NAME=DIR", conflicts_with_all = ["bin", "variant", "mounts"])]
    at: Vec<String>,

    /// The same elsewhere, by `nfsrdma-clients serve`; may be given again
    #[arg(long, value_name = "NAME=HOST:PORT", conflicts_with_all = ["bin", "variant", "mounts"])]
    remote: Vec<String>,

    /// This mount is of Linux's own client, which promises less (README.md); may be given again
    #[arg(long, value_name = "NAME")]
    linux: Vec<String>,

    /// This mount opens with O_DIRECT; may be given again
    #[arg(long, value_name = "NAME")]
    direct: Vec<String>,

    /// Changes of a file within this time may have the same times at the server
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    tick: u64,

    /// Calls one at a time, or several at a time, which needs mounts of this machine
    /// [default: runs of both, one-by-one where mounts are given]
    #[arg(long, value_enum)]
    mode: Option<Mode>,

    /// System calls of one run, or rounds of them
    #[arg(long, value_name = "N", default_value_t = 400)]
    calls: usize,

    /// The first run's seed; the next runs have the next ones
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Of which server; may be given again [default: all of them in turn]
    #[arg(long, value_name = "NAME")]
    variant: Vec<String>,

    /// Mounts of it
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    mounts: u8,

    /// Further options of the mounts [default: several in turn]; those of mounts that are there
    /// already, which tell how long names are trusted [default: the defaults]
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,

    /// Runs of each variant
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u64,

    /// Go on with further seeds for this long instead
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,

    /// Say each call
    #[arg(long, short)]
    verbose: bool,

    /// Take EIO for ESTALE of a file that is gone (0.1.0 has it), to see what else differs
    #[arg(long)]
    eio_when_gone: bool,

    /// Go on after a difference
    #[arg(long)]
    keep_going: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    OneByOne,
    Overlapping,
}

#[derive(Debug, Clone, Subcommand)]
enum Other {
    /// Makes the calls of runs elsewhere, in one directory; one connection after the other.
    /// Whoever connects may do with the files of the directory what this process may
    Serve {
        /// Where connections are accepted; port 0 takes a free one
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
        listen: SocketAddr,

        /// The directory
        dir: PathBuf,
    },
}

/// A run that takes longer gets a line of output.
const SLOW: Duration = Duration::from_secs(20);

/// The mount options, which runs use alternately.
const MOUNT_OPTIONS: &[&str] = &["", "actimeo=1", "noac", "cache=16M,dirty=1M"];

fn main() -> ExitCode {
    let options = Options::parse();
    // A process that serves calls needs no handler: signals just end it.
    if options.command.is_none()
        && let Err(error) = signals::catch()
    {
        eprintln!("nfsrdma-clients: {error}");
        return ExitCode::from(2);
    }
    let result = match &options.command {
        Some(Other::Serve { listen, dir }) => serve(*listen, dir).map(|()| 0),
        None => run_all(&options),
    };
    match result {
        Ok(_) if signals::caught() => ExitCode::from(130),
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nfsrdma-clients: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn serve(listen: SocketAddr, dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        bail!("{} is no directory", dir.display());
    }
    let listener = TcpListener::bind(listen).with_context(|| format!("listening at {listen}"))?;
    println!("listening at {}", listener.local_addr()?);
    executor::serve(&listener, dir)
}

/// The variants of the server to run.
fn variants_of(options: &Options, given: &Given) -> Result<Vec<&'static Variant>> {
    let mut variants = Vec::new();
    for name in &options.variant {
        match variant::ALL.iter().find(|v| v.name == name) {
            Some(variant) => variants.push(variant),
            None => bail!("no variant is called {name}"),
        }
    }
    if !given.is_empty() {
        variants.push(&variant::GIVEN);
    } else if variants.is_empty() {
        variants.extend(variant::ALL);
    }
    Ok(variants)
}

/// Prints the number of calls of each kind for each variant.
fn print_totals(variants: &[(&Variant, bool)], totals: &[Vec<(&str, u64)>]) {
    for ((variant, overlapping), counts) in variants.iter().zip(totals) {
        let sum: u64 = counts.iter().map(|(_, count)| count).sum();
        let each: Vec<String> = counts.iter().map(|(n, c)| format!("{n} {c}")).collect();
        let mode = match overlapping {
            true => ", overlapping",
            false => "",
        };
        println!("{}{mode}: {sum} calls ({})", variant.name, each.join(", "));
    }
}

fn run_all(options: &Options) -> Result<u64> {
    let given = Given {
        at: options.at.clone(),
        remote: options.remote.clone(),
        linux: options.linux.clone(),
        direct: options.direct.clone(),
        tick: options.tick,
    };
    let variants = variants_of(options, &given)?;
    let until = options
        .minutes
        .map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let more = |round: u64| match until {
        _ if signals::caught() => false,
        Some(until) => Instant::now() < until,
        None => round < options.runs,
    };
    let modes = match options.mode {
        Some(Mode::OneByOne) => vec![false],
        Some(Mode::Overlapping) => vec![true],
        None if !given.is_empty() => vec![false],
        None => vec![false, true],
    };
    let variants: Vec<_> = variants
        .into_iter()
        .flat_map(|variant| modes.iter().map(move |overlapping| (variant, *overlapping)))
        .collect();
    let mut totals: Vec<Vec<(&str, u64)>> = vec![Vec::new(); variants.len()];
    let (mut passed, mut failed, mut round) = (0, 0, 0);
    while more(round) {
        for (n, (variant, overlapping)) in variants.iter().enumerate() {
            if !more(round) && until.is_some() || signals::caught() {
                break;
            }
            let seed = options.seed + round;
            let mount_options = match &options.options {
                Some(options) => options.as_str(),
                None if !given.is_empty() => "",
                None => MOUNT_OPTIONS[(seed as usize) % MOUNT_OPTIONS.len()],
            };
            let plan = run::Plan {
                bin: options.bin.as_deref().unwrap_or(Path::new("")),
                given: &given,
                variant,
                seed,
                calls: options.calls,
                mounts: options.mounts.into(),
                options: mount_options,
                verbose: options.verbose,
                overlapping: *overlapping,
                eio_when_gone: options.eio_when_gone,
            };
            let begin = Instant::now();
            let (counts, result) = run::run(&plan)?;
            let took = begin.elapsed();
            if took > SLOW {
                println!("slow: {} s for {plan:?}", took.as_secs());
            }
            for (name, count) in counts {
                match totals[n].iter_mut().find(|(known, _)| *known == name) {
                    Some((_, total)) => *total += count,
                    None => totals[n].push((name, count)),
                }
            }
            match result {
                Ok(()) => passed += 1,
                Err(difference) => {
                    failed += 1;
                    println!("{difference}");
                    if !options.keep_going {
                        break;
                    }
                }
            }
        }
        if failed > 0 && !options.keep_going {
            break;
        }
        round += 1;
    }
    print_totals(&variants, &totals);
    println!("{passed} passed, {failed} failed, 0 skipped");
    Ok(failed)
}
