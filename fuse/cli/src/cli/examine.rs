//! The arguments of the commands that examine a mount or a server.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Find out what is wrong with this machine, a server, or a mount
///
/// It goes through what a mount needs, in order, and prints a line for each check: ok, warn, fail
/// or skip, what was found, and the remedy. Without an argument it looks at this machine alone. It
/// changes nothing at the server unless --write is given.
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
