//! The command line.

use crate::fs::ExportSpec;
use crate::rpc::Failing;
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// What carries RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    Iwarp,
    Verbs,
}

/// Serve directories by NFSv3 over RDMA (soft-iWARP) and over TCP.
///
/// MOUNT is served on the RDMA port and on every TCP port, portmap and rpcbind on every TCP
/// port; a registration with the system's rpcbind is not needed. Meant for tests, benchmarks
/// and trying things out: changes of directories are not forced to disk (see
/// --sync-metadata).
#[derive(Debug, Clone, Parser)]
#[command(name = "nfsrdma-responder", version)]
pub struct Options {
    /// Directory to export; /NAME=DIR exports it under that name
    #[arg(value_name = "[/NAME=]DIR", required_unless_present = "export")]
    pub exports: Vec<OsString>,

    /// Directory to export, as above; may be given again
    #[arg(long, value_name = "[/NAME=]DIR")]
    pub export: Vec<OsString>,

    /// Where NFS and MOUNT over RDMA listen; port 0 takes a free one
    /// [default: 127.0.0.1:20049]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,

    /// Where NFS and MOUNT over TCP listen; port 0 takes a free one [default: the address of
    /// --listen, port 2049]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub tcp: Option<SocketAddr>,

    /// Listen on ::1 instead of 127.0.0.1 where no address is given
    #[arg(long)]
    pub ipv6: bool,

    /// Another port for --listen
    #[arg(long, value_name = "PORT")]
    pub rdma_port: Option<u16>,

    /// Another port for --tcp
    #[arg(long, value_name = "PORT")]
    pub nfs_port: Option<u16>,

    /// A port of its own for MOUNT, at the address of --tcp
    #[arg(long, value_name = "PORT")]
    pub mount_port: Option<u16>,

    /// A port for portmap and rpcbind, at the address of --tcp (clients ask port 111)
    #[arg(long, value_name = "PORT")]
    pub portmap_port: Option<u16>,

    /// Serve TCP only
    #[arg(long, conflicts_with_all = ["no_tcp", "listen", "rdma_port"])]
    pub no_rdma: bool,

    /// Serve RDMA only
    #[arg(long, conflicts_with_all = ["tcp", "nfs_port", "mount_port", "portmap_port"])]
    pub no_tcp: bool,

    /// When ready, print "ready rdma=PORT nfs=PORT mount=PORT portmap=PORT" (those served)
    #[arg(long)]
    pub print_ports: bool,

    /// When ready, write that line to this inherited descriptor and close it
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<i32>,

    /// Where the key of file handles is kept; handles are good after a restart with the same
    /// directory [default: /var/lib/nfsrdma-responder for root, else under ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Credits granted: RPCs a client may have under way on an RDMA connection
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub credits: u32,

    /// Inline threshold in both directions, in bytes, a multiple of 1024
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = inline)]
    pub inline: u32,

    /// Largest READ, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u32).range(512..=1 << 20))]
    pub rtmax: u32,

    /// Largest WRITE, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u32).range(512..=1 << 20))]
    pub wtmax: u32,

    /// Largest size of a file, in bytes [default: what each export's file system takes]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
    pub max_file_size: Option<u64>,

    /// What carries RDMA: soft-iWARP over TCP, or a device of this machine (only in a build with
    /// the feature `verbs`)
    #[arg(long, value_name = "iwarp|verbs", default_value = "iwarp")]
    pub transport: Transport,

    /// Protect soft-iWARP by CRC32c even if the client does not ask
    #[arg(long)]
    pub crc: bool,

    /// Use Send With Invalidate towards clients that want it
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub send_invalidate: Switch,

    /// Time a completion thread spins before it sleeps, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub spin: u64,

    /// Refuse every change
    #[arg(long)]
    pub read_only: bool,

    /// Make uid 0 and gid 0 of clients anonymous
    #[arg(long, overrides_with = "no_root_squash")]
    pub root_squash: bool,

    /// Leave uid 0 of clients what it is (the default)
    #[arg(long, overrides_with = "root_squash")]
    pub no_root_squash: bool,

    /// The anonymous user, also for calls without a credential
    #[arg(long, value_name = "UID", default_value_t = 65534)]
    pub anon_uid: u32,

    /// The anonymous group
    #[arg(long, value_name = "GID", default_value_t = 65534)]
    pub anon_gid: u32,

    /// Calls remembered to recognise those that come twice; 0 remembers none
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub drc: usize,

    /// Force changes of directories to disk before they are answered
    #[arg(long)]
    pub sync_metadata: bool,

    /// Hold UNSTABLE data in memory until COMMIT, so that killing the server loses them
    #[arg(long)]
    pub fake_unstable: bool,

    /// Delay every NFS call, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub delay_ms: u64,

    /// Answer calls of an NFS procedure with an error instead of running them, or run them
    /// and lose the reply (LOST); the first COUNT of them, or all. May be given again
    #[arg(long, value_name = "PROCEDURE=STATUS|LOST[:COUNT]")]
    pub fail: Vec<Failing>,

    /// Threads for calls that take long
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,

    /// Connections at a time, RDMA and TCP together
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_connections: usize,

    /// Files and directories kept open between calls
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub open_files: usize,
}

