//! The program: command line, mount options, and a mount from its command to its end.

pub mod cli;
mod connect;
pub mod control;
mod control_client;
pub mod daemon;
pub mod exit_watch;
pub mod failure;
mod fstab;
pub mod fuse_mount;
mod locking;
pub mod log;
mod log_level;
mod mount;
mod mount_list;
pub mod mount_source;
pub mod mounts;
mod nearest;
mod nfsmount_conf;
pub mod observe;
pub mod options;
pub mod output;
mod pending;
mod privileges;
pub mod provider;
mod remount;
mod server;
mod service;
pub mod settings;
pub mod size;
pub mod sockets;
pub mod stats;
mod summary;
mod sync;
mod top;
mod unmount;
mod utab;

use cli::Command;
use failure::{Exit, Failure};
use std::ffi::OsString;

// What Cargo builds in one call has the features of all that it builds.
const _: () = assert!(
    !nfsrdma_fs::UNDER_SHUTTLE,
    "the feature `shuttle` is for tests/models: build the package nfsrdma-models by itself"
);

/// The whole program: arguments (`argv[0]` included) in, exit status out.
pub fn main(arguments: Vec<OsString>) -> u8 {
    let name = cli::program_name(&arguments);
    let command = match cli::parse(arguments) {
        Ok(command) => command,
        Err(error) => {
            let wrong = error.use_stderr();
            // Nobody reads: nothing to do about it.
            let _ = error.print();
            return if wrong { Exit::Usage as u8 } else { 0 };
        }
    };
    match run(&name, &command) {
        Ok(()) => 0,
        Err(failure) => {
            output::message(format_args!("{name}: {failure}"));
            failure.exit as u8
        }
    }
}

fn run(name: &str, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Mount(args) => {
            if let Some(line) = mount::run(args, |text| {
                output::message(format_args!("{name}: {text}"));
            })? {
                output::notice(line);
            }
            Ok(())
        }
        Command::Unmount(args) => unmount::run(args),
        Command::Exports(args) => server::exports(args),
        Command::Ping(args) => server::ping(args),
        Command::Stats(args) => stats::run(args),
        Command::Top(args) => top::run(args),
        Command::Metrics(args) => stats::metrics::run(args),
        Command::Log(args) => log_level::run(args),
        Command::Trace(args) => observe::trace::run(args),
        Command::Capture(args) => observe::capture::run(args),
        Command::Fstab(args) => fstab::run(args),
        Command::ListOptions => {
            let names = options::table::entries().map(|entry| (entry.name, entry.kind()));
            let lines: String = names
                .map(|(name, kind)| format!("{kind} {name}\n"))
                .collect();
            output::result(lines.as_bytes()).map(drop)
        }
    }
}
