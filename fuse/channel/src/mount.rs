//! INIT, by `fuser`. No other module uses that crate.
//!
//! [`Channel::adopt`] takes a descriptor that is mounted, and waits until INIT is answered: `fuser` calls the `init` of
//! a file system that has no other operation. It enables those of the wanted features that the kernel offers, and notes
//! them ([`Features`]). From then on this crate reads the requests.

use super::abi::init;
use super::device::Device;
use super::journal::{Journal, Slot};
use super::notify::Notifier;
use fuser::{Config, Filesystem, InitFlags, KernelConfig, SessionACL};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// The settings that INIT requests from the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Flags of [`abi::init`](super::abi::init); those that the kernel offers are enabled.
    pub flags: u64,
    /// Largest WRITE, in bytes.
    pub max_write: u32,
    /// The most background requests that may be under way.
    pub max_background: u16,
    /// Flags for which the kernel is taken not to offer them, as older ones do not.
    pub masked: u64,
}

/// What INIT agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// The kernel's minor version of protocol 7.
    pub minor: u32,
    /// The flags that the kernel offered.
    pub offered: u64,
    /// The wanted flags that are enabled. (`fuser` enables some others.)
    pub enabled: u64,
    /// Largest WRITE, in bytes. The kernel may send smaller ones.
    pub max_write: u32,
}

impl Features {
    /// Whether a flag of [`abi::init`](super::abi::init) is enabled.
    pub fn has(&self, flag: u64) -> bool {
        self.enabled & flag == flag
    }

    /// Whether the kernel knows notifications by which a name expires instead of being dropped. It
    /// only offers this flag in INIT; it need not be enabled.
    pub fn expires_names(&self) -> bool {
        self.offered & init::HAS_EXPIRE_ONLY != 0
    }

    /// Whether the kernel can give requests again that were read and not answered (Linux 6.9), so that
    /// [`Channel::resume`] needs no journal of them. It only offers this flag, too.
    pub fn resends(&self) -> bool {
        self.offered & init::HAS_RESEND != 0
    }
}

/// As numbers, for the record that a later process reads.
impl From<Features> for [u64; 4] {
    fn from(of: Features) -> Self {
        [of.minor.into(), of.offered, of.enabled, of.max_write.into()]
    }
}

impl From<[u64; 4]> for Features {
    fn from([minor, offered, enabled, max_write]: [u64; 4]) -> Self {
        Features {
            minor: minor as u32,
            offered,
            enabled,
            max_write: max_write as u32,
        }
    }
}

/// The file system that `fuser` serves: it has only INIT.
#[derive(Debug)]
struct Init {
    wanted: Wanted,
    agreed: Arc<OnceLock<Features>>,
}

impl Filesystem for Init {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let masked = InitFlags::from_bits_retain(self.wanted.masked);
        let offered = config.capabilities() & !masked;
        let flags = InitFlags::from_bits_retain(self.wanted.flags);
        let enabled = flags & offered;
        // An older kernel may refuse some of these, and works without them.
        let _ = config.add_capabilities(enabled);
        let _ = config.set_max_write(self.wanted.max_write);
        let _ = config.set_max_background(self.wanted.max_background);
        let _ = self.agreed.set(Features {
            minor: config.kernel_abi().1,
            offered: offered.bits(),
            enabled: enabled.bits(),
            max_write: self.wanted.max_write,
        });
        Ok(())
    }
}

/// A mount whose INIT is answered.
#[derive(Debug)]
pub struct Channel {
    features: Features,
    device: Arc<Device>,
    /// Devices for readers that another process has made ([`Channel::resume`]).
    pub(crate) clones: Vec<Arc<Device>>,
    /// What requests are read into, if they are kept.
    pub(crate) journal: Option<Arc<Journal>>,
    /// Requests that a process has read that has ended, in the journal, with the device of each.
    pub(crate) unanswered: Vec<(Arc<Device>, Slot)>,
}

impl Channel {
    /// Answers INIT for a descriptor that is mounted.
    pub fn adopt(device: OwnedFd, wanted: Wanted) -> io::Result<Self> {
        let agreed = Arc::new(OnceLock::new());
        let init = Init {
            wanted,
            agreed: agreed.clone(),
        };
        // Who may use the mount was said to mount(2).
        let session = fuser::Session::from_fd(init, device, SessionACL::All, Config::default())?;
        let features = agreed
            .get()
            .copied()
            .ok_or_else(|| io::Error::other("INIT was not answered"))?;
        let device = Arc::new(session.as_fd().try_clone_to_owned()?.into());
        Ok(Channel::of(device, features))
    }

    pub(crate) fn of(device: Arc<Device>, features: Features) -> Self {
        Channel {
            features,
            device,
            clones: Vec::new(),
            journal: None,
            unanswered: Vec::new(),
        }
    }

    /// What INIT agreed on.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The descriptor of /dev/fuse with which the mount was made.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A sender of notifications for this mount, with a device of its own, where the kernel has that.
    pub fn notifier(&self) -> Notifier {
        let own = self.device.try_clone().map(Arc::new);
        let device = own.unwrap_or_else(|_| self.device.clone());
        Notifier::new(device, self.features.expires_names())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_the_same_after_a_record() {
        let features = Features {
            minor: 31,
            offered: u64::MAX,
            enabled: 1 << 63 | 1,
            max_write: u32::MAX,
        };
        assert_eq!(Features::from(<[u64; 4]>::from(features)), features);
        assert!(features.resends());
        let older = Features {
            offered: !(1 << 39),
            ..features
        };
        assert!(!older.resends());
    }
}
