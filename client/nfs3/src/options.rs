//! The options of a client, their ranges, and the export to mount.
//!
//! Names and defaults are those of nfs(5) where it has the option. [`ClientOptions::check`] reports
//! a value outside its range in one sentence, before anything is sent.

pub use nfsrdma_rpcrdma::options::{Recovery, TransportOptions, WriteChunk};
pub use nfsrdma_rpcrdma::security::Service;

use nfsrdma_rpcrdma::security::{Establish, Security};
use nfsrdma_xdr::rpc::flavor;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Port of the NFS/RDMA service (RFC 8267 section 9).
pub const NFS_RDMA_PORT: u16 = 20049;

/// The server and the export to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountTarget {
    /// Host name or address; an IPv6 address has no brackets.
    pub host: String,
    /// Path of the export, as the bytes to send in MNT.
    pub export: Vec<u8>,
}

impl MountTarget {
    /// Parses `HOST:/PATH`, where an IPv6 address is in brackets. The error is one sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "\"{text}\" is not SERVER:/PATH (an IPv6 address stands in brackets: [::1]:/PATH)"
            )
        };
        let (host, export) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(wrong)?,
            None => text.split_once(':').ok_or_else(wrong)?,
        };
        if host.is_empty() || !export.starts_with('/') || export.contains('\0') {
            return Err(wrong());
        }
        Ok(MountTarget {
            host: host.to_owned(),
            export: export.as_bytes().to_vec(),
        })
    }
}

/// The addresses of the server that connections are spread over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Remotes {
    /// The one that was mounted.
    #[default]
    Mounted,
    These(Vec<IpAddr>),
    /// All that the server's name has.
    Resolved,
}

/// The transport of the MOUNT protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountProtocol {
    /// TCP, or UDP if the server's rpcbind knows mountd only there.
    #[default]
    Auto,
    Tcp,
    Udp,
    /// RPC-over-RDMA, at `mountport` or else at `port`.
    Rdma,
}

/// A security flavor (nfs(5), `sec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Flavor {
    /// AUTH_SYS: the client says who calls.
    #[default]
    Sys,
    /// RPCSEC_GSS with Kerberos V5: the user proves who he is; `krb5`, `krb5i`, `krb5p`.
    Kerberos(Service),
}

impl Flavor {
    pub const ALL: [Flavor; 4] = [
        Flavor::Sys,
        Flavor::Kerberos(Service::None),
        Flavor::Kerberos(Service::Integrity),
        Flavor::Kerberos(Service::Privacy),
    ];

    /// Its name as a value of `sec`.
    pub const fn name(self) -> &'static str {
        match self {
            Flavor::Sys => "sys",
            Flavor::Kerberos(Service::None) => "krb5",
            Flavor::Kerberos(Service::Integrity) => "krb5i",
            Flavor::Kerberos(Service::Privacy) => "krb5p",
        }
    }

    /// The flavor of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Flavor::ALL.into_iter().find(|flavor| flavor.name() == name)
    }

    pub(crate) fn is_sys(&self) -> bool {
        *self == Flavor::Sys
    }

    /// The flavor that has this number in MNT's list (RFC 2623 section 2.3). AUTH_NONE means that
    /// the server does not look at credentials.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        match number {
            flavor::SYS | flavor::NONE => Some(Flavor::Sys),
            other => Service::of_pseudo_flavor(other).map(Flavor::Kerberos),
        }
    }
}

/// What makes security contexts.
#[derive(Clone)]
pub struct Mechanism(pub Arc<dyn Establish>);

impl fmt::Debug for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mechanism").finish_non_exhaustive()
    }
}

impl PartialEq for Mechanism {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Mechanism {}

impl TryFrom<String> for Flavor {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Flavor::of_name(&name).ok_or_else(|| format!("no flavor is called {name}"))
    }
}

