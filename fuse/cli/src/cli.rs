//! The command line: parses `nfsrdma COMMAND` by clap, and the calls of mount(8) and umount(8) as
//! `mount.nfsrdma` and `umount.nfsrdma`. [`wrong`] replaces clap's error texts.

mod arguments;
mod examine;
mod helper;
mod wrong;

pub use arguments::{MountArgs, UnmountArgs};
pub use examine::{BenchArgs, By, DoctorArgs, Intervals, ProfileArgs};
pub use wrong::NoCommand;

use arguments::{CliOptions, join, our_type};
use clap::{Args, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wrong::number;

/// The word of the command that makes a Kerberos context.
pub(crate) const GSS_HELPER: &str = "gss-helper";

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Mount(MountArgs),
    /// `mount --dead`.
    MountDead,
    Unmount(UnmountArgs),
    Exports(ServerArgs),
    Ping(ServerArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
    Stats(StatsArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Log(LogArgs),
    Trace(TraceArgs),
    Profile(ProfileArgs),
    Capture(CaptureArgs),
    Upgrade(UpgradeArgs),
    Fstab(FstabArgs),
    /// Go on with the mount of a process that has ended, or that is to end when this one is ready
    /// (`beside`); its holder is at this descriptor. Not in the help: holders run it.
    Serve {
        held: RawFd,
        beside: bool,
    },
    /// Make a Kerberos context for the process at standard input. Not in the help: that process runs
    /// it.
    GssHelper,
    /// Prepare the mounts for the sleep of this machine, or, `after` it, connect anew. Not in the help: a
    /// hook of systemd runs it.
    Sleep {
        after: bool,
    },
    /// Print the names that `-o` accepts, one on each line, for tests and scripts. Not in the help.
    ListOptions,
}

/// The arguments of `exports` and `ping`: a server and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerArgs {
    pub server: OsString,
    pub options: String,
    pub verbose: u8,
}

/// The arguments of `stats`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatsArgs {
    /// One mount, or all mounts if `None`.
    pub dir: Option<PathBuf>,
    pub form: StatsForm,
    /// With the options in force in the table of all mounts.
    pub verbose: bool,
    /// Repeat with this interval.
    pub watch: Option<Duration>,
}

/// `top`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TopArgs {
    /// Only these mounts (all by default)
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub intervals: Intervals,
    /// Show which users and processes load the servers (on a terminal also by the key u)
    #[arg(short, long)]
    pub users: bool,
    /// Print plain text, a block for each interval, also on a terminal
    #[arg(short, long)]
    pub batch: bool,
}

/// `metrics`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct MetricsArgs {
    /// Where to serve: ADDRESS:PORT, PORT (on 127.0.0.1) or unix:/PATH
    #[arg(short, long, value_name = "WHERE")]
    pub listen: crate::options::MetricsAt,
}

/// `log`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LogArgs {
    /// The mount
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// From now on, log events of this level and of graver ones; 'default' is the level that
    /// the mount began with. Without LEVEL the level in force is shown
    #[arg(value_name = "LEVEL", value_parser = crate::mount::log::LEVELS)]
    pub level: Option<String>,
}

/// `upgrade`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct UpgradeArgs {
    /// The mount
    #[arg(value_name = "DIR", required_unless_present = "all")]
    pub dir: Option<PathBuf>,
    /// All mounts that can be upgraded; each of the others is named with the reason
    #[arg(short, long, conflicts_with = "dir")]
    pub all: bool,
}

/// `fstab`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct FstabArgs {
    /// The line, as one argument or as its fields; - for lines from standard input
    #[arg(value_name = "LINE", required = true, allow_hyphen_values = true)]
    pub line: Vec<OsString>,
}

/// How `stats` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StatsForm {
    #[default]
    Text,
    Json,
    /// The format of /proc/self/mountstats.
    Mountstats,
    Prometheus,
}

/// `trace`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TraceArgs {
    /// The mount
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// One JSON object on each line
    #[arg(long)]
    pub json: bool,
    /// Show only these procedures, separated by commas (READ,WRITE), also GETACL and SETACL, and of
    /// NLM LOCK, UNLOCK, TEST and CANCEL; OTHER stands for calls of other programs
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = crate::observe::procedure
    )]
    pub procedure: Vec<u32>,
    /// Show only calls that end with an error
    #[arg(long)]
    pub errors: bool,
    /// Show only calls that take at least MS milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0,
        hide_default_value = true,
        allow_negative_numbers = true,
        value_parser = |text: &str| {
            number::<u32>(text, 0..=u32::MAX.into(), ("milliseconds", "--slow 100"))
        }
    )]
    pub slow: u32,
    /// Print a line also when a call is sent, not only when it has ended
    #[arg(long, conflicts_with_all = ["errors", "slow"])]
    pub sent: bool,
}

