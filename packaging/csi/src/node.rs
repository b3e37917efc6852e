//! The Node service: a volume is a mount on the directory that the orchestrator names.

use crate::driver::Driver;
use crate::messages::{
    NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, ServiceCapabilities, Type, Unit,
    VolumeUsage,
};
use crate::volume::{Attributes, Place, check, flags, identified, invalid, is_read_only};
use nfsrdma_mountinfo::{Mount, on_top_of};
use rustix::fs::statvfs;
use rustix::io::Errno;
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use tonic::Status;

const ATTRIBUTES: [&str; 4] = ["server", "share", "subDir", "mountOptions"];

impl Driver {
    pub(crate) fn node_get_capabilities(
        &self,
        _: NodeGetCapabilitiesRequest,
    ) -> Result<ServiceCapabilities, Status> {
        Ok(ServiceCapabilities::of(Type::GET_VOLUME_STATS))
    }

    pub(crate) fn node_get_info(
        &self,
        _: NodeGetInfoRequest,
    ) -> Result<NodeGetInfoResponse, Status> {
        Ok(NodeGetInfoResponse {
            node_id: self.node_id.clone(),
        })
    }

    /// Mounts the volume. A mount that is there already is the same one; a dead one is replaced.
    pub(crate) fn node_publish_volume(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        identified(&request.volume_id)?;
        let target = directory(&request.target_path)?;
        let capability = request.volume_capability.as_ref();
        let capability =
            capability.ok_or_else(|| invalid("the request has no capability of the volume"))?;
        check(capability)?;
        let attributes = Attributes::new(&request.volume_context, &ATTRIBUTES)?;
        let place = Place::new(
            attributes.get("server"),
            attributes.get("share"),
            attributes.get("subDir"),
        )?;
        let mut options = vec![attributes.get("mountOptions")];
        options.extend(flags(capability));
        if request.readonly || is_read_only(capability) {
            options.push("ro");
        }
        // The last one counts.
        let all = std::iter::once(self.mounter.options()).chain(options.iter().copied());
        let mut all = all.flat_map(|some| some.split(','));
        let read_only = all.rfind(|one| ["ro", "rw"].contains(one)) == Some("ro");
        let _taken = self.take(&request.target_path)?;
        let made = DirBuilder::new().recursive(true).mode(0o750).create(target);
        let target = &resolved(target);
        match on(target)? {
            Some(mount) if !is_dead(&mount) => {
                let same = mount.is_ours() && mount.source == *place.source();
                return match same && mount.is_read_only() == read_only {
                    true => Ok(NodePublishVolumeResponse {}),
                    false => Err(Status::already_exists(format!(
                        "something else is mounted on {}: unpublish it first",
                        target.display()
                    ))),
                };
            }
            // The program takes it away. No directory can be made over it.
            Some(_) => {}
            None => made.map_err(|error| {
                let shown = target.display();
                Status::internal(format!("the directory {shown} cannot be made: {error}"))
            })?,
        }
        self.mounter.mount(&place.source(), target, options)?;
        Ok(NodePublishVolumeResponse {})
    }

    /// Writes back, unmounts, and removes the directory.
    pub(crate) fn node_unpublish_volume(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        identified(&request.volume_id)?;
        let target = &resolved(directory(&request.target_path)?);
        let _taken = self.take(&request.target_path)?;
        if let Some(mount) = on(target)? {
            if !mount.is_ours() {
                return Err(Status::failed_precondition(format!(
                    "what is mounted on {} is not of nfsrdma: unmount it by hand",
                    target.display()
                )));
            }
            self.mounter.unmount(target)?;
        }
        match std::fs::remove_dir(target) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Status::internal(format!(
                "the directory {} cannot be removed: {error}",
                target.display()
            ))),
            _ => Ok(NodeUnpublishVolumeResponse {}),
        }
    }

    pub(crate) fn node_get_volume_stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        identified(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(invalid("the request has no path of the volume"));
        }
        let path = directory(&request.volume_path);
        let dir = &resolved(path.map_err(|status| Status::not_found(status.message()))?);
        if !on(dir)?.is_some_and(|mount| mount.is_ours()) {
            return Err(Status::not_found(format!(
                "no volume of nfsrdma.csi is mounted on {}",
                dir.display()
            )));
        }
        // While the server is away one call waits, and not a thread for each time that somebody asks.
        let _taken = self.take(&format!("the size of {}", request.volume_path))?;
        let found = statvfs(dir).map_err(|errno| {
            let (dir, error) = (dir.display(), io::Error::from(errno));
            Status::internal(format!("the mount on {dir} does not work: {error}"))
        })?;
        let usage = |unit, size: u64, [total, free, available]: [u64; 3]| {
            let number = |count: u64| i64::try_from(count.saturating_mul(size)).unwrap_or(i64::MAX);
            VolumeUsage {
                available: number(available),
                total: number(total),
                used: number(total.saturating_sub(free)),
                unit: unit as i32,
            }
        };
        let bytes = [found.f_blocks, found.f_bfree, found.f_bavail];
        let files = [found.f_files, found.f_ffree, found.f_favail];
        let mut all = vec![usage(Unit::Bytes, found.f_frsize, bytes)];
        // A server need not count its files.
        if found.f_files > 0 {
            all.push(usage(Unit::Inodes, 1, files));
        }
        Ok(NodeGetVolumeStatsResponse { usage: all })
    }
}

/// A directory that an orchestrator names.
fn directory(path: &str) -> Result<&Path, Status> {
    let dir = Path::new(path);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    match dir.is_absolute() && dir.components().all(plain) {
        true => Ok(dir),
        false => Err(invalid(
            "the request has no absolute path, or one with '..'",
        )),
    }
}

/// The path of a directory without symbolic links, as the table of mounts has it. The directory itself is not looked at:
/// there may be a dead mount on it.
fn resolved(dir: &Path) -> PathBuf {
    let parent = dir.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, dir.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => dir.to_owned(),
    }
}

/// The mount on a directory.
fn on(dir: &Path) -> Result<Option<Mount>, Status> {
    on_top_of(dir)
        .map_err(|error| Status::internal(format!("the table of mounts cannot be read: {error}")))
}

/// Whether the mount's process has ended. Where it has not, this asks the server.
fn is_dead(mount: &Mount) -> bool {
    mount.is_ours() && statvfs(&mount.dir).is_err_and(|errno| errno == Errno::NOTCONN)
}
