//! Mounts an export: finds mountd, asks it for the root's file handle, connects to the server over
//! RDMA, and learns the server's limits.
//!
//! The addresses of the server are tried one after the other. At each, mountd is called first (RFC
//! 1813 section 5.2.1), because its refusals say more than those of a connection; only with
//! `mountproto=rdma` is MNT sent over the RDMA connection, and therefore later. NULL, FSINFO,
//! PATHCONF and GETATTR of the root follow, and a NULL of NFS_ACL if ACLs are wanted. Every step
//! has a time limit and its own error ([`MountError`] with its [`Step`]). If all addresses fail,
//! the error of the one where mounting got furthest is reported.

mod dial;
mod error;
pub(crate) mod identity;
pub(crate) mod locate;
mod mountd;
mod paths;
mod ping;
mod resolve;
mod resume;

pub use error::{MountError, Step};
pub use locate::{Service, port_of};
pub use mountd::Exported;
pub use ping::{PingEvent, PingTarget, Taken, exports, ping};
pub use resume::{Found, resume};

use crate::api::{Cred, Nfs3, NfsError};
use crate::client::Nfs3Client;
use crate::limits::Source;
use crate::options::{ClientOptions, Flavor, MountProtocol, MountTarget};
use crate::transport::Transport;
use dial::{Probe, dial};
use mountd::{Mountd, Root};
use nfsrdma_rdma::{Pool, Protection, Provider};
use nfsrdma_rpcrdma::security::NoContext;
use nfsrdma_rpcrdma::transport::{Engine, SessionInfo};
use nfsrdma_xdr::nfs3::{FileHandle, FileType, FsinfoOk, PathconfOk};
use resolve::resolve;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Time limit of UMNT, and of destroying security contexts, whose answer does not matter.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest name of a server that does not say, in bytes.
const NAME_MAX: u32 = 255;
/// How often the server is asked for NFS_ACL while it does not answer.
const ACL_TRIES: u32 = 2;

/// The properties of a mount.
#[derive(Debug, Clone)]
pub struct Description {
    pub server: SocketAddr,
    /// The provider's name: `iwarp` or `verbs`.
    pub provider: &'static str,
    /// The provider's description of the connection.
    pub link: String,
    /// READ and WRITE sizes in force, in bytes.
    pub rsize: u32,
    pub wsize: u32,
    /// Call and reply inline thresholds, in bytes.
    pub inline_call: usize,
    pub inline_reply: usize,
    /// Credits granted by the first reply, at most as many as were requested.
    pub credits: u32,
    /// How memory that does not belong to a call is protected against the server.
    pub protection: Protection,
    pub nconnect: u32,
}

impl Description {
    fn new(
        server: SocketAddr,
        client: &Nfs3Client,
        session: SessionInfo,
        options: &ClientOptions,
    ) -> Self {
        let limits = client.limits();
        Description {
            server,
            provider: client.engine().provider(),
            protection: session.capabilities.protection,
            link: session.capabilities.description,
            rsize: limits.rtmax,
            wsize: limits.wtmax,
            inline_call: session.thresholds.call,
            inline_reply: session.thresholds.reply,
            credits: session.credits,
            nconnect: options.transport.nconnect,
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {} ({}), rsize {}, wsize {}, inline {}/{}, credits {}",
            self.provider,
            self.server,
            self.link,
            self.rsize,
            self.wsize,
            self.inline_call,
            self.inline_reply,
            self.credits
        )?;
        f.write_str(match self.protection {
            Protection::Handle => ", a handle for each call",
            Protection::Window => ", a memory window for each call",
            Protection::Registration => ", a registration for each call",
        })?;
        if self.nconnect > 1 {
            write!(f, ", nconnect {}", self.nconnect)?;
        }
        Ok(())
    }
}

/// A mounted export.
#[derive(Debug)]
pub struct Mounted {
    pub client: Nfs3Client,
    pub root: FileHandle,
    pub fsinfo: FsinfoOk,
    name_max: u32,
    pub server: SocketAddr,
    /// The addresses that the connections are spread over; none if all go to `server`.
    remotes: Vec<IpAddr>,
    /// How calls of NFS are secured.
    pub flavor: Flavor,
    /// As it was when mounted; `None` if another process mounted it.
    pub description: Option<Description>,
    mountd: Mountd,
    export: Vec<u8>,
    cred: Cred,
}

