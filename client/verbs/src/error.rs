//! Errors of libibverbs and librdmacm, each as one sentence that names the remedy.
//!
//! The errno of a call rarely tells a user what to do, so [`local`] adds the usual remedy: load a
//! driver, open a device file, raise the limit of locked memory. [`NoWay`] is the error for a peer
//! that no RDMA device reaches; it has a short reason for the message that says which provider was
//! chosen instead.

use nfsrdma_rdma::Error;
use std::net::SocketAddr;
use std::{fmt, io};

/// The error for a failure of libibverbs or librdmacm, with its remedy.
pub(crate) fn local(what: &str, error: io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENOSYS | libc::ENXIO) => {
            "there is no RDMA device on this machine: load the driver of one (rdma_rxe and siw \
             need no hardware) together with rdma_ucm and ib_uverbs, or use transport=iwarp"
        }
        Some(libc::ENOENT) => {
            "/dev/infiniband is missing or closed to this user: load rdma_ucm and ib_uverbs, \
             run as root, give a container --device /dev/infiniband/rdma_cm and --device /dev/infiniband/uverbs0, or use \
             transport=iwarp"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "this user may not open /dev/infiniband/rdma_cm or uverbs*: run as root, add the \
             user to their group (rdma), or give a container --device for each"
        }
        Some(libc::ENOMEM | libc::EAGAIN) => {
            "the limit of locked memory may be too low: raise it (ulimit -l unlimited, \
             LimitMEMLOCK=infinity, in a container --ulimit memlock=-1) or ask for a smaller \
             cache"
        }
        Some(libc::EINVAL) => {
            "the RDMA device does not support what was asked of it: see the \
             limits in ibv_devinfo -v, or use transport=iwarp"
        }
        _ => "see ibv_devinfo and dmesg for the state of the RDMA device",
    };
    Error::local(format!("{what}; {remedy}"), error)
}

/// Why no RDMA device reaches a peer.
#[derive(Debug, Clone)]
pub struct NoWay {
    reason: String,
    /// The complete error, with its remedy.
    pub error: Error,
}

impl NoWay {
    pub(crate) fn unusable(error: Error) -> Self {
        let errno = match &error {
            Error::Local { error, .. } => error.raw_os_error(),
            _ => None,
        };
        let reason = match errno {
            Some(libc::ENODEV | libc::ENOSYS | libc::ENXIO) => "this machine has no RDMA device",
            Some(libc::ENOENT) => "/dev/infiniband/rdma_cm is missing or closed to this user",
            Some(libc::EACCES | libc::EPERM) => "this user may not open /dev/infiniband",
            _ => "RDMA does not work on this machine",
        };
        NoWay {
            reason: reason.to_owned(),
            error,
        }
    }

    pub(crate) fn unreachable(peer: SocketAddr, error: Error) -> Self {
        NoWay {
            reason: format!("no RDMA device reaches {}", peer.ip()),
            error,
        }
    }

    /// The reason in a few words, to follow "because".
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for NoWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NoWay {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_short() {
        for (errno, words) in [
            (libc::ENODEV, "no RDMA device"),
            (libc::ENOENT, "missing or closed"),
            (libc::EACCES, "this user"),
            (libc::EIO, "does not work"),
        ] {
            let error = local("cannot do it", io::Error::from_raw_os_error(errno));
            let no = NoWay::unusable(error);
            assert!(no.reason().contains(words), "{}", no.reason());
            assert!(no.to_string().starts_with("cannot do it; "));
        }
    }

    #[test]
    fn each_error_names_its_remedy() {
        for (errno, remedy) in [
            (libc::ENODEV, "rdma_rxe"),
            (libc::ENOSYS, "transport=iwarp"),
            (libc::ENOENT, "--device"),
            (libc::EACCES, "run as root"),
            (libc::ENOMEM, "ulimit -l"),
            (libc::EINVAL, "ibv_devinfo"),
            (libc::EIO, "dmesg"),
        ] {
            let text = local("cannot do it", io::Error::from_raw_os_error(errno)).to_string();
            assert!(text.contains(remedy), "{text}");
            assert!(text.starts_with("cannot do it; "));
            assert!(!text.contains('\n') && !text.contains("  "), "{text}");
        }
    }
}
