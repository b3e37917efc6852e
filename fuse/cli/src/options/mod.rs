//! Mount options. They have the names and meanings of nfs(5); a few are this program's own.
//!
//! [`Options::parse`] is pure: it turns a text into settings or an error. All options are in the
//! [`table`], from which the parser, what is shown, and the documentation are made.

mod addresses;
mod draft;
mod entry;
pub mod mount_source;
mod parse;
pub(crate) mod remount;
pub mod show;
pub mod size;
pub mod table;
mod words;

pub(super) use parse::{protects, split};

pub use nfsrdma_fs::fs::LookupCache;
pub use nfsrdma_nfs3::{MountProtocol, Recovery, WriteChunk};

#[cfg(test)]
mod tests;

use nfsrdma_fs::fs::FsConfig;
use nfsrdma_nfs3::ClientOptions;
use nfsrdma_nfs3::options::{Flavor, Remotes};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Largest rsize and wsize, in bytes (nfs(5)); also what one FUSE request can carry.
pub const MAX_IO: u32 = 1 << 20;
/// rsize and wsize are multiples of this many bytes.
pub const IO_UNIT: u32 = 4096;
/// The smallest `cache`, in bytes.
pub const LEAST_CACHE: u64 = 16 << 20;

/// Who checks permissions before the server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel of this machine, by the file modes.
    Kernel,
    /// The server alone, which is asked for each caller.
    Server,
}

/// What outlives the program that serves a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Nothing: the mount is dead until it is made again.
    No,
    /// The mount, its open files and directories, and what the server has.
    Files,
    /// Also the data that the server does not have yet.
    Data,
}

/// Which locks stay on this machine (nfs(5)); the others go to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalLock {
    None,
    Flock,
    Posix,
    All,
}

impl LocalLock {
    /// The name of the value in the option.
    pub fn name(self) -> &'static str {
        match self {
            LocalLock::None => "none",
            LocalLock::Flock => "flock",
            LocalLock::Posix => "posix",
            LocalLock::All => "all",
        }
    }
}

/// Which RDMA provider to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// Verbs if an RDMA device reaches the server, and otherwise soft-iWARP.
    Auto,
    Iwarp,
    Verbs,
}

/// How the local kernel maintains access times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessTime {
    /// The kernel's default.
    Relative,
    Always,
    Never,
}

/// The flags that the VFS acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfsFlags {
    pub read_only: bool,
    pub suid: bool,
    pub dev: bool,
    pub exec: bool,
    /// Whether symbolic links are followed.
    pub symfollow: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub access_time: AccessTime,
    pub dir_access_time: bool,
}

/// Longest path of a Unix socket (unix(7)), without the NUL.
const SOCKET_PATH_MAX: usize = 107;

/// Where Prometheus metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAt {
    Tcp(SocketAddr),
    /// A Unix socket with this path, to which only the user who mounts can connect.
    Unix(PathBuf),
}

impl std::fmt::Display for MetricsAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MetricsAt::Tcp(address) => address.fmt(f),
            MetricsAt::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Parses `ADDRESS:PORT`, `unix:/PATH`, or `PORT` on 127.0.0.1, so that nothing is exposed by accident.
impl FromStr for MetricsAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') && path.len() <= SOCKET_PATH_MAX {
                true => Ok(MetricsAt::Unix(path.into())),
                false => Err(format!(
                    "the path of a socket begins with / and has at most {SOCKET_PATH_MAX} bytes: write unix:/PATH"
                )),
            };
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(MetricsAt::Tcp(([127, 0, 0, 1], port).into()));
        }
        let wrong =
            |_| "it takes an address: 127.0.0.1:9100, [::1]:9100, 9100 or unix:/PATH".to_owned();
        text.parse().map(MetricsAt::Tcp).map_err(wrong)
    }
}