impl Mounted {
    /// The longest name at the server, in bytes.
    pub fn name_max(&self) -> u32 {
        self.name_max
    }

    /// Calls UMNT, whose answer does not matter, destroys the security contexts, and ends the connections. Pending calls fail with
    /// `Interrupted`. Runs in tokio.
    pub async fn unmount(&self) {
        let umnt = self.mountd.umnt(
            self.client.engine(),
            &self.cred,
            &self.export,
            UNMOUNT_TIMEOUT,
        );
        tokio::join!(umnt, self.client.destroy_contexts(UNMOUNT_TIMEOUT));
        self.client.shutdown();
    }
}

/// Mounts `target`; all buffers come from `pool`. Runs in tokio, but later calls do not need it.
pub async fn connect(
    target: &MountTarget,
    options: &ClientOptions,
    provider: Arc<dyn Provider>,
    pool: Pool,
) -> Result<Mounted, MountError> {
    let checked = options.check();
    checked.map_err(|message| MountError::new(Step::Options, false, message))?;
    let mut addresses = resolve(
        &target.host,
        options.transport.connect_timeout,
        options.ipv6_only,
    )
    .await?;
    let remotes = paths::remotes(options, &addresses);
    // The path to the name may be the one that is down.
    let others = remotes.iter().filter(|other| !addresses.contains(other));
    addresses.extend(others.copied().collect::<Vec<_>>());
    let mut attempts = Attempts::new(&target.host, options);
    for address in addresses {
        let at = At {
            address,
            remotes: &remotes,
        };
        match mount_at(target, options, at, provider.clone(), pool.clone()).await {
            Ok(mounted) => return Ok(mounted),
            Err(error) => {
                // Each time the same paths would be tried.
                let tried_all = error.step == Step::Connect && !remotes.is_empty();
                attempts.failed(address, error);
                if tried_all {
                    break;
                }
            }
        }
    }
    Err(attempts.error())
}

/// The addresses of a host that failed, and the error to report: that of the address where mounting
/// got furthest, because it says most about the problem.
#[derive(Debug)]
struct Attempts<'a> {
    host: &'a str,
    /// Whether MOUNT is called over the RDMA connection, and so after connecting.
    mount_over_rdma: bool,
    tried: Vec<IpAddr>,
    furthest: Option<(IpAddr, MountError)>,
}

impl<'a> Attempts<'a> {
    fn new(host: &'a str, options: &ClientOptions) -> Self {
        Attempts {
            host,
            mount_over_rdma: options.mountproto == MountProtocol::Rdma,
            tried: Vec::new(),
            furthest: None,
        }
    }

    /// How far mounting has got when it fails at `step`.
    fn progress(&self, step: Step) -> u8 {
        match step {
            Step::Options => 0,
            Step::Resolve | Step::Name => 1,
            Step::Rpcbind => 2,
            Step::Mount if self.mount_over_rdma => 7,
            Step::Export if self.mount_over_rdma => 8,
            Step::Mount => 3,
            Step::Export => 4,
            Step::Connect => 5,
            Step::PrivateData => 6,
            Step::Null | Step::Context => 9,
            Step::Fsinfo | Step::Acl | Step::Locks => 10,
        }
    }

    fn failed(&mut self, address: IpAddr, error: MountError) {
        self.tried.push(address);
        let further = |(_, before): &(IpAddr, MountError)| {
            self.progress(error.step) > self.progress(before.step)
        };
        if self.furthest.as_ref().is_none_or(further) {
            self.furthest = Some((address, error));
        }
    }

    fn error(self) -> MountError {
        let Some((furthest, mut error)) = self.furthest else {
            let message = format!("{} has no address: check the name and DNS", self.host);
            return MountError::new(Step::Resolve, false, message);
        };
        let others = self.tried.iter().filter(|&&address| address != furthest);
        let others: Vec<String> = others.map(IpAddr::to_string).collect();
        if !others.is_empty() {
            let others = others.join(", ");
            error.message += &format!("; {others} of {} failed, too", self.host);
        }
        error
    }
}

/// A host, with the address that was used, for messages.
fn at_address(host: &str, address: IpAddr) -> String {
    // A link-local address may be followed by its interface.
    let literal = host.split('%').next().unwrap_or(host);
    match literal.parse::<IpAddr>() {
        Ok(same) if address == same => host.to_owned(),
        _ => format!("{host} ({address})"),
    }
}

/// Ends the connections unless mounting succeeds.
struct Undo(Option<Arc<Engine>>);

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            engine.shut_down();
        }
    }
}

