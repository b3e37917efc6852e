//! What mounting and unmounting take from the command line, whether called as a command or as the
//! helper of mount(8) and umount(8).

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// `mount`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountArgs {
    pub spec: OsString,
    pub dir: PathBuf,
    /// All `-o` joined by commas; `-r`, `-w`, `-s` are among them.
    pub options: String,
    pub foreground: bool,
    pub verbose: u8,
    /// Check everything that needs no server, and mount nothing.
    pub fake: bool,
    /// Where the log goes instead of syslog.
    pub log: Option<PathBuf>,
    /// Say nothing when all is well, as helpers of mount(8) do.
    pub quiet: bool,
    /// The mount namespace to be entered first (`mount -N`).
    pub namespace: Option<PathBuf>,
}

/// `umount`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnmountArgs {
    pub dir: PathBuf,
    pub force: bool,
    pub lazy: bool,
    pub verbose: u8,
    /// The mount namespace to be entered first (`umount -N`).
    pub namespace: Option<PathBuf>,
}

/// The type of file system that mount(8) is given.
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

/// All `-o`, and the flags that stand for options, joined by commas.
pub(super) fn join(common: &CliOptions, flags: &[(bool, &str)]) -> String {
    let set = flags.iter().filter(|(on, _)| *on).map(|&(_, name)| name);
    let mut words: Vec<&str> = common.options.iter().map(String::as_str).collect();
    words.extend(set);
    words.join(",")
}
