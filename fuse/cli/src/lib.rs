//! The program: its command line, its mount options, and a mount from its command to its end.
//!
//! [`cli`] parses the words of the command line. Each command is a function: those that watch
//! mounts are in [`stats`], [`top`] and [`observe`], the others in [`commands`]. [`mount`] has the
//! parts of a mount, including the process that serves it; [`ipc`] is how commands talk to that
//! process; [`kerberos`] makes contexts for the users of a mount; [`mounts`] reads the kernel's table, in which they
//! find the mount. A command fails with
//! a [`Failure`]: a sentence for people and an exit status for mount(8).

mod bench;
pub mod cli;
mod commands;
mod doctor;
pub mod failure;
pub mod holder;
mod ipc;
pub mod kerberos;
mod mount;
pub mod mounts;
mod nearest;
pub mod observe;
pub mod options;
pub mod output;
mod path_mtu;
pub mod stats;
mod top;
mod user_file;

use cli::{Command, MountArgs};
use failure::{Exit, Failure};
use options::mount_source::MountSource;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

// Cargo unifies the features of all packages that it builds in one call.
const _: () = assert!(
    !nfsrdma_fs::UNDER_SHUTTLE,
    "the feature `shuttle` is for tests/models: build the package nfsrdma-models by itself"
);

/// Runs the program: takes the arguments, including `argv[0]`, and returns the exit status.
pub fn main(arguments: Vec<OsString>) -> u8 {
    let name = cli::program_name(&arguments);
    let usage = match arguments.get(1) {
        Some(command) if command == "doctor" => doctor::WRONG_USAGE,
        _ => Exit::Usage,
    };
    let command = match cli::parse(arguments) {
        Ok(command) => command,
        Err(cli::NoCommand::Help(help)) => {
            // If standard output or error is closed, there is nothing to be done about it.
            let _ = help.print();
            return if help.use_stderr() { usage as u8 } else { 0 };
        }
        Err(cli::NoCommand::Wrong(sentence)) => {
            output::message(format_args!("{name}: {sentence}"));
            return usage as u8;
        }
    };
    match run(&name, &command) {
        Ok(()) => 0,
        Err(failure) => {
            output::message(format_args!("{name}: {failure}"));
            failure.lines.iter().for_each(output::message);
            failure.exit as u8
        }
    }
}

/// Enters the mount namespace that mount(8) was told (`-N`). mount(8) does not run its helper in
/// that namespace, but passes it on as a file. Must be called while there is only one thread.
fn enter(namespace: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = namespace else {
        return Ok(());
    };
    File::open(path)
        .and_then(|file| {
            let mounts = Some(LinkNameSpaceType::Mount);
            Ok(move_into_link_name_space(file.as_fd(), mounts)?)
        })
        .map_err(|error| {
            Failure::usage(format!(
                "cannot enter the mount namespace {}: {error}; -N takes the file of one, such as /proc/PID/ns/mnt, and \
                 needs CAP_SYS_ADMIN",
                path.display()
            ))
        })
}

/// Refuses a host name. Resolving it would use the namespace's nsswitch.conf, which names libraries
/// that would then run in this process.
fn needs_no_names(args: &MountArgs) -> Result<(), Failure> {
    let source = MountSource::parse(&args.spec)?.host;
    let words = options::split(&args.options);
    let others = words.iter().filter_map(|word| match word.split_once('=') {
        Some(("mounthost" | "mountaddr", host)) => Some(host),
        _ => None,
    });
    for host in std::iter::once(&*source).chain(others) {
        let address = host.split('%').next().unwrap_or_default();
        if address.parse::<IpAddr>().is_err() {
            return Err(Failure::usage(format!(
                "-N takes no names of servers, since they would be looked up in that namespace: write the address of \
                 {host} instead"
            )));
        }
    }
    Ok(())
}

fn run(name: &str, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Mount(args) => {
            if args.namespace.is_some() {
                needs_no_names(args)?;
            }
            enter(args.namespace.as_deref())?;
            if let Some(line) = commands::mount::run(args, |text| {
                output::message(format_args!("{name}: {text}"));
            })? {
                output::notice(line);
            }
            Ok(())
        }
        Command::Serve { held, beside } => commands::serve::run(*held, *beside),
        Command::MountDead => commands::dead::run(),
        Command::Unmount(args) => {
            enter(args.namespace.as_deref())?;
            commands::unmount::run(args)
        }
        Command::Exports(args) => commands::server::exports(args),
        Command::Ping(args) => commands::server::ping(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Top(args) => top::run(args),
        Command::Metrics(args) => stats::metrics::run(args),
        Command::Log(args) => commands::log::run(args),
        Command::Trace(args) => observe::trace::run(args),
        Command::Profile(args) => observe::profile::run(args),
        Command::Capture(args) => observe::capture::run(args),
        Command::Upgrade(args) => commands::upgrade::run(args),
        Command::Fstab(args) => commands::fstab::run(args),
        Command::Sleep { after } => commands::sleep::run(*after),
        Command::GssHelper => kerberos::helper::run(),
        Command::ListOptions => {
            let lines: String = options::table::names()
                .map(|(name, kind)| format!("{kind} {name}\n"))
                .collect();
            output::result(&lines).map(drop)
        }
    }
}
