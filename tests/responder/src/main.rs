//! `nfsrdma-responder`: see `--help`.

use anyhow::{Context, Result};
use clap::Parser;
use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_rdma::Provider;
use nfsrdma_responder::control::Control;
use nfsrdma_responder::fs::handle::Key;
use nfsrdma_responder::fs::{self, FileSystem, Mapping};
use nfsrdma_responder::lock;
use nfsrdma_responder::options::{Options, Switch, Transport};
use nfsrdma_responder::rdma;
use nfsrdma_responder::rpc::gss::{Gss, Kerberos};
use nfsrdma_responder::rpc::{Ports, Security};
use nfsrdma_responder::server::{self, Server};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfsrdma-responder: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .init();
    // Before any thread starts, so that none is interrupted and no signal is missed.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    // Files get exactly the modes that clients ask for.
    rustix::process::umask(rustix::fs::Mode::empty());
    let open_files = open_files(OPEN_FILES);
    let fs = FileSystem::new(fs::Settings {
        exports: options.export_specs().map_err(anyhow::Error::msg)?,
        key: key(&options)?,
        mapping: Mapping {
            privileged: rustix::process::geteuid().is_root(),
            root_squash: options.root_squash,
            anonymous: (65534, 65534),
        },
        rtmax: options.rtmax,
        wtmax: options.wtmax,
        max_file_size: options.max_file_size,
        fake_unstable: options.fake_unstable,
        cache_size: open_files,
        variants: options.variants(),
    })?;
    let doors = options.odd.contains(&rdma::Habit::UnknownTypes);
    nfsrdma_responder::fs::DOORS.store(doors, std::sync::atomic::Ordering::Relaxed);
    let tcp = options.tcp_address();
    let beside = |port| SocketAddr::new(tcp.ip(), port);
    let settings = server::Settings {
        rdma_address: Some(options.rdma_address()),
        nfs_address: Some(tcp),
        mount_address: options.mount_port.map(beside),
        portmap_address: options.portmap_port.map(beside),
        no_acl: options.no_acl,
        locks: lock::Settings {
            off: options.no_locks,
            policy: options.lock_policy(),
            client_lock_port: options.client_lock_port,
            state_dir: options.state_dir.clone(),
        },
        rdma: rdma::Settings {
            credits: options.credits,
            inline: options.inline,
            invalidate: options.send_invalidate == Switch::On,
            reads: 16,
            rtmax: options.rtmax,
            wtmax: options.wtmax,
            timeout: Duration::from_secs(10),
            apart: options.transport == Transport::Verbs,
            sealed: options.with_gss(),
            odd: rdma::Odd::new(&options.odd),
        },
        // Each waiting call occupies a thread.
        workers: match options.may_wait() {
            false => options.workers as usize,
            true => options.workers.max(64) as usize,
        },
        max_connections: options.max_connections,
        drc: options.drc,
        failing: options.fail.clone(),
        security: Arc::new(security(&options)?),
    };
    let server = Server::start(fs, settings, Some(provider(&options)?))?;
    for delaying in &options.delay {
        server.service().script.delay(*delaying);
    }
    let control = match &options.control {
        Some(path) => Some(
            Control::listen(path, server.remote())
                .with_context(|| format!("--control {}", path.display()))?,
        ),
        None => None,
    };
    ready(&options, server.ports())?;
    let signal = signals.forever().next();
    tracing::info!(?signal, "stopping");
    drop(control);
    // Release held calls, since no commands can do so any more.
    server.service().script.clear();
    server.stop();
    Ok(())
}

fn security(options: &Options) -> Result<Security> {
    let gss = match options.with_gss() {
        true => {
            let kerberos = Kerberos::new(options.keytab.as_deref()).context("--sec")?;
            Some(Gss::new(Box::new(kerberos), options.gss()))
        }
        false => None,
    };
    Ok(Security {
        flavors: options.sec.clone(),
        gss,
    })
}

fn provider(options: &Options) -> Result<Arc<dyn Provider>> {
    match options.transport {
        Transport::Iwarp => Ok(Arc::new(IwarpProvider::new(IwarpOptions {
            crc: options.crc,
            mpa_revision: options.mpa_revision,
            ..IwarpOptions::default()
        }))),
        #[cfg(feature = "verbs")]
        Transport::Verbs => Ok(Arc::new(nfsrdma_verbs::Verbs::new())),
        #[cfg(not(feature = "verbs"))]
        Transport::Verbs => anyhow::bail!(
            "this build has no verbs provider; build with --features verbs, or use --transport iwarp"
        ),
    }
}

/// Reports that the server is ready.
fn ready(options: &Options, ports: Ports) -> Result<()> {
    let line = [
        ("rdma", ports.rdma),
        ("nfs", ports.nfs),
        ("mount", ports.mount),
        ("portmap", ports.portmap),
        ("lock", ports.lock),
        ("status", ports.lock),
    ]
    .into_iter()
    .filter_map(|(name, port)| Some(format!(" {name}={}", port?)))
    .fold("ready".to_string(), |line, port| line + &port);
    if options.print_ports {
        println!("{line}");
        std::io::stdout().flush()?;
    } else {
        eprintln!("nfsrdma-responder: {line}");
    }
    Ok(())
}

/// The key of file handles. It is kept if that is possible.
fn key(options: &Options) -> Result<Key> {
    let (dir, asked) = match &options.state_dir {
        Some(dir) => (dir.clone(), true),
        None => (default_state_dir(), false),
    };
    let kept = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .and_then(|()| Key::load_or_make(&dir));
    match kept {
        Ok(key) => Ok(key),
        Err(error) if !asked => {
            tracing::warn!(%error, dir = %dir.display(), "file handles will not survive a restart");
            Ok(Key::random()?)
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot keep the key in {}", dir.display()))
        }
    }
}

fn default_state_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/nfsrdma-responder".into();
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    state
        .or(home)
        .unwrap_or_else(std::env::temp_dir)
        .join("nfsrdma-responder")
}

/// Files and directories kept open between calls.
const OPEN_FILES: usize = 4096;

/// Raises the limit of descriptors. Returns how many objects may be kept open: each has up to three
/// descriptors, and half of the limit is for everything else.
fn open_files(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let most = now.map_or(usize::MAX, |n| n as usize / 6);
    wanted.clamp(1, most.max(16))
}
