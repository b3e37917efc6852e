//! The command line.

use crate::fs::ExportSpec;
use crate::fs::variants::{self, PreOp};
use crate::lock::{CallbackStyle, Policy};
use crate::rdma::Habit;
use crate::rpc::gss::{self, Principal};
use crate::rpc::{Delaying, Failing, Flavors};
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

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
/// and trying things out: changes of directories are not forced to disk.
#[derive(Debug, Clone, Parser)]
#[command(name = "nfsrdma-responder", version)]
pub struct Options {
    /// Directory to export; /NAME=DIR exports it under that name
    #[arg(value_name = "[/NAME=]DIR", required = true)]
    pub exports: Vec<OsString>,

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

    /// When ready, print "ready rdma=PORT nfs=PORT mount=PORT portmap=PORT lock=PORT
    /// status=PORT" (those served)
    #[arg(long)]
    pub print_ports: bool,

    /// Where the key of file handles is kept; handles are good after a restart with the same
    /// directory [default: /var/lib/nfsrdma-responder for root, else under ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    //= RFC 8166, Section 3.3.1
    //# The granted value MUST NOT be zero, since such a value would result in deadlock.
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

    /// Newest MPA revision of soft-iWARP: with 1, a request of revision 2 closes its connection
    #[arg(long, value_name = "1|2", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub mpa_revision: u8,

    /// Use Send With Invalidate towards clients that want it
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub send_invalidate: Switch,

    /// Make uid 0 and gid 0 of clients anonymous
    #[arg(long)]
    pub root_squash: bool,

    /// Flavors that calls may have, in the order in which MNT lists them (none, sys, krb5, krb5i,
    /// krb5p), for one export or for all others. May be given again [default: sys, and any call is
    /// executed]
    #[arg(long, value_name = "[EXPORT=]FLAVOR[:FLAVOR...]")]
    pub sec: Vec<Flavors>,

    /// The identity of a Kerberos principal; others are anonymous. May be given again
    #[arg(long, value_name = "NAME[@REALM]=UID:GID[:GROUP...]")]
    pub principal: Vec<Principal>,

    /// The keys of Kerberos, of the service nfs [default: the keytab of the system's configuration]
    #[arg(long, value_name = "PATH")]
    pub keytab: Option<PathBuf>,

    /// Calls remembered to recognise those that come twice; 0 remembers none
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub drc: usize,

    /// Hold UNSTABLE data in memory until COMMIT, so that killing the server loses them
    #[arg(long)]
    pub fake_unstable: bool,

    /// Delay calls of an NFS procedure (or ANY), in milliseconds. May be given again
    #[arg(long, value_name = "PROCEDURE=MS")]
    pub delay: Vec<Delaying>,

    /// Answer calls of an NFS procedure (or ANY) with an error, as JUKEBOX, instead of running
    /// them, or run them and lose the reply (LOST) or the connection with it (HANGUP); the
    /// first COUNT of them, or all; each EVERY-th. May be given again
    #[arg(long, value_name = "PROCEDURE=STATUS|LOST|HANGUP[:COUNT][/EVERY]")]
    pub fail: Vec<Failing>,

