//! Where a volume is: a server, a directory that it exports, and perhaps a directory below that one.
//!
//! All of this comes from others, and is checked here. The id of a dynamic volume holds it, so that a volume can be
//! deleted by its id alone.

use crate::messages::{Mode, VolumeCapability};
use std::collections::HashMap;
use std::fmt;
use tonic::Status;

/// The most bytes of a name of a server (RFC 1035, section 2.3.4), of a path (the NFS MOUNT protocol's MNTPATHLEN), and of a
/// part of one.
const HOST: usize = 255;
const PATH: usize = 1024;
const NAME: usize = 255;

/// Between the parts of an id.
const MARK: char = '#';
/// The last part of the id of a volume whose directory is kept.
const RETAIN: &str = "retain";

/// Keys that an orchestrator adds by itself.
const OF_ORCHESTRATOR: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];

/// A directory of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub server: String,
    pub share: String,
    /// Relative to the share, without empty parts, `.` and `..`; empty for the share itself.
    pub directory: String,
}

impl Place {
    pub(crate) fn new(server: &str, share: &str, directory: &str) -> Result<Place, Status> {
        if server.is_empty() || share.is_empty() {
            return Err(invalid(
                "the volume names no server or no share: set 'server' and 'share'",
            ));
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_%[]".contains(&byte);
        if server.len() > HOST || server.starts_with('-') || !server.bytes().all(fits) {
            return Err(invalid("'server' is not a name or an address of a host"));
        }
        let below = share.strip_prefix('/').ok_or_else(|| {
            invalid("'share' is not the path of an exported directory, which begins with /")
        })?;
        Ok(Place {
            server: match server.contains(':') && !server.starts_with('[') {
                true => format!("[{server}]"),
                false => server.to_owned(),
            },
            share: format!("/{}", clean("share", below)?),
            directory: clean("subDir", directory)?,
        })
    }

    /// What is mounted, as the program takes it.
    pub(crate) fn source(&self) -> String {
        match (self.directory.as_str(), self.share.as_str()) {
            ("", _) => self.export(),
            (directory, "/") => format!("{}:/{directory}", self.server),
            (directory, share) => format!("{}:{share}/{directory}", self.server),
        }
    }

    /// The share.
    pub(crate) fn export(&self) -> String {
        format!("{}:{}", self.server, self.share)
    }
}

/// A path without empty parts.
fn clean(what: &str, path: &str) -> Result<String, Status> {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let bad = |part: &&str| [".", ".."].contains(part) || part.len() > NAME;
    if path.len() > PATH || parts.iter().any(bad) {
        return Err(invalid(format!(
            "'{what}' is no path that can be used: it has a part '.' or '..', or is too long"
        )));
    }
    if path.contains(|letter: char| letter == MARK || letter.is_control()) {
        return Err(invalid(format!(
            "'{what}' has a '{MARK}' or a control character: use another name"
        )));
    }
    Ok(parts.join("/"))
}

/// The id of a dynamic volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Id {
    pub place: Place,
    /// The directory stays when the volume is deleted.
    pub retain: bool,
}

impl Id {
    /// None if this driver has not made the volume.
    pub(crate) fn parse(id: &str) -> Option<Id> {
        let parts: Vec<_> = id.split(MARK).collect();
        let (server, share, directory, retain) = match parts[..] {
            [server, share, directory] => (server, share, directory, false),
            [server, share, directory, RETAIN] => (server, share, directory, true),
            _ => return None,
        };
        let place = Place::new(server, share, directory).ok()?;
        // An id that would name the share itself would delete it.
        (!place.directory.is_empty()).then_some(Id { place, retain })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            server,
            share,
            directory,
        } = &self.place;
        write!(f, "{server}{MARK}{share}{MARK}{directory}")?;
        match self.retain {
            true => write!(f, "{MARK}{RETAIN}"),
            false => Ok(()),
        }
    }
}

/// Attributes of a volume, or parameters of a class of volumes. Their keys are taken in any case.
pub(crate) struct Attributes<'a>(HashMap<String, &'a str>);

impl<'a> Attributes<'a> {
    /// Fails if a key is not among those known.
    pub(crate) fn new(
        found: &'a HashMap<String, String>,
        known: &[&str],
    ) -> Result<Attributes<'a>, Status> {
        let mut attributes = HashMap::new();
        for (key, value) in found {
            if OF_ORCHESTRATOR.iter().any(|prefix| key.starts_with(prefix)) {
                continue;
            }
            if !known.iter().any(|known| known.eq_ignore_ascii_case(key)) {
                let (key, known) = (key.escape_debug(), known.join(", "));
                return Err(invalid(format!(
                    "'{key}' is not known here: there are {known}"
                )));
            }
            let before = attributes.insert(key.to_ascii_lowercase(), value.as_str());
            if before.is_some() {
                return Err(invalid(format!("'{key}' is there twice: leave one out")));
            }
        }
        Ok(Attributes(attributes))
    }

    /// Empty if it is not given.
    pub(crate) fn get(&self, key: &str) -> &'a str {
        self.0.get(&key.to_ascii_lowercase()).copied().unwrap_or("")
    }
}