/// The parameters of MNT over TCP or UDP.
#[derive(Debug, Clone, Copy)]
struct PlainMount<'a> {
    /// The server's name and address, for messages.
    server: &'a str,
    address: IpAddr,
    options: &'a ClientOptions,
    machine: &'a str,
    cred: &'a Cred,
    export: &'a [u8],
}

impl PlainMount<'_> {
    /// Calls the server's mountd, or that of `mounthost` at each of its addresses until one
    /// answers. `located` is called each time that mountd was found.
    async fn run(&self, mut located: impl FnMut(&Mountd)) -> Result<(Mountd, Root), MountError> {
        let options = self.options;
        let Some(host) = &options.mounthost else {
            return self.ask(self.address, self.server, &mut located).await;
        };
        let mut attempts = Attempts::new(host, options);
        for at in resolve(
            host,
            options.transport.connect_timeout,
            options.mount_ipv6_only,
        )
        .await?
        {
            match self.ask(at, &at_address(host, at), &mut located).await {
                Ok(mounted) => return Ok(mounted),
                Err(error) => attempts.failed(at, error),
            }
        }
        Err(attempts.error())
    }

    async fn ask(
        &self,
        at: IpAddr,
        host: &str,
        located: &mut impl FnMut(&Mountd),
    ) -> Result<(Mountd, Root), MountError> {
        let mut mountd = Mountd::new(self.machine);
        let without = "; mountproto=rdma needs neither";
        mountd.locate(at, host, self.options, without).await?;
        located(&mountd);
        let root = mountd.mnt_plain(self.cred, self.export, host, self.options);
        let root = root.await?;
        Ok((mountd, root))
    }
}

/// An address of the server to mount, and those that connections are spread over.
#[derive(Debug, Clone, Copy)]
struct At<'a> {
    address: IpAddr,
    remotes: &'a [IpAddr],
}

async fn mount_at(
    target: &MountTarget,
    options: &ClientOptions,
    At { address, remotes }: At<'_>,
    provider: Arc<dyn Provider>,
    pool: Pool,
) -> Result<Mounted, MountError> {
    let host = &at_address(&target.host, address);
    let machine = identity::machine_name_of(options);
    let cred = identity::own_credential();
    let timeout = options.transport.connect_timeout;
    let mut mountd = Mountd::new(&machine);
    // Over TCP or UDP, mountd is called first: its refusals say more than a connection does.
    let mut root = None;
    if options.mountproto != MountProtocol::Rdma {
        let ask = PlainMount {
            server: host,
            address,
            options,
            machine: &machine,
            cred: &cred,
            export: &target.export,
        };
        let (found, handle) = ask.run(|_| ()).await?;
        (mountd, root) = (found, Some(handle));
    }
    let peer = SocketAddr::new(address, options.port);
    let transport = paths::transport(options, address, remotes);
    let transport = transport.map_err(|why| MountError::new(Step::Options, false, why))?;
    let engine = dial(
        provider.clone(),
        peer,
        &target.host,
        transport,
        pool.clone(),
    )
    .await?;
    let mut undo = Undo(Some(engine.clone()));
    let Root {
        handle: root,
        flavor,
        ..
    } = match root {
        Some(root) => root,
        None => {
            // mountd has its own connection if it has its own port.
            let own = options.mountport.filter(|port| *port != options.port);
            let other = match own {
                None => None,
                Some(port) => {
                    let peer = SocketAddr::new(address, port);
                    let alone = options.transport.clone();
                    Some(dial(provider, peer, &target.host, alone, pool).await?)
                }
            };
            let _undo = Undo(other.clone());
            let over = other.as_ref().unwrap_or(&engine);
            mountd.set_rdma(other.is_none());
            mountd
                .mnt_rdma(over, &cred, &target.export, host, options)
                .await?
        }
    };
    let client = Nfs3Client::new(engine.clone(), machine.as_bytes(), options, flavor);
    let examined = examine(&client, &cred, &root, host, timeout).await?;
    if options.acl {
        find_acls(&client, &cred, host, timeout).await;
    }
    client.set_limits(
        Source::new(root, cred.clone(), options, flavor),
        &examined.fsinfo,
    );
    let session = engine.session().ok_or_else(|| {
        let message = format!("{host} closed the connection after it was mounted");
        MountError::new(Step::Connect, true, message)
    })?;
    undo.0 = None;
    Ok(Mounted {
        description: Some(Description::new(peer, &client, session, options)),
        client,
        root,
        fsinfo: examined.fsinfo,
        name_max: examined.pathconf.map_or(NAME_MAX, |of| of.name_max),
        server: peer,
        remotes: remotes.to_vec(),
        flavor,
        mountd,
        export: target.export.clone(),
        cred,
    })
}

