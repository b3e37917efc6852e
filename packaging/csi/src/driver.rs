//! What all services share.

use crate::messages::CapacityRange;
use crate::mount::Mounter;
use anyhow::Context;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tonic::Status;

/// The name of the driver, as the orchestrator knows it.
pub const NAME: &str = "nfsrdma.csi";

/// The name of a dynamic volume, and the size that was asked for.
pub(crate) type Asked = (String, Option<CapacityRange>);

/// The driver. Its methods block.
#[derive(Debug)]
pub struct Driver {
    pub(crate) mounter: Mounter,
    pub(crate) node_id: String,
    pub(crate) work_dir: PathBuf,
    busy: Mutex<HashSet<String>>,
    /// What the volumes that this process has made were asked for, by their sources.
    asked: Mutex<HashMap<String, Asked>>,
}

impl Driver {
    /// `program` is the command that is run as `nfsrdma`, `options` are those of each mount. Mounts that a killed
    /// predecessor left in the work directory are ended.
    pub fn new(
        program: &str,
        options: &str,
        node_id: &str,
        work_dir: &Path,
    ) -> anyhow::Result<Driver> {
        let mounter = Mounter::new(program, options);
        anyhow::ensure!(!node_id.is_empty(), "--node-id is empty: name the node");
        mounter.works().map_err(|status| {
            let said = status.message();
            anyhow::anyhow!("'{program} --version' does not work: {said}; install nfsrdma, or name the command by --program")
        })?;
        std::fs::create_dir_all(work_dir)
            .and_then(|()| work_dir.canonicalize())
            .and_then(|work_dir| {
                for mount in nfsrdma_mountinfo::all()? {
                    if mount.dir.starts_with(&work_dir) && mounter.unmount(&mount.dir).is_ok() {
                        let _ = std::fs::remove_dir(&mount.dir);
                    }
                }
                Ok(Driver {
                    mounter,
                    node_id: node_id.to_owned(),
                    work_dir,
                    busy: Mutex::default(),
                    asked: Mutex::default(),
                })
            })
            .with_context(|| format!("--work-dir {} cannot be used", work_dir.display()))
    }

    pub(crate) fn asked(&self) -> MutexGuard<'_, HashMap<String, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what an operation works on; a second operation on it is refused until the first one has ended.
    pub(crate) fn take(&self, what: &str) -> Result<Taken<'_>, Status> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        match busy.insert(what.to_owned()) {
            true => Ok(Taken {
                driver: self,
                what: what.to_owned(),
            }),
            false => Err(Status::aborted(format!(
                "another call for {what} has not ended yet: call again later"
            ))),
        }
    }
}

/// What [`Driver::take`] took, until it is dropped.
pub(crate) struct Taken<'a> {
    driver: &'a Driver,
    what: String,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let busy = self.driver.busy.lock();
        busy.unwrap_or_else(PoisonError::into_inner)
            .remove(&self.what);
    }
}