/// `capture`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CaptureArgs {
    /// The mount
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Where to write the packets; - for standard output
    #[arg(value_name = "FILE.pcapng")]
    pub file: PathBuf,
    /// Record at most N bytes of each message and of each chunk's data (all of them by default)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = snapshot)]
    pub snaplen: Option<u32>,
    /// End after N seconds
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = |text: &str| {
        number::<u32>(text, 1..=u32::MAX.into(), ("seconds", "--seconds 10"))
    })]
    pub seconds: Option<u32>,
    /// End after N packets
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = |text: &str| {
        number::<u64>(text, 1..=u64::MAX, ("packets", "--packets 1000"))
    })]
    pub packets: Option<u64>,
    /// End when the file has N bytes, or NK, NM, NG
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = size)]
    pub size: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    crate::options::size::parse_size(text).ok_or_else(|| {
        "it takes a number of bytes, or one with K, M or G, for example --size 100M".to_owned()
    })
}

/// Parses `--snaplen`. Less than 64 bytes would cut transport headers.
fn snapshot(text: &str) -> Result<u32, String> {
    crate::options::size::parse_size(text)
        .and_then(|size| u32::try_from(size).ok())
        .filter(|size| *size >= 64)
        .ok_or_else(|| {
            "it takes a number of bytes, at least 64, for example --snaplen 256".to_owned()
        })
}

/// NFSv3 over RDMA in user space
#[derive(Debug, Parser)]
#[command(name = "nfsrdma", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Mount an NFSv3 export over RDMA
    #[command(
        after_help = "Options (-o) have their nfs(5) names; docs/CONFIGURATION.md has them all.\n\
        Exit status: 0 mounted, 1 wrong usage or not permitted, 2 this system lacks something, \
        8 interrupted, 32 the mount failed."
    )]
    Mount(CliMount),
    /// Unmount
    Umount(CliUnmount),
    /// List what a server exports
    Exports(CliServer),
    /// Test a server step by step
    Ping(CliServer),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
    /// Show what a mount is doing, or list all mounts
    ///
    /// Without DIR it prints a table with a row for each mount, and for each attempt to mount that
    /// is still going on.
    Stats(CliStats),
    /// Watch all mounts: rates, latencies, credits, caches
    ///
    /// On a terminal it draws a screen, and updates it: q ends it, p shows the procedures of a
    /// mount, u its users and processes, c its connections. Otherwise it prints plain text.
    Top(TopArgs),
    /// Serve the metrics of all mounts of this host for Prometheus
    Metrics(MetricsArgs),
    /// Show or change how much a mount logs
    Log(LogArgs),
    /// Show a mount's calls as they happen
    ///
    /// It prints a line for each call that has ended, for each retransmission, and for each
    /// connection made or lost, until the mount ends or another process goes on with it. Times are UTC.
    Trace(TraceArgs),
    Profile(ProfileArgs),
    /// Record a mount's RPC-over-RDMA traffic for Wireshark
    ///
    /// With every transport the file shows the traffic as iWARP over TCP, which Wireshark dissects.
    /// The messages are those of the connection; TCP and MPA frames, RDMA Reads and RDMA Writes
    /// are reconstructed from the messages of both sides. The file contains the data of all files
    /// that any user reads or writes meanwhile.
    Capture(CaptureArgs),
    /// Exchange the program that serves a mount for the one that is installed now
    ///
    /// Open files, directories and calls go on: they wait for a moment. It needs a mount with restart=, which starts the program
    /// at the path that it had when it was mounted. If the new program cannot go on with the mount, or if not
    /// everything that programs have written gets to the server in time, the old one serves on.
    #[command(
        after_help = "Exit status: 0 upgraded, with --all also if there is nothing to upgrade; 1 wrong usage, not permitted, \
        or a mount without restart=; 32 not upgraded, with --all one of them."
    )]
    Upgrade(UpgradeArgs),
    /// Translate an fstab line of the kernel's NFS client
    ///
    /// It prints the line to use in /etc/fstab instead of LINE, which is a line of fstab(5) or of
    /// /proc/mounts with the type nfs, or a command of mount(8), and reports on standard error what
    /// it leaves out. Lines that do not ask for RDMA are printed as they are, and so are those from
    /// standard input that cannot be translated.
    Fstab(FstabArgs),
}

