//! The differential test. Several users make the same random system calls on a mount and on a local
//! file system side by side; results, data and state are compared after each call.
//!
//! The *driver* chooses the calls (`generate.rs`), sends each to the two worker processes of a user
//! (`worker.rs`), one on each tree, and compares their replies (`compare.rs`). Calls are made one
//! at a time, so both trees see the same history. After some thousand calls a new directory is
//! begun: such an *epoch* does not depend on earlier ones, and is run again with fewer and fewer
//! calls to find those that cause a difference (`session.rs`). Differences that are no defects have
//! rows in `accepted.rs`.

mod accepted;
mod acl_attribute;
mod acls;
mod call;
mod compare;
mod generate;
mod history;
mod listing;
mod observe;
mod permission;
mod program;
mod session;
mod stand;
mod sys;
mod worker;

use anyhow::{Context, Result, ensure};
use call::Step;
use clap::{Parser, Subcommand};
use generate::Generator;
use session::Session;
use stand::Stand;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Random system calls on a mount and on a local file system, compared. Start it by
/// tests/differential/run, which gives it namespaces of its own.
#[derive(Debug, Parser)]
#[command(name = "nfsrdma-differential")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run
    Run(Run),
    /// A user's process, for the driver
    #[command(hide = true)]
    Worker { uid: u32, gid: u32, groups: String },
    /// Print the differences that are accepted, and why
    Accepted,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Where nfsrdma and nfsrdma-responder are
    #[arg(long, value_name = "DIR")]
    bin: PathBuf,
    /// Repeats the choices of an earlier run; each seed is one test
    #[arg(long, value_name = "SEED", default_values_t = [1, 2, 3, 4])]
    seed: Vec<u64>,
    /// Calls for each seed
    #[arg(long, value_name = "N", default_value_t = 25_000)]
    calls: u64,
    /// Users: root and up to three others
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=4))]
    users: u8,
    /// Calls between two beginnings in a new directory
    #[arg(long, value_name = "N", default_value_t = 1500)]
    epoch: usize,
    /// Mount options, with commas
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    options: String,
    /// An argument for the responder; may be given again
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    responder: Vec<String>,
    /// Where the trees are, rather than in a file system in memory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seconds to look for a shorter history of each new difference; 0: do not look
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    shrink: u64,
    /// Seconds after which no further call is made; what was not run is skipped
    #[arg(long, value_name = "SECONDS", default_value_t = 7200)]
    limit: u64,
    /// Write each history found to a file in this directory
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Run the histories in these files instead of random ones
    #[arg(long, value_name = "FILE")]
    replay: Vec<PathBuf>,
    /// Leave out the calls of this name (as in the output); may be given again
    #[arg(long, value_name = "CALL")]
    without: Vec<String>,
    /// Set no access control lists
    #[arg(long)]
    no_acl: bool,
    /// Print how often each call was made, and how often it succeeded
    #[arg(long)]
    counts: bool,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Task::Worker { uid, gid, groups } => {
            let groups = groups
                .split(',')
                .filter_map(|group| group.parse().ok())
                .collect();
            worker::main(uid, gid, groups).map(|()| true)
        }
        Task::Accepted => {
            accepted::print();
            Ok(true)
        }
        Task::Run(run) => run.main(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nfsrdma-differential: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The differences of all seeds, by their signatures.
type Classes = BTreeMap<String, u64>;

impl Run {
    fn main(&self) -> Result<bool> {
        ensure!(
            std::process::id() == 1,
            "it runs as the first process of a PID namespace: start it by tests/differential/run"
        );
        let stand = Stand::new(
            &self.bin,
            self.dir.as_deref(),
            &self.options,
            &self.responder,
        )?;
        let begin = Instant::now();
        let end = begin + Duration::from_secs(self.limit);
        let mut session = Session::new(&stand, usize::from(self.users))?;
        let mut classes = Classes::new();
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        let mut note = |name: String, outcome: Result<Option<bool>>| {
            let word = match outcome {
                Ok(Some(true)) => (passed += 1, "passed".to_owned()).1,
                Ok(Some(false)) => (failed += 1, "FAILED".to_owned()).1,
                Ok(None) => (skipped += 1, "skipped".to_owned()).1,
                Err(error) => (failed += 1, format!("FAILED: {error:#}:")).1,
            };
            println!("{word:<8} {name}");
        };
        if !self.no_acl && !session.acls() {
            let what = "access control lists, which this local file system does not have:";
            note(what.into(), Ok(None));
        }
        for file in &self.replay {
            note(
                file.display().to_string(),
                self.replay(&mut session, file, &mut classes).map(Some),
            );
        }
        for &seed in self.seed.iter().filter(|_| self.replay.is_empty()) {
            let result = self.seed(&mut session, seed, end, &mut classes);
            let left = match result {
                Ok(None) => format!(": no time left of {} s", self.limit),
                _ => String::new(),
            };
            note(
                format!(
                    "seed {seed}, {} calls, {:.1} s{left}",
                    session.calls,
                    begin.elapsed().as_secs_f32()
                ),
                result,
            );
        }
        for (signature, count) in &classes {
            println!("difference, {count} times: {signature}");
        }
        for (row, count) in &session.accepted {
            println!("accepted, {count} times: {row}");
        }
        if self.counts {
            for (call, (made, good)) in &session.succeeded {
                println!("{call}: {made} calls, {good} succeeded");
            }
        }
        drop(session);
        note("unmounting".into(), stand.end().map(|()| Some(true)));
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        Ok(failed == 0)
    }

    fn replay(
        &self,
        session: &mut Session<'_>,
        file: &PathBuf,
        classes: &mut Classes,
    ) -> Result<bool> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let steps: Vec<Step> = text
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        let mut rest = steps.iter();
        let epoch = session.run(|_, _| rest.next().cloned())?;
        for (at, difference) in &epoch.found {
            let signature = difference.signature();
            let count = classes.entry(signature.clone()).or_default();
            *count += 1;
            if *count == 1 {
                self.report(
                    session,
                    &file.display().to_string(),
                    &epoch.steps[..*at],
                    difference,
                    &signature,
                )?;
            }
        }
        Ok(epoch.found.is_empty())
    }

    /// Makes all calls of a seed. `None` if there was not enough time.
    fn seed(
        &self,
        session: &mut Session<'_>,
        seed: u64,
        end: Instant,
        classes: &mut Classes,
    ) -> Result<Option<bool>> {
        let mut choices = nfsrdma_test_support::Random::new(seed);
        let (mut good, mut made) = (true, 0);
        while made < self.calls {
            if Instant::now() > end {
                return Ok(if good { None } else { Some(false) });
            }
            let mut generator = Generator::new(choices.number(), usize::from(self.users))
                .without(&self.without)
                .with_acls(!self.no_acl && session.acls())
                .for_server_checks(session.server_checks());
            let most = self.epoch.min((self.calls - made) as usize);
            let beginning = history::beginning();
            let first = beginning.len();
            let epoch = session.run(|feedback, n| match n {
                n if n < first => Some(beginning[n].clone()),
                n if n < first + most => Some(generator.step(feedback)),
                _ => None,
            })?;
            // Calls that were left out after a difference are not made later.
            made += most as u64;
            for (at, difference) in &epoch.found {
                good = false;
                let signature = difference.signature();
                let count = classes.entry(signature.clone()).or_default();
                *count += 1;
                if *count == 1 {
                    self.report(
                        session,
                        &format!("seed {seed}"),
                        &epoch.steps[..*at],
                        difference,
                        &signature,
                    )?;
                }
            }
        }
        Ok(Some(good))
    }

    /// Prints a new difference, with the shortest history that can be found.
    fn report(
        &self,
        session: &mut Session<'_>,
        source: &str,
        steps: &[Step],
        difference: &compare::Difference,
        signature: &str,
    ) -> Result<()> {
        println!("--- {source}: {signature}");
        let limit = Duration::from_secs(self.shrink);
        let shorter = match self.shrink {
            0 => None,
            _ => session.shrink(steps, signature, limit)?,
        };
        match &shorter {
            Some(shorter) => show(shorter, difference),
            None => {
                println!(
                    "the last calls of {} (not seen again, or not tried):",
                    steps.len()
                );
                show(&steps[steps.len().saturating_sub(12)..], difference);
            }
        }
        if let Some(dir) = &self.save {
            fs::create_dir_all(dir)?;
            let name: String = signature
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                .collect();
            let lines = shorter
                .as_deref()
                .unwrap_or(steps)
                .iter()
                .map(serde_json::to_string);
            fs::write(
                dir.join(format!("{name}.json")),
                lines.collect::<Result<Vec<_>, _>>()?.join("\n"),
            )?;
        }
        Ok(())
    }
}

fn show(steps: &[Step], difference: &compare::Difference) {
    for step in steps {
        let (uid, ..) = history::USERS[step.user % history::USERS.len()];
        println!("    uid {uid:<5} {:?}", step.call);
    }
    if let Some(last) = steps.last()
        && difference.observed
    {
        println!(
            "    seen by uid {}",
            history::USERS[last.observer % history::USERS.len()].0
        );
    }
    println!("    {}: mount {:?}", difference.field, difference.mount);
    println!("    {}: local {:?}", difference.field, difference.local);
}
