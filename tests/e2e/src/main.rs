//! Checks a mounted file system: `nfsrdma-e2e --mounted DIR` runs cases in a new directory under
//! DIR by ordinary system calls and programs. With `--direct` (the exported directory itself) it
//! also compares the data at the server. The mount may be one of any client, so the same checks can
//! run on the kernel's client.

mod cases;
mod fill;
mod place;
mod sys;
mod tree;

use anyhow::{Context, Result, bail};
use clap::Parser;
use place::Place;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Parser, Debug)]
#[command(about = "Check a mounted file system by system calls and programs")]
struct Arguments {
    /// Directory of the mounted file system to work in.
    #[arg(long, required_unless_present = "list")]
    mounted: Option<PathBuf>,
    /// The same directory where the server keeps it, to compare.
    #[arg(long)]
    direct: Option<PathBuf>,
    /// Case to run (may be given several times; all but the long ones otherwise).
    #[arg(long = "case")]
    cases: Vec<String>,
    /// Also run the long cases.
    #[arg(long)]
    long: bool,
    /// Divides the number of files and operations, for a matrix of small runs.
    #[arg(long, default_value_t = 1)]
    shrink: usize,
    /// Seed of the random choices; printed, so that a failure can be repeated.
    #[arg(long)]
    seed: Option<u64>,
    /// Print the cases and end.
    #[arg(long)]
    list: bool,
}

fn run(case: &cases::Case, arguments: &Arguments, seed: u64) -> Result<()> {
    let base = arguments
        .mounted
        .as_deref()
        .context("--mounted is required")?;
    let name = format!("e2e-{}-{}", case.name, std::process::id());
    let place = Place {
        mounted: base.join(&name),
        direct: arguments.direct.as_ref().map(|d| d.join(&name)),
        shrink: arguments.shrink.max(1),
        seed,
    };
    std::fs::create_dir(&place.mounted)
        .with_context(|| format!("mkdir {}", place.mounted.display()))?;
    let result = (case.run)(&place);
    let removed = std::fs::remove_dir_all(&place.mounted)
        .with_context(|| format!("removing {}", place.mounted.display()));
    result.and(removed)?;
    if let Some(direct) = &place.direct
        && direct.exists()
    {
        bail!("{} is still there at the server", direct.display());
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let all = cases::all();
    if arguments.list {
        for case in &all {
            println!(
                "{:<12} {}{}",
                case.name,
                case.what,
                if case.long { " (long)" } else { "" }
            );
        }
        return Ok(());
    }
    for name in &arguments.cases {
        if !all.iter().any(|c| c.name == name) {
            bail!("no case is called `{name}`; --list names them");
        }
    }
    let seed = arguments
        .seed
        .unwrap_or_else(nfsrdma_test_support::Random::any_seed);
    let mut passed = 0;
    let mut failed = 0;
    let mut skipped = 0;
    for case in &all {
        let wanted = if arguments.cases.is_empty() {
            !case.long || arguments.long
        } else {
            arguments.cases.iter().any(|n| n == case.name)
        };
        if !wanted {
            continue;
        }
        let begin = Instant::now();
        match run(case, &arguments, seed) {
            Ok(()) => {
                passed += 1;
                println!(
                    "ok      {:<12} {:.1} s",
                    case.name,
                    begin.elapsed().as_secs_f64()
                );
            }
            Err(error) if error.downcast_ref::<sys::Skipped>().is_some() => {
                skipped += 1;
                println!("skipped {:<12} {error:#}", case.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {:<12} (seed {seed}) {error:#}", case.name);
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}
