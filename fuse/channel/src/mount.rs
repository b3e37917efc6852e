//! Mounting, INIT and unmounting, which `fuser` does; nothing else names it.
//!
//! [`Channel::mount`] mounts by mount(2) or fusermount3; [`Channel::adopt`] takes a descriptor that
//! is mounted already. Both wait until INIT is answered: `fuser` calls the `init` of a file system
//! that has nothing else, which turns on those of the wanted features that the kernel offers and
//! notes them ([`Features`]). From then on requests are read by this crate, and `fuser` is only
//! kept to unmount when the channel is dropped.

use super::abi::{MIN_READ_BUFFER, init};
use super::device::Device;
use super::notify::Notifier;
use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, SessionACL};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Who may use a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Users {
    /// The user who mounted, and nobody else.
    #[default]
    Owner,
    /// Everybody (`allow_other`).
    All,
    /// The user who mounted, and root (`allow_root`).
    RootAndOwner,
}

impl Users {
    fn acl(self) -> SessionACL {
        match self {
            Users::Owner => SessionACL::Owner,
            Users::All => SessionACL::All,
            Users::RootAndOwner => SessionACL::RootAndOwner,
        }
    }
}

/// Options of a mount that is made here.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// Shown as the mount's source.
    pub source: String,
    /// Shown after `fuse.` as the type.
    pub subtype: String,
    /// By their names in mount(8); others are handed to the kernel as they are.
    pub options: Vec<String>,
}

/// What is wanted of the kernel by INIT.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Flags of [`abi::init`](super::abi::init), on where the kernel offers them.
    pub flags: u64,
    /// Largest WRITE, in bytes.
    pub max_write: u32,
    /// Requests that may be under way in the background.
    pub max_background: u16,
}

/// What INIT agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// The kernel's minor version of the protocol 7.
    pub minor: u32,
    /// The flags it offered.
    pub offered: u64,
    /// Those that are on, of the ones wanted. (`fuser` adds some of its own.)
    pub enabled: u64,
    /// Largest WRITE, in bytes. The kernel may keep to less.
    pub max_write: u32,
    /// Longest payload of a request or a reply, in bytes.
    pub max_payload: usize,
}

impl Features {
    /// Whether a flag of [`abi::init`](super::abi::init) is on.
    pub fn has(&self, flag: u64) -> bool {
        self.enabled & flag == flag
    }

    /// Whether requests come by io_uring.
    pub fn has_ring(&self) -> bool {
        self.has(init::OVER_IO_URING)
    }

    /// Whether a notification can have a name expire, not only take it away. The kernel just offers
    /// it by INIT; it need not be turned on.
    pub fn expires_names(&self) -> bool {
        self.offered & init::HAS_EXPIRE_ONLY != 0
    }
}

/// The part of a file system that `fuser` gets to see.
#[derive(Debug)]
struct Init {
    wanted: Wanted,
    agreed: Arc<OnceLock<Features>>,
}

impl Filesystem for Init {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let flags = InitFlags::from_bits_retain(self.wanted.flags);
        let enabled = flags & offered;
        // An older kernel may lack some: it then does without.
        let _ = config.add_capabilities(enabled);
        let _ = config.set_max_write(self.wanted.max_write);
        let mut readahead = u32::MAX;
        if let Err(most) = config.set_max_readahead(readahead) {
            let _ = config.set_max_readahead(most);
            readahead = most;
        }
        let _ = config.set_max_background(self.wanted.max_background);
        let _ = self.agreed.set(Features {
            minor: config.kernel_abi().1,
            offered: offered.bits(),
            enabled: enabled.bits(),
            max_write: self.wanted.max_write,
            max_payload: max_payload(self.wanted.max_write, readahead),
        });
        Ok(())
    }
}

/// What the kernel demands of a ring's payload buffers: `max_write` and `max_pages`, which `fuser`
/// makes of both arguments, fit into them. (It may cut `max_pages` down.)
fn max_payload(max_write: u32, readahead: u32) -> usize {
    let page = rustix::param::page_size();
    let most = max_write.max(readahead) as usize;
    most.max(MIN_READ_BUFFER).next_multiple_of(page)
}

fn option(name: &str) -> MountOption {
    match name {
        "ro" => MountOption::RO,
        "rw" => MountOption::RW,
        "dev" => MountOption::Dev,
        "nodev" => MountOption::NoDev,
        "suid" => MountOption::Suid,
        "nosuid" => MountOption::NoSuid,
        "exec" => MountOption::Exec,
        "noexec" => MountOption::NoExec,
        "atime" => MountOption::Atime,
        "noatime" => MountOption::NoAtime,
        "dirsync" => MountOption::DirSync,
        "sync" => MountOption::Sync,
        "async" => MountOption::Async,
        "default_permissions" => MountOption::DefaultPermissions,
        other => MountOption::CUSTOM(other.into()),
    }
}

/// A mount whose INIT is answered, before and while its requests are served. Dropped, it
/// unmounts what [`Channel::mount`] mounted.
#[derive(Debug)]
pub struct Channel {
    _session: fuser::Session<Init>,
    features: Features,
    device: Arc<Device>,
    pub(crate) users: Users,
}

impl Channel {
    /// Mounts on `dir`, by mount(2) or by fusermount3, and answers INIT.
    pub fn mount(
        dir: &Path,
        options: &MountOptions,
        users: Users,
        wanted: Wanted,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        config.acl = users.acl();
        config.mount_options = vec![
            MountOption::FSName(options.source.clone()),
            MountOption::Subtype(options.subtype.clone()),
        ];
        let named = options.options.iter().map(|name| option(name));
        config.mount_options.extend(named);
        Self::negotiate(wanted, users, |init| {
            fuser::Session::new(init, dir, &config)
        })
    }

    /// Answers INIT for a descriptor that is mounted already.
    pub fn adopt(device: OwnedFd, users: Users, wanted: Wanted) -> io::Result<Self> {
        Self::negotiate(wanted, users, |init| {
            fuser::Session::from_fd(init, device, users.acl(), Config::default())
        })
    }

    fn negotiate(
        wanted: Wanted,
        users: Users,
        session: impl FnOnce(Init) -> io::Result<fuser::Session<Init>>,
    ) -> io::Result<Self> {
        let agreed = Arc::new(OnceLock::new());
        let init = Init {
            wanted,
            agreed: agreed.clone(),
        };
        let session = session(init)?;
        let features = agreed
            .get()
            .copied()
            .ok_or_else(|| io::Error::other("INIT was not answered"))?;
        let device = session.as_fd().try_clone_to_owned()?;
        Ok(Channel {
            _session: session,
            features,
            device: Arc::new(device.into()),
            users,
        })
    }

    /// What INIT agreed on.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The device that the mount was made with.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Sends notifications to this mount.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.device.clone(), self.features.expires_names())
    }
}
