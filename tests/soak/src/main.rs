//! `nfsrdma-soak proxy` is a network that fails, for the load of tests/soak/run and the tests of
//! tests/system/reliability.

mod proxy;

use anyhow::{Result, ensure};
use clap::Parser;
use std::io::BufRead;
use std::net::SocketAddr;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about = "A network that fails by command")]
enum Arguments {
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
    let Arguments::Proxy { to } = Arguments::parse();
    match proxy(to) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}
