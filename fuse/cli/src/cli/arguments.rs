//! The arguments of mounting and unmounting, which are the same for the commands `mount` and
//! `umount` and for the helpers that mount(8) and umount(8) run.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// The arguments of `mount`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountArgs {
    pub spec: OsString,
    pub dir: PathBuf,
    /// The values of all `-o` options and the flags `-r`, `-w` and `-s`, joined by commas.
    pub options: String,
    pub foreground: bool,
    pub verbose: u8,
    /// Make all checks that need no server, and do not mount.
    pub fake: bool,
    /// The log file to use instead of syslog.
    pub log: Option<PathBuf>,
    /// As the helper of mount(8): prints nothing on success, and nothing is wrong with what is mounted already.
    pub helper: bool,
    /// The mount namespace to enter first (`mount -N`).
    pub namespace: Option<PathBuf>,
}

/// The arguments of `umount`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnmountArgs {
    pub dir: PathBuf,
    pub force: bool,
    pub lazy: bool,
    /// Make a mount that is in use read-only (`umount -r`).
    pub read_only: bool,
    pub verbose: u8,
    /// The mount namespace to enter first (`umount -N`).
    pub namespace: Option<PathBuf>,
}

/// Accepts the type `-t` that mount(8) was given, if it is the type of this program.
pub(super) fn our_type(text: &str) -> Result<String, String> {
    match text {
        "nfsrdma" | "fuse.nfsrdma" | "fuse" => Ok(text.to_owned()),
        "nfs" | "nfs4" => Err(format!(
            "it is the kernel's client: use 'mount -t {text}' for it, or leave -t out here"
        )),
        _ => Err("this program mounts the type nfsrdma: leave -t out".to_owned()),
    }
}

/// Options that all calls understand.
#[derive(Debug, Args)]
pub(super) struct CliOptions {
    /// Mount options, separated by commas; may be given more than once
    #[arg(short, long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub(super) options: Vec<String>,
    /// Log and print more (level debug); given twice, log each call (level trace)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
}

/// Joins all `-o` values, and the flags that stand for options, by commas.
pub(super) fn join(common: &CliOptions, flags: &[(bool, &str)]) -> String {
    let set = flags.iter().filter(|(on, _)| *on).map(|&(_, name)| name);
    let mut words: Vec<&str> = common.options.iter().map(String::as_str).collect();
    words.extend(set);
    words.join(",")
}