fn inline(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n @ 1024..=262_144) if n % 1024 == 0 => Ok(n),
        _ => Err("a multiple of 1024 from 1024 to 262144 is wanted".into()),
    }
}

impl Options {
    /// The exports; an error is a sentence.
    pub fn export_specs(&self) -> Result<Vec<ExportSpec>, String> {
        self.exports
            .iter()
            .chain(&self.export)
            .map(export)
            .collect()
    }

    fn loopback(&self) -> IpAddr {
        match self.ipv6 {
            true => Ipv6Addr::LOCALHOST.into(),
            false => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Where to listen for RDMA.
    pub fn rdma_address(&self) -> Option<SocketAddr> {
        let default = SocketAddr::new(self.loopback(), 20049);
        let mut address = self.listen.unwrap_or(default);
        address.set_port(self.rdma_port.unwrap_or(address.port()));
        (!self.no_rdma).then_some(address)
    }

    /// Where to listen for NFS over TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        let ip = self.listen.map_or(self.loopback(), |listen| listen.ip());
        let mut address = self.tcp.unwrap_or(SocketAddr::new(ip, 2049));
        address.set_port(self.nfs_port.unwrap_or(address.port()));
        (!self.no_tcp).then_some(address)
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "an address and a port are wanted, as 127.0.0.1:20049 or [::1]:20049".into())
}

fn export(argument: &OsString) -> Result<ExportSpec, String> {
    let bytes = argument.as_bytes();
    // A directory may have "=" in its name: only an absolute name in front is one.
    let at = bytes.iter().position(|&b| b == b'=');
    let (name, dir) = match at {
        Some(at) if bytes.starts_with(b"/") && !PathBuf::from(argument).exists() => {
            (Some(&bytes[..at]), &bytes[at + 1..])
        }
        _ => (None, bytes),
    };
    let dir = PathBuf::from(OsString::from_vec(dir.to_vec()));
    let dir = dir
        .canonicalize()
        .map_err(|e| format!("cannot export {}: {e}", dir.display()))?;
    let name = match name {
        Some(name) => name.to_vec(),
        None => dir.as_os_str().as_bytes().to_vec(),
    };
    if name.len() > nfsrdma_xdr::mount3::PATH_MAX {
        return Err(format!(
            "the name of the export is longer than {} bytes",
            nfsrdma_xdr::mount3::PATH_MAX
        ));
    }
    Ok(ExportSpec { name, dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["nfsrdma-responder"], args].concat())
    }

    #[test]
    fn exports_have_names() {
        let options = parse(&["/tmp", "/data=/tmp"]).unwrap();
        let specs = options.export_specs().unwrap();
        assert_eq!(specs[0].name, b"/tmp");
        assert_eq!(specs[1].name, b"/data");
        assert_eq!(specs[1].dir, PathBuf::from("/tmp"));
        let missing = parse(&["/no/such/directory"]).unwrap();
        assert!(missing.export_specs().is_err());
    }

    #[test]
    fn addresses_have_defaults() {
        let options = parse(&["/tmp", "--ipv6", "--nfs-port", "0"]).unwrap();
        assert_eq!(options.rdma_address(), "[::1]:20049".parse().ok());
        assert_eq!(options.tcp_address(), "[::1]:0".parse().ok());
        let options = parse(&["--export", "/tmp", "--listen", "0.0.0.0:1"]).unwrap();
        assert_eq!(options.rdma_address(), "0.0.0.0:1".parse().ok());
        assert_eq!(options.tcp_address(), "0.0.0.0:2049".parse().ok());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for args in [
            &["/tmp", "--inline", "1000"][..],
            &["/tmp", "--inline", "0"],
            &["/tmp", "--credits", "0"],
            &["/tmp", "--rtmax", "2097152"],
            &["/tmp", "--no-tcp", "--no-rdma"],
            &["/tmp", "--listen", "127.0.0.1"],
            &[],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