impl From<Flavor> for String {
    fn from(flavor: Flavor) -> Self {
        flavor.name().to_owned()
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The options of a client. [`ClientOptions::default`] has the defaults of nfs(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// Options of the RPC transport. Its `connect_timeout` also limits each step of mounting.
    pub transport: TransportOptions,
    /// Port of NFS over RDMA.
    pub port: u16,
    pub remotes: Remotes,
    /// Addresses of this machine to connect from, in turn; if there are none, the routes decide.
    pub locals: Vec<IpAddr>,
    /// Largest READ, in bytes; `None` takes what the server allows, up to 1 MiB.
    pub rsize: Option<u32>,
    /// Largest WRITE, in bytes; `None` takes what the server allows, up to 1 MiB.
    pub wsize: Option<u32>,
    /// Host of mountd, if it is not the server.
    pub mounthost: Option<String>,
    /// Use IPv6 addresses of the server only (`rdma6`).
    pub ipv6_only: bool,
    /// Use IPv6 addresses of `mounthost` only (`tcp6`, `udp6`).
    pub mount_ipv6_only: bool,
    /// Port of mountd; `None` asks rpcbind.
    pub mountport: Option<u16>,
    pub mountproto: MountProtocol,
    /// Whether to call mountd over TCP or UDP from a privileged port. If this process may not bind
    /// one, an ordinary port is used.
    pub resvport: bool,
    /// Whether to use NFS_ACL where the server has it.
    pub acl: bool,
    /// Machine name in AUTH_SYS credentials; `None` takes the host's.
    pub machine_name: Option<String>,
    /// The acceptable flavors, the best first. If there are none, AUTH_SYS is taken if the server
    /// has it, and otherwise the first in the server's list that is known here.
    pub flavors: Vec<Flavor>,
    /// Makes the contexts of users if a flavor of Kerberos is chosen; without it none is.
    pub mechanism: Option<Mechanism>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            transport: TransportOptions::default(),
            port: NFS_RDMA_PORT,
            remotes: Remotes::default(),
            locals: Vec::new(),
            rsize: None,
            wsize: None,
            mounthost: None,
            ipv6_only: false,
            mount_ipv6_only: false,
            mountport: None,
            mountproto: MountProtocol::default(),
            resvport: true,
            acl: true,
            machine_name: None,
            flavors: Vec::new(),
            mechanism: None,
        }
    }
}

impl ClientOptions {
    /// How calls of NFS and NFS_ACL are secured under `flavor`; `None` is AUTH_SYS.
    pub(crate) fn security(&self, flavor: Flavor) -> Option<Security> {
        let Flavor::Kerberos(service) = flavor else {
            return None;
        };
        let Mechanism(establish) = self.mechanism.clone()?;
        Some(Security { service, establish })
    }

    /// Whether a flavor can be used.
    pub(crate) fn has(&self, flavor: Flavor) -> bool {
        flavor.is_sys() || self.mechanism.is_some()
    }

    /// Returns an error, as one sentence, if a value is outside its range.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [("rsize", self.rsize), ("wsize", self.wsize)];
        for (name, size) in sizes {
            if size.is_some_and(|n| !(1024..=4 << 20).contains(&n)) {
                return Err(format!("{name} must be from 1024 to 4194304 bytes"));
            }
        }
        let transport = &self.transport;
        if !(1024..=262_144).contains(&transport.inline) || !transport.inline.is_multiple_of(1024) {
            return Err("inline must be a multiple of 1024 from 1024 to 262144 bytes".to_owned());
        }
        if !(1..=1024).contains(&transport.credits) {
            return Err("credits must be from 1 to 1024".to_owned());
        }
        if !(1..=16).contains(&transport.nconnect) {
            return Err("nconnect must be from 1 to 16".to_owned());
        }
        if transport.timeo.is_zero() {
            return Err("timeo must be at least one tenth of a second".to_owned());
        }
        if !(1..=128).contains(&transport.reads_in) {
            return Err(
                "the number of RDMA Reads served at a time must be from 1 to 128".to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn targets() {
        let parse = |text: &str| MountTarget::parse(text).map(|t| (t.host, t.export));
        assert_eq!(parse("a.b:/x"), Ok(("a.b".into(), b"/x".to_vec())));
        assert_eq!(parse("[::1]:/"), Ok(("::1".into(), b"/".to_vec())));
        assert_eq!(parse("h:/a:b"), Ok(("h".into(), b"/a:b".to_vec())));
        for wrong in ["", "h", "h:", ":/x", "h:x", "[::1]/x", "[::1:/x", "h:/a\0b"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(ClientOptions::default().check(), Ok(()));
        let wrong: [fn(&mut ClientOptions); 7] = [
            |o| o.transport.inline = 1000,
            |o| o.transport.inline = 0,
            |o| o.transport.credits = 0,
            |o| o.transport.nconnect = 17,
            |o| o.rsize = Some(100),
            |o| o.transport.timeo = Duration::ZERO,
            |o| o.transport.reads_in = 0,
        ];
        for change in wrong {
            let mut options = ClientOptions::default();
            change(&mut options);
            assert!(options.check().is_err());
        }
    }
}