#[derive(Debug, Args)]
struct CliMount {
    /// SERVER:/EXPORT, [IPV6]:/EXPORT or nfs://SERVER[:PORT]/EXPORT
    #[arg(value_name = "SERVER:/EXPORT", required = true)]
    spec: Option<OsString>,
    /// Where to mount it
    #[arg(value_name = "DIR", required = true)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    common: CliOptions,
    /// Mount again all mounts of /etc/fstab whose process has ended; no other argument is allowed
    #[arg(long, exclusive = true)]
    dead: bool,
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    foreground: bool,
    /// Mount read-only (-o ro)
    #[arg(short, long, conflicts_with = "read_write")]
    read_only: bool,
    /// Mount read-write (-o rw, the default)
    #[arg(short = 'w', long = "rw")]
    read_write: bool,
    /// Accepted for mount(8); there is no /etc/mtab to write
    #[arg(short, long)]
    no_mtab: bool,
    /// Ignore options that are not known (-o sloppy)
    #[arg(short, long)]
    sloppy: bool,
    /// Write the log to FILE instead of syslog; SIGHUP opens it anew
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Accepted if it is nfsrdma, as mount(8) has it
    #[arg(short = 't', long = "types", value_name = "TYPE", hide = true, value_parser = our_type)]
    _type: Option<String>,
}

#[derive(Debug, Args)]
struct CliUnmount {
    /// The mount, or its SERVER:/EXPORT
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Give up calls that wait for the server
    #[arg(short, long)]
    force: bool,
    /// Detach the mount now; its process ends when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
    /// Print each step
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Args)]
struct CliServer {
    /// Host name or address; ping also accepts SERVER:/EXPORT
    #[arg(value_name = "SERVER")]
    server: OsString,
    #[command(flatten)]
    common: CliOptions,
}

#[derive(Debug, Args)]
struct CliStats {
    /// The mount; all of them by default
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON document; with --watch one on each line
    #[arg(long, conflicts_with_all = ["mountstats", "prometheus"])]
    json: bool,
    /// Print the format of /proc/self/mountstats, for 'mountstats -f FILE'
    #[arg(long, conflicts_with = "prometheus")]
    mountstats: bool,
    /// Print Prometheus text
    #[arg(long)]
    prometheus: bool,
    /// Show the options of all mounts, too (with DIR they always are)
    #[arg(short, long)]
    verbose: bool,
    /// Print again every SECONDS (2 by default); text shows the changes since, with rates
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        allow_negative_numbers = true,
        value_parser = |text: &str| number::<u32>(text, 1..=86400, ("seconds", "--watch 5"))
    )]
    watch: Option<u32>,
}

impl From<CliStats> for StatsArgs {
    fn from(args: CliStats) -> Self {
        StatsArgs {
            dir: args.dir,
            verbose: args.verbose,
            form: match (args.json, args.mountstats, args.prometheus) {
                (true, _, _) => StatsForm::Json,
                (_, true, _) => StatsForm::Mountstats,
                (_, _, true) => StatsForm::Prometheus,
                _ => StatsForm::Text,
            },
            watch: args
                .watch
                .map(|seconds| Duration::from_secs(seconds.into())),
        }
    }
}

impl From<CliUnmount> for UnmountArgs {
    fn from(args: CliUnmount) -> Self {
        UnmountArgs {
            dir: args.dir,
            force: args.force,
            lazy: args.lazy,
            read_only: false,
            verbose: args.verbose,
            namespace: None,
        }
    }
}

impl From<CliServer> for ServerArgs {
    fn from(args: CliServer) -> Self {
        ServerArgs {
            server: args.server,
            options: args.common.options.join(","),
            verbose: args.common.verbose,
        }
    }
}

/// Reports a blank after a comma in the options. The shell then passes the rest of the options as
/// one more argument, and clap would only report an unexpected argument.
fn check_blanks(arguments: &[OsString]) -> Result<(), NoCommand> {
    for three in arguments.windows(3) {
        let [flag, options, next] = three else {
            continue;
        };
        let (flag, options, next) = (
            flag.to_string_lossy(),
            options.to_string_lossy(),
            next.to_string_lossy(),
        );
        if matches!(&*flag, "-o" | "--options") && options.ends_with(',') && !next.starts_with('-')
        {
            return Err(NoCommand::Wrong(format!(
                "no blanks between options: write -o {options}{next}"
            )));
        }
    }
    Ok(())
}