/// Fails if a request does not say which volume it is of.
pub(crate) fn identified(volume_id: &str) -> Result<(), Status> {
    match volume_id.is_empty() {
        true => Err(invalid("the request has no id of the volume")),
        false => Ok(()),
    }
}

/// Fails if the volume cannot be used so.
pub(crate) fn check(capability: &VolumeCapability) -> Result<(), Status> {
    if capability.block.is_some() {
        return Err(invalid(
            "a volume of NFS is a file system and no block device: use volumeMode Filesystem",
        ));
    }
    // The type of the file system is passed over: orchestrators fill in one of disks.
    if capability.mount.is_none() {
        return Err(invalid("the capability of the volume has no access type"));
    }
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode);
    match mode.and_then(|mode| Mode::try_from(mode).ok()) {
        None | Some(Mode::Unknown) => {
            Err(invalid("the capability of the volume has no access mode"))
        }
        Some(_) => Ok(()),
    }
}

/// Whether nobody may write by such a capability.
pub(crate) fn is_read_only(capability: &VolumeCapability) -> bool {
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode);
    let mode = mode.and_then(|mode| Mode::try_from(mode).ok());
    [
        Some(Mode::SingleNodeReaderOnly),
        Some(Mode::MultiNodeReaderOnly),
    ]
    .contains(&mode)
}

/// The mount options of a capability.
pub(crate) fn flags(capability: &VolumeCapability) -> impl Iterator<Item = &str> {
    let mount = capability.mount.as_ref();
    mount
        .into_iter()
        .flat_map(|mount| mount.mount_flags.iter().map(String::as_str))
}

pub(crate) fn invalid(text: impl Into<String>) -> Status {
    Status::invalid_argument(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_source_of_a_mount() {
        let source = |server, share, directory| {
            Place::new(server, share, directory).map(|place| place.source())
        };
        assert_eq!(source("srv", "/a", "").ok().as_deref(), Some("srv:/a"));
        assert_eq!(
            source("srv", "/a//b/", "c//d/").ok().as_deref(),
            Some("srv:/a/b/c/d")
        );
        assert_eq!(source("srv", "/", "c").ok().as_deref(), Some("srv:/c"));
        assert_eq!(source("::1", "/a", "").ok().as_deref(), Some("[::1]:/a"));
        assert_eq!(source("[::1]", "/a", "").ok().as_deref(), Some("[::1]:/a"));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for (server, share, directory) in [
            ("", "/a", ""),
            ("srv", "", ""),
            ("-o", "/a", ""),
            ("srv,x", "/a", ""),
            ("srv/x", "/a", ""),
            ("srv", "a", ""),
            ("srv", "/a/../b", ""),
            ("srv", "/a", ".."),
            ("srv", "/a", "b/../../c"),
            ("srv", "/a", "./b"),
            ("srv", "/a", "b#c"),
            ("srv", "/a#", "b"),
            ("srv", "/a", "b\nc"),
            ("srv", "/a", &"b".repeat(256)),
            ("srv", "/a", &"b/".repeat(600)),
            (&"s".repeat(256), "/a", ""),
        ] {
            let refused = Place::new(server, share, directory);
            let code = refused.as_ref().map_err(Status::code);
            assert_eq!(
                code,
                Err(tonic::Code::InvalidArgument),
                "{server} {share} {directory}"
            );
        }
    }

    #[test]
    fn an_id_says_where_the_volume_is() {
        for retain in [false, true] {
            let place = Place::new("srv", "/a", "b/c").ok();
            let id = place.map(|place| Id { place, retain });
            let text = id.as_ref().map(Id::to_string);
            assert_eq!(text.as_deref().and_then(Id::parse), id);
        }
        for foreign in [
            "",
            "some-volume",
            "srv#/a#",
            "srv#/a#/",
            "srv#/a#..",
            "srv#/a#b#other",
            "srv#/a#b#retain#",
        ] {
            assert_eq!(Id::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn attributes_are_known() {
        let of = |key: &str| HashMap::from([(key.to_owned(), "x".to_owned())]);
        let get = |key| {
            Attributes::new(&of(key), &["subDir"]).map(|found| found.get("subDir").to_owned())
        };
        assert_eq!(get("SUBDIR").ok().as_deref(), Some("x"));
        assert_eq!(get("csi.storage.k8s.io/pvc/name").ok().as_deref(), Some(""));
        assert!(get("other").is_err_and(|status| status.message().contains("there are subDir")));
    }
}
