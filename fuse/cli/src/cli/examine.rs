//! The arguments of the commands that examine a mount or a server.

use super::wrong::number;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Find out what is wrong with this machine, a server, or a mount
///
/// It goes through what a mount needs, in order, and prints a line for each check: ok, warn, fail
/// or skip, what was found, and the remedy. Without an argument it looks at this machine and asks its mounts.
/// It changes nothing at the server unless --write is given.
#[derive(Debug, Clone, PartialEq, Eq, Default, Args)]
#[command(
    after_help = "Exit status: 0 nothing is wrong, 1 a check warns or fails, 2 wrong usage, or the bundle cannot be written."
)]
pub struct DoctorArgs {
    /// A mount, or a server with or without an export
    #[arg(value_name = "DIR|SERVER:/EXPORT")]
    pub target: Option<OsString>,
    /// Mount options, separated by commas; may be given more than once. A mount's own by default
    #[arg(short, long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub options: Vec<String>,
    /// Also write a file of 1 MiB in the root of the export and remove it: shows the server's clock,
    /// and whether large writes arrive
    #[arg(long)]
    pub write: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Also write a tar.gz for a bug report: the checks, the statistics of all mounts, and what this
    /// system is. It has no keys and no data; hosts, addresses and paths are replaced by words
    #[arg(long, value_name = "FILE.tar.gz")]
    pub bundle: Option<PathBuf>,
    /// Keep hosts, addresses and paths in the bundle, and add the log, which names files
    #[arg(long, requires = "bundle")]
    pub names: bool,
}

/// Measure a mount, and say what limits it
///
/// It writes and reads in a directory of its own in DIR, which it removes, also when it is
/// interrupted: large data, small pieces, synchronised writes, and small files. Then it makes the
/// same calls to the server without the kernel and FUSE, which is what the link and the server allow, and
/// compares. It takes less than two minutes.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(
    after_help = "Exit status: 0 measured, 1 wrong usage, 8 interrupted, 32 DIR cannot be used."
)]
pub struct BenchArgs {
    /// A mount, or a directory in one
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Take seconds, with rougher figures
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// How often a command shows something, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Intervals {
    /// Seconds between two updates
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2, allow_negative_numbers = true,
        value_parser = |text: &str| number::<u32>(text, 1..=3600, ("seconds", "--delay 5")))]
    pub delay: u32,
    /// End after COUNT intervals
    #[arg(short = 'n', long, value_name = "COUNT", allow_negative_numbers = true,
        value_parser = |text: &str| number::<u64>(text, 1..=u64::MAX, ("intervals", "-n 10")))]
    pub count: Option<u64>,
}

impl Intervals {
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_secs(self.delay.into())
    }

    /// Whether `shown` are all.
    pub(crate) fn are_over(&self, shown: u64) -> bool {
        self.count.is_some_and(|count| shown >= count)
    }
}

/// Show who loads the server of a mount: users, processes, procedures and paths
///
/// It counts the calls that reach the server, from a trace, and prints tables after each interval, with what
/// takes the most of the server's time first. While it does not run, nothing is counted.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ProfileArgs {
    /// The mount
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Show only these tables, separated by commas
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub by: Vec<By>,
    #[command(flatten)]
    pub intervals: Intervals,
    /// Rows of each table
    #[arg(short, long, value_name = "ROWS", default_value_t = 10, allow_negative_numbers = true,
        value_parser = |text: &str| number::<u32>(text, 1..=1000, ("rows", "--rows 20")))]
    pub rows: u32,
    /// Print one JSON document on each line
    #[arg(long)]
    pub json: bool,
}

/// What calls are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    User,
    Process,
    Operation,
    Path,
}

impl By {
    pub(crate) const ALL: [By; 4] = [By::User, By::Process, By::Operation, By::Path];

    pub(crate) fn name(self) -> &'static str {
        match self {
            By::User => "user",
            By::Process => "process",
            By::Operation => "operation",
            By::Path => "path",
        }
    }
}
