//! Translates mount options into the settings of the transport, the file system and the adapter.

use crate::kerberos::driver::Helpers;
use crate::kerberos::establish::Kerberos;
use crate::mount::fuse_mount::{allow_other, permissions};
use crate::options::mount_source::MountSource;
use crate::options::show::Negotiated;
use crate::options::{LocalLock, MAX_IO, Options, Permissions, Recovery};
use nfsrdma_fs::adapter::FuseOptions;
use nfsrdma_fs::fs::{self, FsConfig};
use nfsrdma_nfs3::Nfs3Client;
use nfsrdma_nfs3::Transport;
use nfsrdma_nfs3::options::{ClientOptions, Mechanism, MountTarget, TransportOptions};
use rustix::process::geteuid;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Memory for messages and Reply chunks in flight, in addition to the cache, in bytes. It is
/// reserved, and touched only when used.
const MESSAGES: usize = 16 << 20;

/// The options with the flavor and the READ and WRITE sizes in force, which may change when a server restarts.
pub(crate) fn effective(options: &Options, client: &Nfs3Client) -> String {
    let limits = client.limits();
    let mut options = Options {
        permissions: Some(permissions(options)),
        local_lock: options.local_lock.or(Some(options.wanted_local_lock())),
        ..options.clone()
    };
    options.client.flavors = vec![client.flavor()];
    options.effective(Negotiated {
        rsize: limits.rtmax,
        wsize: limits.wtmax,
    })
}

/// The options before the server has said which sizes it accepts.
pub(crate) fn wanted(options: &Options) -> String {
    options.effective(Negotiated {
        rsize: options.client.rsize.unwrap_or(MAX_IO),
        wsize: options.client.wsize.unwrap_or(MAX_IO),
    })
}

/// The target of the mount, for the transport.
pub(crate) fn target(spec: &MountSource) -> MountTarget {
    MountTarget {
        host: spec.host.clone(),
        export: spec.export.clone(),
    }
}

/// The settings of the NFS client and its transport.
pub(crate) fn client(options: &Options) -> ClientOptions {
    ClientOptions {
        transport: TransportOptions {
            nconnect: options.connections(),
            ..options.client.transport.clone()
        },
        ..options.client.clone()
    }
}

/// The port of NFS over TCP, by which the tokens of contexts go (RFC 2623 section 2.1 leaves the transport open).
const NFS_TCP_PORT: u16 = 2049;

/// The same, with what makes the contexts of users on `runtime` if they may be needed for `host`.
pub(crate) fn client_with(options: &Options, host: &str, runtime: &Handle) -> ClientOptions {
    let mechanism = options.has_kerberos().then(|| {
        let helpers = Helpers::by_environment(format!("nfs@{host}"));
        let port = options.gss_port.unwrap_or(NFS_TCP_PORT);
        let kerberos = Kerberos::new(helpers, port, runtime.clone());
        Mechanism(Arc::new(kerberos))
    });
    ClientOptions {
        mechanism,
        ..client(options)
    }
}

/// The settings of the file system.
pub(crate) fn file_system(options: &Options) -> FsConfig {
    // The rest of `cache=`, which limits all buffers, is for data in flight and for messages.
    let cache = options.cache as usize / 4 * 3;
    let dirty = (options.dirty_limit() as usize).min(cache);
    FsConfig {
        permissions: match permissions(options) {
            Permissions::Kernel => fs::Permissions::Kernel,
            Permissions::Server if allow_other(options) => fs::Permissions::Server,
            Permissions::Server => fs::Permissions::ServerForOne(geteuid().as_raw()),
        },
        hard: options.client.transport.recovery == Recovery::Hard,
        sync: options.vfs.sync,
        cache_bytes: cache,
        dirty_bytes: dirty,
        dirty_file_bytes: (dirty / 2).max(1 << 20),
        ..options.fs.clone()
    }
}

/// The size of the pool from which all buffers come, in bytes.
pub(crate) fn pool_bytes(options: &Options, config: &FsConfig) -> usize {
    // Each credit may have a call and a reply, in blocks of a power of two.
    let transport = &options.client.transport;
    let message = (transport.inline as usize).next_power_of_two().max(4096);
    let calls = transport.credits as usize * options.connections() as usize;
    config.pool_bytes() + MESSAGES + 4 * calls * message
}

/// The settings of the adapter. `local_lock` says which locks the kernel keeps.
pub(crate) fn fuse(options: &Options, local_lock: LocalLock) -> FuseOptions {
    FuseOptions {
        // Waking a thread on an idle CPU costs more than a call, so there are few workers.
        workers: options.workers(),
        kernel_checks: permissions(options) == Permissions::Kernel,
        posix_locks: matches!(local_lock, LocalLock::None | LocalLock::Flock),
        flock_locks: matches!(local_lock, LocalLock::None | LocalLock::Posix),
        ..FuseOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn options(text: &str) -> Options {
        Options::parse(text).unwrap()
    }

    #[test]
    fn the_engine_accepts_the_extremes() {
        for text in [
            "",
            "rsize=1,wsize=1,credits=1,inline=1024,nconnect=1,timeo=1",
            "rsize=1G,wsize=1G,credits=1024,inline=262144,nconnect=16,timeo=36000",
        ] {
            assert_eq!(client(&options(text)).check(), Ok(()), "{text}");
        }
    }

    #[test]
    fn noac_trusts_nothing() {
        let config = file_system(&options("noac"));
        assert!(config.sync);
        assert_eq!(config.times.acregmax, Duration::ZERO);
        assert_eq!(config.times.acdirmax, Duration::ZERO);
    }
}
