//! Command lines of `mount.nfsrdma` and `umount.nfsrdma`, as mount(8) and umount(8) call them.

use super::arguments::{CliOptions, MountArgs, UnmountArgs, join, our_type};
use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;

/// How mount(8) calls `mount.nfsrdma`: there `-f` means "fake", so the foreground is `-F`.
#[derive(Debug, Parser)]
#[command(name = "mount.nfsrdma", version)]
struct HelperMount {
    /// SERVER:/EXPORT
    #[arg(value_name = "SERVER:/EXPORT")]
    spec: OsString,
    /// Where to mount it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    common: CliOptions,
    /// Check, do not mount
    #[arg(short, long)]
    fake: bool,
    /// Stay in the foreground and log to standard error
    #[arg(short = 'F', long)]
    foreground: bool,
    /// Mount read-only
    #[arg(short)]
    read_only: bool,
    /// Mount read-write
    #[arg(short = 'w')]
    read_write: bool,
    /// Accepted
    #[arg(short)]
    no_mtab: bool,
    /// Pass over options that are not known
    #[arg(short)]
    sloppy: bool,
    /// The type mount(8) was asked for
    #[arg(short = 't', value_name = "TYPE", value_parser = our_type)]
    _type: Option<String>,
    /// The mount namespace to mount in: mount(8) enters it for itself only
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
}

/// How umount(8) calls `umount.nfsrdma`.
#[derive(Debug, Parser)]
#[command(name = "umount.nfsrdma", version)]
struct HelperUnmount {
    /// The mount
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Give up calls that wait for the server
    #[arg(short)]
    force: bool,
    /// Lazily
    #[arg(short)]
    lazy: bool,
    /// Accepted
    #[arg(short)]
    no_mtab: bool,
    /// Make it read-only if it is in use
    #[arg(short)]
    read_only: bool,
    /// Say more
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The type
    #[arg(short = 't', value_name = "TYPE")]
    _type: Option<String>,
    /// The mount namespace that it is in
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
}

/// Parses the arguments of `mount.nfsrdma`.
pub(super) fn mount(arguments: Vec<OsString>) -> Result<MountArgs, clap::Error> {
    let args = HelperMount::try_parse_from(arguments)?;
    let flags = [
        (args.read_only, "ro"),
        (args.read_write, "rw"),
        (args.sloppy, "sloppy"),
    ];
    Ok(MountArgs {
        options: join(&args.common, &flags),
        spec: args.spec,
        dir: args.dir,
        foreground: args.foreground,
        verbose: args.common.verbose,
        fake: args.fake,
        log: None,
        helper: true,
        namespace: args.namespace,
    })
}

/// Parses the arguments of `umount.nfsrdma`.
pub(super) fn unmount(arguments: Vec<OsString>) -> Result<UnmountArgs, clap::Error> {
    let args = HelperUnmount::try_parse_from(arguments)?;
    Ok(UnmountArgs {
        dir: args.dir,
        force: args.force,
        lazy: args.lazy,
        read_only: args.read_only,
        verbose: args.verbose,
        namespace: args.namespace,
    })
}

#[cfg(test)]
pub(super) fn check_commands() {
    <HelperMount as clap::CommandFactory>::command().debug_assert();
    <HelperUnmount as clap::CommandFactory>::command().debug_assert();
}