/// Finds out whether the server has ACLs. If it does not answer even a second time, it is mounted
/// without ACLs, because some servers answer no program except NFS. The kernel must know this when
/// the file system is mounted, so a later answer would not help.
async fn find_acls(client: &Nfs3Client, cred: &Cred, host: &str, timeout: Duration) {
    let mut why = String::new();
    for _ in 0..ACL_TRIES {
        why = match tokio::time::timeout(timeout / ACL_TRIES, client.probe_acl(cred)).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => NfsError::TimedOut.to_string(),
        };
    }
    tracing::warn!(
        "{host} does not say whether it has access control lists ({why}): this mount goes on \
         without them, and with permissions=kernel by modes alone, until it is mounted again"
    );
}

/// Fails if the user who mounts cannot call as himself, where that takes a ticket or a key.
async fn try_context(
    client: &Nfs3Client,
    cred: &Cred,
    host: &str,
    timeout: Duration,
) -> Result<(), MountError> {
    let made = tokio::time::timeout(timeout, client.try_context(cred));
    let why = match made.await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(why)) => why,
        Err(_) => NoContext::Unavailable("no answer in time".to_owned()),
    };
    let transient = matches!(why, NoContext::Unavailable(_));
    let message = format!("no Kerberos context with {host}: {why}");
    Err(MountError::new(Step::Context, transient, message))
}

/// What the server returned about itself and the export's root.
struct Examined {
    fsinfo: FsinfoOk,
    /// `None` if the server does not answer PATHCONF.
    pathconf: Option<PathconfOk>,
}

async fn examine(
    client: &Nfs3Client,
    cred: &Cred,
    root: &FileHandle,
    host: &str,
    timeout: Duration,
) -> Result<Examined, MountError> {
    let step = |step, what| Probe {
        step,
        what,
        host,
        timeout,
    };
    try_context(client, cred, host, timeout).await?;
    step(Step::Null, "NULL").run(client.null(cred)).await?;
    let fsinfo = step(Step::Fsinfo, "FSINFO")
        .run(client.fsinfo(cred, root))
        .await?;
    let pathconf = step(Step::Fsinfo, "PATHCONF")
        .run(client.pathconf(cred, root))
        .await
        .ok();
    let root_attributes = step(Step::Fsinfo, "GETATTR")
        .run(client.getattr(cred, root))
        .await?;
    if root_attributes.kind != FileType::Directory {
        let message = format!("what {host} exports is not a directory: mount the one it is in");
        return Err(MountError::new(Step::Fsinfo, false, message));
    }
    Ok(Examined { fsinfo, pathconf })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_got_furthest_is_told_of() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let error = |step: Step| MountError::new(step, true, format!("{step:?}"));
        let told = |mountproto, steps: &[Step]| {
            let options = ClientOptions {
                mountproto,
                ..ClientOptions::default()
            };
            let mut attempts = Attempts::new("srv", &options);
            for (last, step) in steps.iter().enumerate() {
                attempts.failed(address(last as u8), error(*step));
            }
            attempts.error().message
        };
        let tcp = MountProtocol::Tcp;
        assert_eq!(told(tcp, &[Step::Mount]), "Mount");
        assert_eq!(
            told(tcp, &[Step::Mount, Step::Connect, Step::Connect]),
            "Connect; 10.0.0.0, 10.0.0.2 of srv failed, too"
        );
        // With `mountproto=rdma`, MOUNT comes after connecting.
        assert_eq!(
            told(MountProtocol::Rdma, &[Step::Connect, Step::Export]),
            "Export; 10.0.0.0 of srv failed, too"
        );
        assert!(told(tcp, &[]).starts_with("srv has no address"));
    }

    #[test]
    fn hosts_are_shown_with_their_address() {
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(at_address("localhost", address), "localhost (127.0.0.1)");
        assert_eq!(at_address("127.0.0.1", address), "127.0.0.1");
        let local = "fe80::1".parse().unwrap();
        assert_eq!(at_address("fe80::1%eth0", local), "fe80::1%eth0");
    }
}