/// The settings of all options, with defaults for those that were not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub vfs: VfsFlags,
    /// Settings of the NFS client and its transport, but for `nconnect`.
    pub client: ClientOptions,
    /// Settings of the file system, but for those that depend on several options.
    pub fs: FsConfig,
    /// Only shown: deadly signals always interrupt a waiting call, and other signals never do.
    pub intr: bool,
    /// How long to repeat attempts to mount; `None` is the default.
    pub retry: Option<Duration>,
    pub background: bool,
    /// Attributes are never taken from the cache: their times in `fs` are 0.
    pub noac: bool,
    /// Connections to the server; `None` is one for each address that was given, or else for each
    /// event loop, up to four.
    pub nconnect: Option<u32>,
    /// `lock` or `nolock`; `None` is `lock` where the server has NLM.
    pub lock: Option<bool>,
    pub local_lock: Option<LocalLock>,
    /// Where the server's lock manager listens; `None` asks rpcbind.
    pub lock_port: Option<u16>,
    /// The port for callbacks of lock managers; `None` is any port, and 0 is no callbacks.
    pub callback_port: Option<u16>,
    /// Where the server answers NFS over TCP, for Kerberos; `None` is port 2049.
    pub gss_port: Option<u16>,
    pub transport: Transport,
    /// Whether to ask for CRC32C on iWARP.
    pub crc: bool,
    /// Largest FPDU to send on iWARP, in bytes; `None` chooses it by the path MTU.
    pub fpdu: Option<u32>,
    /// Memory of all buffers, in bytes.
    pub cache: u64,
    /// Most dirty bytes; `None` is a quarter of the cache.
    pub dirty: Option<u64>,
    /// What outlives the program that serves the mount; `None` chooses by who mounts, and how.
    pub restart: Option<Restart>,
    /// The number of event loops; `None` chooses by the number of CPUs.
    pub workers: Option<usize>,
    /// Where Prometheus metrics are served.
    pub metrics: Option<MetricsAt>,
    /// Whether other users may use the mount; `None` permits it if root mounts.
    pub allow_other: Option<bool>,
    /// `None` is the kernel if other users may use the mount, and otherwise the server.
    pub permissions: Option<Permissions>,
    /// Whether to accept unknown options.
    pub sloppy: bool,
    /// For /etc/fstab: a mount that fails does not fail the boot.
    pub nofail: bool,
    /// Whether `remount` was given.
    pub remount: bool,
    /// `context=...` and the like, for SELinux (mount(8)).
    pub security_contexts: Vec<String>,
    /// Options that were ignored because of `sloppy`.
    pub ignored: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            vfs: VfsFlags {
                read_only: false,
                suid: true,
                dev: true,
                exec: true,
                symfollow: true,
                sync: false,
                dirsync: false,
                access_time: AccessTime::Relative,
                dir_access_time: true,
            },
            client: ClientOptions::default(),
            fs: FsConfig::default(),
            intr: false,
            retry: None,
            background: false,
            noac: false,
            nconnect: None,
            lock: None,
            local_lock: None,
            lock_port: None,
            callback_port: None,
            gss_port: None,
            transport: Transport::Auto,
            //= RFC 5044, Section 1.2
            //# It is possible to disable this CRC check; however, CRCs MUST be enabled unless it is
            //# clear that the end-to-end connection through the network has data integrity at least
            //# as good as an MPA with CRC enabled (for example, when IPsec is implemented end to
            //# end).
            //= RFC 5044, Section 4.4
            //# An MPA implementation MUST implement CRC support and MUST either:
            //# The default configuration for a connection MUST be to use CRCs.
            crc: true,
            fpdu: None,
            cache: 256 << 20,
            dirty: None,
            restart: None,
            workers: None,
            metrics: None,
            allow_other: None,
            permissions: None,
            sloppy: false,
            nofail: false,
            remount: false,
            security_contexts: Vec::new(),
            ignored: Vec::new(),
        }
    }
}

/// Why options are refused. The text of each error is one sentence that names the option.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    #[error("unknown option '{name}'{}", match nearest {
        Some(nearest) => format!("; did you mean '{nearest}'?"),
        None => ": nfsrdma(5) has the options, and -o sloppy passes over others".to_owned(),
    })]
    Unknown {
        name: String,
        nearest: Option<&'static str>,
    },
    #[error("option '{0}' has blanks around it: write commas and no blanks between options")]
    Blank(String),
    #[error("'{part}' is more than '{whole}' can hold: give less, or a larger {name}")]
    Exceeds {
        part: String,
        whole: String,
        name: &'static str,
    },
    #[error("options '{first}' and '{second}' contradict each other: leave one out")]
    Contradiction { first: String, second: String },
    #[error("option '{name}' needs a value: {name}= takes {wanted}")]
    NeedsValue { name: String, wanted: String },
    #[error("option '{0}' takes no value: write {0} alone")]
    TakesNone(String),
    #[error("'{given}' is not allowed: {name} takes {wanted}")]
    BadValue {
        given: String,
        name: &'static str,
        wanted: String,
    },
    #[error("option '{given}' cannot be honoured: {reason}")]
    CannotHonour { given: String, reason: &'static str },
    #[error("option '{given}' is not needed: {reason}")]
    NotNeeded { given: String, reason: &'static str },
    /// At least two of the others.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; and "))]
    Several(Vec<OptionError>),
}

impl OptionError {
    /// Whether the option is one that does not exist here, rather than one that was written wrongly.
    pub(crate) fn is_of_others(&self) -> bool {
        matches!(
            self,
            OptionError::Unknown { .. }
                | OptionError::CannotHonour { .. }
                | OptionError::NotNeeded { .. }
        )
    }
}

impl Options {
    /// Whether calls may be made under Kerberos.
    pub fn has_kerberos(&self) -> bool {
        let mut flavors = self.client.flavors.iter();
        flavors.any(|flavor| *flavor != Flavor::Sys)
    }

    /// The flavors, as a value of `sec`.
    pub(crate) fn flavors(&self) -> String {
        match &self.client.flavors[..] {
            [] => Flavor::Sys.name().to_owned(),
            list => {
                let names: Vec<_> = list.iter().map(|flavor| flavor.name()).collect();
                names.join(":")
            }
        }
    }

    /// The number of event loops: by default one for each CPU, up to four.
    pub fn workers(&self) -> usize {
        self.workers.unwrap_or(cpus().min(4))
    }

    /// The number of connections to the server: one for each address that was given.
    pub fn connections(&self) -> u32 {
        let otherwise = match self.remotes_given().max(self.client.locals.len()) {
            0 => self.workers().min(4),
            given => given,
        };
        self.nconnect.unwrap_or(otherwise as u32)
    }

    /// How many addresses of the server were given.
    fn remotes_given(&self) -> usize {
        match &self.client.remotes {
            Remotes::These(list) => list.len(),
            Remotes::Mounted | Remotes::Resolved => 0,
        }
    }

    /// The kinds of locks that the options keep on this machine.
    pub fn wanted_local_lock(&self) -> LocalLock {
        match (self.lock, self.local_lock) {
            (Some(false), _) => LocalLock::All,
            (_, Some(local)) => local,
            (_, None) => LocalLock::None,
        }
    }

    /// Most dirty bytes.
    pub fn dirty_limit(&self) -> u64 {
        self.dirty.unwrap_or(self.cache / 4)
    }
}

/// The number of CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
