//! What a successor must know of a mount besides its objects: the options, and what mounting found
//! out. It is written into memory that the holder keeps, once, before the first request is read.

use crate::cli::MountArgs;
use crate::failure::{Exit, Failure};
use crate::mount::connect::Plan;
use crate::mount::mount_point::MountPoint;
use crate::options::mount_source::MountSource;
use crate::options::{LocalLock, Options, Transport};
use nfsrdma_nfs3::mount::Found;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// The version of this record. A program reads its own only.
const VERSION: u32 = 1;

/// The record. Paths and the source are bytes, since they need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    spec: Vec<u8>,
    directory: Vec<u8>,
    /// The options that were given, and those with nfsmount.conf.
    given: String,
    options: String,
    foreground: bool,
    verbose: u8,
    log: Option<Vec<u8>>,
    /// The choices that were made.
    transport: Transport,
    pub(crate) local_lock: LocalLock,
    pub(crate) found: Found,
    pub(crate) mount: MountIdentity,
    /// When it was mounted, by the clock of [`now_ns`].
    pub(crate) mounted_ns: u64,
}

/// How the kernel names the mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountIdentity {
    /// The ID of the mount; 0 if it could not be determined.
    pub(crate) id: u64,
    /// `major:minor` of the file system, if it is known.
    pub(crate) device: Option<String>,
}

/// What was found out while mounting, for [`Record::new`].
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) found: Found,
    /// The name of the provider.
    pub(crate) provider: &'static str,
    pub(crate) local_lock: LocalLock,
    pub(crate) mount: MountIdentity,
    pub(crate) mounted_ns: u64,
}

/// The time by a clock that all processes share, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    nfsrdma_rdma::nanoseconds(now)
}

/// The error for a record that this program cannot use.
fn unusable(why: impl std::fmt::Display) -> Failure {
    Failure::new(
        Exit::Internal,
        format!("the mount cannot be gone on with, its record is unusable: {why}"),
    )
}

impl Record {
    pub(crate) fn new(plan: &Plan, facts: Facts) -> io::Result<Record> {
        let log = plan
            .args
            .log
            .as_ref()
            .map(std::path::absolute)
            .transpose()?;
        Ok(Record {
            version: VERSION,
            spec: plan.args.spec.as_bytes().to_vec(),
            directory: plan.point.path.as_os_str().as_bytes().to_vec(),
            given: plan.args.options.clone(),
            options: plan.text.clone(),
            foreground: plan.args.foreground,
            verbose: plan.args.verbose,
            log: log.map(|path| path.into_os_string().into_vec()),
            transport: match facts.provider {
                "verbs" => Transport::Verbs,
                _ => Transport::Iwarp,
            },
            local_lock: facts.local_lock,
            found: facts.found,
            mount: facts.mount,
            mounted_ns: facts.mounted_ns,
        })
    }

    /// The options, with those of nfsmount.conf.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// The same mount with other options.
    pub(crate) fn with_options(&self, options: String) -> Record {
        Record {
            options,
            ..self.clone()
        }
    }

    /// Memory with this record, which nobody can change any longer.
    pub(crate) fn written(&self) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("nfsrdma-plan", flags)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        fcntl_add_seals(
            &file,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(file.into())
    }

    /// Reads it.
    pub(crate) fn read(memory: OwnedFd) -> Result<Record, Failure> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let file = File::from(memory);
        let size = file.metadata().map_err(unusable)?.len();
        // All processes share the position of the descriptor.
        let mut text = vec![0; usize::try_from(size).map_err(unusable)?];
        file.read_exact_at(&mut text, 0).map_err(unusable)?;
        let Versioned { version } = serde_json::from_slice(&text).map_err(unusable)?;
        if version != VERSION {
            return Err(unusable(format_args!(
                "its version is {version}, and this program knows {VERSION}"
            )));
        }
        serde_json::from_slice(&text).map_err(unusable)
    }

    /// The plan of the mount, with the choices that were made.
    pub(crate) fn plan(&self) -> Result<Plan, Failure> {
        let args = MountArgs {
            spec: OsString::from_vec(self.spec.clone()),
            dir: PathBuf::from(OsStr::from_bytes(&self.directory)),
            options: self.given.clone(),
            foreground: self.foreground,
            verbose: self.verbose,
            log: self.log.as_ref().map(|path| OsStr::from_bytes(path).into()),
            ..MountArgs::default()
        };
        let spec = MountSource::parse(&args.spec)?;
        let options = Options {
            transport: self.transport,
            ..Options::parse_with_port(&self.options, spec.port)?
        };
        Ok(Plan {
            point: MountPoint::mounted(args.dir.clone()),
            args,
            spec,
            options,
            text: self.options.clone(),
        })
    }
}
