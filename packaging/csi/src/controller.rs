//! The Controller service: a dynamic volume is a directory of an export, made and deleted through a mount that lasts as
//! long as that takes.

use crate::driver::{Asked, Driver};
use crate::messages::{
    Confirmed, ControllerGetCapabilitiesRequest, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, ServiceCapabilities, Type,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};
use crate::volume::{Attributes, Id, Place, check, flags, identified, invalid};
use rustix::fs::{Mode, OFlags, fchmod, mkdirat, open, openat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use tonic::Status;

const PARAMETERS: [&str; 6] = [
    "server",
    "share",
    "subDir",
    "mountOptions",
    "mountPermissions",
    "onDelete",
];
/// In `subDir`, the name of the claim, of its namespace, and of the volume.
const NAMES: [(&str, &str); 3] = [
    ("${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name"),
    (
        "${pvc.metadata.namespace}",
        "csi.storage.k8s.io/pvc/namespace",
    ),
    (VOLUME, "csi.storage.k8s.io/pv/name"),
];
const VOLUME: &str = "${pv.metadata.name}";

impl Driver {
    pub(crate) fn controller_get_capabilities(
        &self,
        _: ControllerGetCapabilitiesRequest,
    ) -> Result<ServiceCapabilities, Status> {
        Ok(ServiceCapabilities::of(Type::CREATE_DELETE_VOLUME))
    }

    /// Makes the directory. One that exists is the same volume.
    pub(crate) fn create_volume(
        &self,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        if request.name.is_empty() {
            return Err(invalid("the request has no name for the volume"));
        }
        if request.volume_capabilities.is_empty() {
            return Err(invalid("the request has no capabilities of the volume"));
        }
        request.volume_capabilities.iter().try_for_each(check)?;
        if request.volume_content_source.is_some() {
            return Err(invalid(
                "nfsrdma.csi cannot fill a volume from a snapshot or another volume: make an empty one, and copy",
            ));
        }
        let parameters = Attributes::new(&request.parameters, &PARAMETERS)?;
        let retain = match parameters.get("onDelete") {
            "" | "delete" => false,
            "retain" => true,
            _ => return Err(invalid("'onDelete' is neither delete nor retain")),
        };
        let id = Id {
            place: Place::new(
                parameters.get("server"),
                parameters.get("share"),
                &directory(&request, parameters.get("subDir"), retain)?,
            )?,
            retain,
        };
        let mode = permissions(parameters.get("mountPermissions"))?;
        let options = parameters.get("mountOptions");
        let first = request.volume_capabilities.first();
        let flags = first.into_iter().flat_map(flags);
        let source = id.place.source();
        let _taken = self.take(&source)?;
        let asked = (request.name.clone(), request.capacity_range);
        self.is_asked_for_as_before(&source, &asked)?;
        self.mounted(&id.place, [options].into_iter().chain(flags), |root| {
            make(root, &id.place.directory, mode)
        })?;
        self.asked().insert(source, asked);
        let mut context = HashMap::from([
            ("server".to_owned(), id.place.server.clone()),
            ("share".to_owned(), id.place.share.clone()),
            ("subDir".to_owned(), id.place.directory.clone()),
        ]);
        if !options.is_empty() {
            context.insert("mountOptions".to_owned(), options.to_owned());
        }
        Ok(CreateVolumeResponse {
            volume: Some(Volume {
                // A directory has no size of its own.
                capacity_bytes: 0,
                volume_id: id.to_string(),
                volume_context: context,
            }),
        })
    }

    /// Deletes the directory with all that is in it, unless it is retained.
    pub(crate) fn delete_volume(
        &self,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Status> {
        identified(&request.volume_id)?;
        // What this driver cannot have made does not exist, and is deleted.
        if let Some(id) = Id::parse(&request.volume_id) {
            let source = id.place.source();
            let _taken = self.take(&source)?;
            if !id.retain {
                // Nothing but the id and secrets comes with this request.
                let options = request.secrets.get("mountOptions").map(String::as_str);
                self.mounted(&id.place, options, |root| remove(root, &id.place.directory))?;
            }
            self.asked().remove(&source);
        }
        Ok(DeleteVolumeResponse {})
    }

    pub(crate) fn validate_volume_capabilities(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        if request.volume_id.is_empty() || request.volume_capabilities.is_empty() {
            return Err(invalid(
                "the request has no id of the volume, or no capabilities",
            ));
        }
        if request.volume_context.is_empty() && Id::parse(&request.volume_id).is_none() {
            return Err(Status::not_found(
                "nfsrdma.csi has made no volume with this id",
            ));
        }
        let refused = request
            .volume_capabilities
            .iter()
            .find_map(|one| check(one).err());
        Ok(match refused {
            Some(status) => ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: status.message().to_owned(),
            },
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                }),
                message: String::new(),
            },
        })
    }

    /// Fails if this process has made the volume for another size. A directory has no size that could be compared; an
    /// orchestrator that asks once more, also of another process, asks for the same one.
    fn is_asked_for_as_before(&self, source: &str, asked: &Asked) -> Result<(), Status> {
        match self.asked().get(source) {
            Some(before) if before.0 == asked.0 && before.1 != asked.1 => {
                Err(Status::already_exists(
                    "a volume of this name was made for another size: use another name",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Mounts the share of a volume, does something in its root directory, and unmounts it.
    fn mounted<'a>(
        &self,
        place: &Place,
        options: impl IntoIterator<Item = &'a str>,
        work: impl FnOnce(OwnedFd) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let dir = tempfile::Builder::new()
            .prefix("share-")
            .tempdir_in(&self.work_dir)
            .map_err(|error| {
                let shown = self.work_dir.display();
                Status::internal(format!("no directory can be made in {shown}: {error}"))
            })?;
        // Nobody deletes through a mount that could not be ended.
        let dir = dir.keep();
        let result = self
            .mounter
            .mount(&place.export(), &dir, options)
            .and_then(|()| {
                let result = root(&dir).and_then(work);
                self.mounter.unmount(&dir).and(result)
            });
        let _ = std::fs::remove_dir(&dir);
        result
    }
}

/// The directory of a new volume, relative to its share. One that is deleted with its volume is of this volume only: the
/// next claim may have the same name, and be there before the last one is deleted.
fn directory(request: &CreateVolumeRequest, wanted: &str, retain: bool) -> Result<String, Status> {
    if wanted.trim_matches('/').is_empty() {
        return match request.name.contains('/') {
            true => Err(invalid("the name of the volume has a '/': give 'subDir'")),
            false => Ok(request.name.clone()),
        };
    }
    if !retain && !wanted.contains(VOLUME) {
        return Err(invalid(format!(
            "'subDir' without {VOLUME} may be the directory of several volumes, and would be deleted with the first: \
             add that, or set 'onDelete' to retain"
        )));
    }
    let mut directory = wanted.to_owned();
    for (name, key) in NAMES {
        if directory.contains(name) {
            let value = request.parameters.get(key).ok_or_else(|| {
                invalid(format!(
                    "'subDir' has {name}, which the provisioner does not tell: start it with --extra-create-metadata"
                ))
            })?;
            directory = directory.replace(name, value);
        }
    }
    Ok(directory)
}

/// The mode of a new directory, if it is given.
fn permissions(text: &str) -> Result<Option<Mode>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    match u32::from_str_radix(text, 8) {
        Ok(0) => Ok(None),
        Ok(mode) if mode <= 0o7777 => Ok(Some(Mode::from_raw_mode(mode))),
        _ => Err(invalid(
            "'mountPermissions' is not an octal mode such as 0770",
        )),
    }
}

fn root(dir: &Path) -> Result<OwnedFd, Status> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(dir, flags, Mode::empty()).map_err(failed)
}

/// Opens a directory in another one. A symbolic link, which anybody may have put there, is not followed.
fn enter(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Makes a directory and those above it.
fn make(mut at: OwnedFd, directory: &str, mode: Option<Mode>) -> Result<(), Status> {
    for name in directory.split('/') {
        match mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        at = enter(&at, name).map_err(failed)?;
    }
    // Also of one that exists: a predecessor may have been killed in between.
    mode.map_or(Ok(()), |mode| fchmod(&at, mode).map_err(failed))
}

/// Removes a directory with all that is in it.
fn remove(mut at: OwnedFd, directory: &str) -> Result<(), Status> {
    let (above, name) = directory.rsplit_once('/').unwrap_or(("", directory));
    for name in above.split('/').filter(|name| !name.is_empty()) {
        at = match enter(&at, name) {
            Ok(next) => next,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        };
    }
    // However deep a volume is, rm needs few descriptors and little memory, and follows no symbolic link. The descriptor
    // is that of its parent, which waits for it.
    let above = format!("/proc/{}/fd/{}", std::process::id(), at.as_raw_fd());
    let removed = Command::new("rm")
        .args(["-rf", "--one-file-system", "--", name])
        .current_dir(above)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    match removed {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(refused(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(Status::internal(format!("rm cannot be run: {error}"))),
    }
}

/// Why rm has failed, by its first line.
fn refused(said: &str) -> Status {
    let first = said.lines().next().unwrap_or_default();
    let errno = [Errno::ACCESS, Errno::PERM, Errno::ROFS]
        .into_iter()
        .find(|errno| {
            // "Permission denied (os error 13)"
            let text = std::io::Error::from(*errno).to_string();
            let words = text.split(" (os error").next();
            words.is_some_and(|words| first.ends_with(words))
        });
    match errno {
        Some(errno) => failed(errno),
        None => Status::internal(format!(
            "the share cannot be changed: {}",
            first.escape_debug()
        )),
    }
}

/// Why the server did not make or remove a directory.
fn failed(errno: Errno) -> Status {
    match errno {
        Errno::ACCESS | Errno::PERM => Status::permission_denied(
            "the server does not let root change the share: export it with no_root_squash to this node, \
             or make the directories there by hand",
        ),
        Errno::NOSPC | Errno::DQUOT => Status::resource_exhausted("the share is full"),
        Errno::ROFS => Status::failed_precondition("the share is exported read-only"),
        Errno::NOTDIR | Errno::LOOP => Status::failed_precondition(
            "the share has a file or a symbolic link where the directory of the volume would be: remove it",
        ),
        _ => Status::internal(format!(
            "the share cannot be changed: {}",
            std::io::Error::from(errno)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_named_by_the_claim() {
        let mut request = CreateVolumeRequest {
            name: "pvc-1".into(),
            ..Default::default()
        };
        let of = |request: &CreateVolumeRequest, wanted| directory(request, wanted, true).ok();
        assert_eq!(of(&request, "").as_deref(), Some("pvc-1"));
        assert_eq!(of(&request, "/").as_deref(), Some("pvc-1"));
        let wanted = "a/${pvc.metadata.name}";
        assert_eq!(of(&request, wanted), None);
        let key = "csi.storage.k8s.io/pvc/name".to_owned();
        request.parameters.insert(key, "claim".into());
        assert_eq!(of(&request, wanted).as_deref(), Some("a/claim"));
        request.name = "a/b".into();
        assert_eq!(of(&request, ""), None);
        assert!(directory(&request, wanted, false).is_err());
        let key = "csi.storage.k8s.io/pv/name".to_owned();
        request.parameters.insert(key, "pvc-1".into());
        let wanted = "a/${pvc.metadata.name}-${pv.metadata.name}";
        let of = directory(&request, wanted, false).ok();
        assert_eq!(of.as_deref(), Some("a/claim-pvc-1"));
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let (share, other) = (dir.path().join("share"), dir.path().join("other"));
        std::fs::create_dir_all(other.join("x"))?;
        std::fs::create_dir(&share)?;
        std::os::unix::fs::symlink(&other, share.join("link"))?;
        let refused = Err(tonic::Code::FailedPrecondition);
        let at = || root(&share).map_err(|status| status.message().to_owned());
        assert_eq!(
            make(at()?, "link/y", None).map_err(|status| status.code()),
            refused
        );
        assert_eq!(
            remove(at()?, "link/x").map_err(|status| status.code()),
            refused
        );
        remove(at()?, "link").map_err(|status| status.message().to_owned())?;
        assert!(other.join("x").exists() && !share.join("link").exists());
        Ok(())
    }
}
