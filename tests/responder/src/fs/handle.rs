//! File handles. A handle has the kernel's own handle of the object, the number of the export, and
//! a keyed checksum. Without the key nobody can make one, so a handle with a correct checksum was
//! given out by this server, for an object inside the export.

use crate::sys::KernelHandle;
use nfsrdma_xdr::nfs3::{FHSIZE, FileHandle};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const FORMAT: u8 = 1;
const HEAD: usize = 8;
const MAC: usize = 16;
/// Longest kernel handle that fits. ext4 needs 8 bytes, tmpfs 12, XFS 12, Btrfs 20.
pub const KERNEL_MAX: usize = FHSIZE - HEAD - MAC;

/// The secret that authenticates handles. It is kept in the state directory, so that handles
/// survive a restart.
#[derive(Clone)]
pub struct Key([u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// A key for this run only.
    pub fn random() -> io::Result<Self> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(Key(key))
    }

    /// Loads the key in `dir`, or makes it on first use.
    pub fn load_or_make(dir: &Path) -> io::Result<Self> {
        let path = dir.join("handle.key");
        loop {
            match std::fs::File::open(&path) {
                Ok(mut file) => {
                    let mut key = [0; 16];
                    file.read_exact(&mut key)?;
                    return Ok(Key(key));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
            // The complete file is linked into place. So a reader never sees a part of it, and two
            // servers that start at the same time both use the first one's key.
            let Key(key) = Self::random()?;
            let temporary = dir.join(format!(".handle.key.{}", std::process::id()));
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&key)?;
            file.sync_all()?;
            let linked = std::fs::hard_link(&temporary, &path);
            std::fs::remove_file(&temporary)?;
            match linked {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
    }

    fn mac(&self, bytes: &[u8]) -> [u8; MAC] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }

    /// A number for an export, which is the same at each start.
    pub fn export_id(name: &[u8]) -> u32 {
        let mut hasher = SipHasher24::new();
        hasher.write(name);
        hasher.finish128().h1 as u32
    }

    /// Makes the handle of `object` in export `export`; `None` if the kernel's handle is too long.
    pub(super) fn seal(&self, export: u32, object: &KernelHandle) -> Option<FileHandle> {
        let kind = i16::try_from(object.kind).ok()?;
        if object.data.len() > KERNEL_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(FHSIZE);
        bytes.push(FORMAT);
        bytes.push(object.data.len() as u8);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&export.to_be_bytes());
        bytes.extend_from_slice(&object.data);
        let mac = self.mac(&bytes);
        bytes.extend_from_slice(&mac);
        FileHandle::new(&bytes)
    }

    /// The export and object of a handle, if it was made with this key.
    pub(super) fn open(&self, handle: &FileHandle) -> Option<(u32, KernelHandle)> {
        let bytes = handle.as_bytes();
        let (body, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC)?)?;
        // The comparison does not stop at the first difference, because its time would tell an
        // attacker how much of a guess was right.
        let difference = self
            .mac(body)
            .iter()
            .zip(mac)
            .fold(0, |all, (a, b)| all | (a ^ b));
        if difference != 0 || body.len() < HEAD || body[0] != FORMAT {
            return None;
        }
        let data = &body[HEAD..];
        if data.len() != usize::from(body[1]) {
            return None;
        }
        let kind = i16::from_be_bytes([body[2], body[3]]);
        let export = u32::from_be_bytes([body[4], body[5], body[6], body[7]]);
        Some((
            export,
            KernelHandle {
                kind: i32::from(kind),
                data: data.to_vec(),
            },
        ))
    }
}