    /// Which replies have pre-operation attributes: always (taken together with the change),
    /// not-for-write (as Linux knfsd: none for WRITE and COMMIT), never, or not-atomic (taken a
    /// millisecond before the change, and post-operation attributes as long after it)
    #[arg(
        long,
        value_name = "MODE",
        default_value = "always",
        hide_possible_values = true
    )]
    pub pre_op: PreOp,

    /// Let the server's clock be ahead of this machine's (5s, 20ms, 1h) or behind (-5s)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = offset,
          default_value = "0s")]
    pub clock_offset: i64,

    /// Show times in whole seconds
    #[arg(long)]
    pub one_second_times: bool,

    /// Give objects with different handles equal fileids, as snapshots and subvolumes do: files
    /// have N numbers together (1 if not given), directories of one depth share theirs
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
          default_missing_value = "1")]
    pub equal_fileids: Option<NonZeroU64>,

    /// Be without NFS_ACL
    #[arg(long)]
    pub no_acl: bool,

    /// Be without NLM and NSM
    #[arg(long)]
    pub no_locks: bool,

    /// How long after a start only locks held before it are given (5s); 0s: not at all
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    pub grace: Duration,

    /// How a client that waits for a lock learns that it is granted: callback (GRANTED_MSG, as
    /// Linux 6.1), callback-sync (GRANTED), never (it has to ask again, as with Linux 6.12) or takes
    /// (the lock is taken for it, and the callback comes seconds later, as Linux 7.3)
    #[arg(
        long,
        value_name = "STYLE",
        default_value = "callback",
        hide_possible_values = true
    )]
    pub lock_callback: CallbackStyle,

    /// Let locks wait for each other in a circle instead of answering DEADLCK
    #[arg(long)]
    pub no_deadlock_detection: bool,

    /// Let TEST see exclusive locks only, as Linux 6.12.117 does
    #[arg(long)]
    pub blind_test: bool,

    /// The port of clients' lock managers, instead of asking rpcbind
    #[arg(long, value_name = "PORT")]
    pub client_lock_port: Option<u16>,

    /// Take commands that change all this while the server runs, one a line, at this Unix
    /// socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Threads for calls that take long
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,

    /// Connections at a time, RDMA and TCP together
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_connections: usize,

    /// Behave over RDMA as some other server was seen to (see the README). May be given again
    #[arg(long, value_name = "HABIT")]
    pub odd: Vec<Habit>,
}

fn offset(text: &str) -> Result<i64, String> {
    match text.strip_prefix('-') {
        Some(text) => crate::control::nanoseconds(text).map(|behind| -behind),
        None => crate::control::nanoseconds(text),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = crate::control::nanoseconds(text)?;
    Ok(Duration::from_nanos(nanoseconds.unsigned_abs()))
}

fn inline(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n @ 1024..=262_144) if n % 1024 == 0 => Ok(n),
        _ => Err("a multiple of 1024 from 1024 to 262144 is wanted".into()),
    }
}

impl Options {
    /// The exports. The error is a sentence for the user.
    pub fn export_specs(&self) -> Result<Vec<ExportSpec>, String> {
        self.exports.iter().map(export).collect()
    }

    /// The settings for habits of other servers.
    pub fn variants(&self) -> variants::Settings {
        variants::Settings {
            pre_op: self.pre_op,
            clock_offset: self.clock_offset,
            one_second_times: self.one_second_times,
            equal_fileids: self.equal_fileids,
        }
    }

    /// Whether calls may come under RPCSEC_GSS.
    pub fn with_gss(&self) -> bool {
        self.keytab.is_some() || self.sec.iter().any(Flavors::need_context)
    }

    /// The settings of RPCSEC_GSS.
    pub fn gss(&self) -> gss::Settings {
        gss::Settings {
            principals: self.principal.clone(),
        }
    }

    /// The settings of locks.
    pub fn lock_policy(&self) -> Policy {
        Policy {
            grace: self.grace,
            style: self.lock_callback,
            detect_deadlocks: !self.no_deadlock_detection,
            blind_test: self.blind_test,
        }
    }

    /// Whether calls may have to wait, which needs a thread for each.
    pub fn may_wait(&self) -> bool {
        !self.delay.is_empty() || self.control.is_some() || self.pre_op == PreOp::NotAtomic
    }

    fn loopback(&self) -> IpAddr {
        match self.ipv6 {
            true => Ipv6Addr::LOCALHOST.into(),
            false => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// The address to listen at for RDMA.
    pub fn rdma_address(&self) -> SocketAddr {
        let default = SocketAddr::new(self.loopback(), 20049);
        let mut address = self.listen.unwrap_or(default);
        address.set_port(self.rdma_port.unwrap_or(address.port()));
        address
    }

    /// The address to listen at for NFS over TCP.
    pub fn tcp_address(&self) -> SocketAddr {
        let ip = self.listen.map_or(self.loopback(), |listen| listen.ip());
        let mut address = self.tcp.unwrap_or(SocketAddr::new(ip, 2049));
        address.set_port(self.nfs_port.unwrap_or(address.port()));
        address
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "an address and a port are wanted, as 127.0.0.1:20049 or [::1]:20049".into())
}

fn export(argument: &OsString) -> Result<ExportSpec, String> {
    let bytes = argument.as_bytes();
    // The name of a directory may contain "=", so only an absolute path before it is a name.
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
