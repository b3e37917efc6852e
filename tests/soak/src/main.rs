//! `nfsrdma-soak run` makes random operations on real mounts of the responder, while that is killed
//! and stopped and the network in between fails. All data that is read is compared with a model,
//! the client's use of resources is watched, and nothing may be left at the end. `nfsrdma-soak
//! proxy` is the failing network alone.

mod fault;
mod load;
mod proxy;
mod run;
mod stand;
mod sys;
mod tree;
mod watch;
mod worker;

use anyhow::{Result, ensure};
use clap::Parser;
use std::io::BufRead;
use std::net::SocketAddr;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about = "Load on real mounts under faults of server and network, compared with a model")]
enum Arguments {
    /// Run a load
    Run(run::Options),
    /// A TCP proxy that fails by commands on its standard input
    ///
    /// Prints "ready port=PORT". Commands: cut, reset, refuse, accept, or two words, for the
    /// bytes to the server and for those from it: pass, stall, swallow, drip, delay, corrupt,
    /// hole. Each is answered by "done". Ends with its input.
    Proxy {
        /// Where the server is
        #[arg(long)]
        to: SocketAddr,
    },
    #[command(hide = true)]
    Worker(worker::Task),
}

fn proxy(to: SocketAddr) -> Result<()> {
    let proxy = proxy::Proxy::start(to)?;
    println!("ready port={}", proxy.port);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        ensure!(proxy.command(&line), "`{line}` is no command");
        println!("done");
    }
    Ok(())
}

fn main() -> ExitCode {
    let result = match Arguments::parse() {
        Arguments::Run(options) => run::run(&options),
        Arguments::Proxy { to } => proxy(to),
        Arguments::Worker(task) => worker::run(&task),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}