/// Reports `mount DIR`, which is a call of mount(8).
fn check_source(arguments: &[OsString]) -> Result<(), NoCommand> {
    match arguments {
        [_, command, dir] if command == "mount" && Path::new(dir).is_absolute() => {
            let dir = dir.to_string_lossy();
            Err(NoCommand::Wrong(format!(
                "SERVER:/EXPORT is missing: write 'mount {dir}' for the line of {dir} in /etc/fstab, or nfsrdma mount \
                 SERVER:/EXPORT {dir}"
            )))
        }
        _ => Ok(()),
    }
}

/// The name by which the program was called, for messages.
pub fn program_name(arguments: &[OsString]) -> String {
    arguments
        .first()
        .and_then(|name| Path::new(name).file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|| "nfsrdma".into())
}

/// The clap command, for man pages and completions.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Parses a whole command line, including `argv[0]`.
pub fn parse(arguments: Vec<OsString>) -> Result<Command, NoCommand> {
    check_blanks(&arguments)?;
    check_source(&arguments)?;
    parse_as_clap(arguments).map_err(|error| NoCommand::of(&command(), error))
}

fn parse_as_clap(arguments: Vec<OsString>) -> Result<Command, clap::Error> {
    let name = program_name(&arguments);
    if matches!(name.as_str(), "mount.nfsrdma" | "mount.fuse.nfsrdma") {
        return helper::mount(arguments).map(Command::Mount);
    }
    if matches!(name.as_str(), "umount.nfsrdma" | "umount.fuse.nfsrdma") {
        return helper::unmount(arguments).map(Command::Unmount);
    }
    if matches!(&arguments[..], [_, only] if only == "list-options") {
        return Ok(Command::ListOptions);
    }
    if matches!(&arguments[..], [_, only] if only == GSS_HELPER) {
        return Ok(Command::GssHelper);
    }
    if let [_, sleep, when] = &arguments[..]
        && sleep == "sleep"
        && (when == "pre" || when == "post")
    {
        let after = when == "post";
        return Ok(Command::Sleep { after });
    }
    if let [_, serve, how, fd, ..] = &arguments[..]
        && serve == "serve"
        && (how == "--held" || how == "--beside")
        && let Some(held) = fd.to_str().and_then(|fd| fd.parse().ok())
    {
        let beside = how == "--beside";
        return Ok(Command::Serve { held, beside });
    }
    let cli = Cli::try_parse_from(with_command(arguments))?;
    Ok(match cli.command {
        CliCommand::Mount(CliMount { dead: true, .. }) => Command::MountDead,
        CliCommand::Mount(args) => {
            let flags = [
                (args.read_only, "ro"),
                (args.read_write, "rw"),
                (args.sloppy, "sloppy"),
            ];
            Command::Mount(MountArgs {
                options: join(&args.common, &flags),
                // clap refuses a command without them.
                spec: args.spec.unwrap_or_default(),
                dir: args.dir.unwrap_or_default(),
                foreground: args.foreground,
                verbose: args.common.verbose,
                fake: false,
                log: args.log,
                helper: false,
                namespace: None,
            })
        }
        CliCommand::Umount(args) => Command::Unmount(args.into()),
        CliCommand::Exports(args) => Command::Exports(args.into()),
        CliCommand::Ping(args) => Command::Ping(args.into()),
        CliCommand::Doctor(args) => Command::Doctor(args),
        CliCommand::Bench(args) => Command::Bench(args),
        CliCommand::Stats(args) => Command::Stats(args.into()),
        CliCommand::Top(args) => Command::Top(args),
        CliCommand::Metrics(args) => Command::Metrics(args),
        CliCommand::Log(args) => Command::Log(args),
        CliCommand::Trace(args) => Command::Trace(args),
        CliCommand::Profile(args) => Command::Profile(args),
        CliCommand::Capture(args) => Command::Capture(args),
        CliCommand::Upgrade(args) => Command::Upgrade(args),
        CliCommand::Fstab(args) => Command::Fstab(args),
    })
}

/// For the type `fuse.nfsrdma`, mount.fuse(8) runs `nfsrdma SPEC DIR -o OPTIONS`, without a
/// command. This inserts `mount`. A colon identifies SPEC, since no command has one in its name.
fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_spec = |word: &OsStr| {
        let word = word.to_string_lossy();
        !word.starts_with('-') && word.contains(':')
    };
    if arguments.get(1).is_some_and(|word| is_spec(word)) {
        arguments.insert(1, "mount".into());
    }
    arguments
}

#[cfg(test)]
mod tests;
