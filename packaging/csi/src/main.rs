//! The program `nfsrdma-csi`.

use anyhow::Context;
use clap::Parser;
use nfsrdma_csi::{Driver, serve};
use std::path::PathBuf;

/// CSI driver: volumes of containers by nfsrdma
///
/// It serves the Identity, Node and Controller services of the Container Storage Interface on a Unix socket. docs/CSI.md
/// describes the volumes.
#[derive(Debug, Parser)]
#[command(name = "nfsrdma-csi", version)]
struct Arguments {
    /// The socket, as a path or as unix:PATH
    #[arg(long, value_name = "SOCKET")]
    endpoint: String,
    /// What the orchestrator calls this node
    #[arg(long, value_name = "NAME")]
    node_id: String,
    /// The command that is run as `nfsrdma`, in words separated by spaces
    #[arg(long, value_name = "COMMAND", default_value = "nfsrdma")]
    program: String,
    /// Options of every mount; those of a volume come after them
    #[arg(short, long, value_name = "OPTIONS", default_value = "")]
    options: String,
    /// Where exports are mounted for a moment, to make and delete volumes
    #[arg(long, value_name = "DIR", default_value = "/run/nfsrdma-csi")]
    work_dir: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let socket = arguments.endpoint.strip_prefix("unix:");
    let socket = socket.unwrap_or(&arguments.endpoint);
    // unix:PATH and unix:///PATH are the same (gRPC's naming).
    let socket = match socket.strip_prefix("//") {
        Some(rest) => PathBuf::from(rest),
        None => PathBuf::from(socket),
    };
    anyhow::ensure!(
        socket.is_absolute(),
        "--endpoint {} names no absolute path: use unix:/DIR/csi.sock",
        arguments.endpoint
    );
    let driver = Driver::new(
        &arguments.program,
        &arguments.options,
        &arguments.node_id,
        &arguments.work_dir,
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("the driver cannot start its threads")?;
    let served = runtime.block_on(serve(driver, &socket));
    // Calls that still wait for a mount are left to the programs that make it.
    runtime.shutdown_background();
    served
}
