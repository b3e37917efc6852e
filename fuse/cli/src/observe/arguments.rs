//! Decodes the main arguments of a call from the first bytes of its RPC message.

use nfsrdma_xdr::codec::{Decode, Decoder, Result};
use nfsrdma_xdr::nfs_acl;
use nfsrdma_xdr::nfs3::{self, FileHandle, Name, ProcedureNumber};
use nfsrdma_xdr::nlm4;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc;
use serde::{Deserialize, Serialize};

/// The arguments of a call. A handle is shown by its CRC-32, as Wireshark shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Arguments {
    /// The file, or the directory of `name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// The path of `handle` below the mount, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<String>,
    /// The second directory and name of RENAME and LINK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to_path: Option<String>,
    /// The offset of READ, WRITE and COMMIT; the cookie of READDIR and READDIRPLUS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u32>,
    /// For calls of NLM: the length of the lock (0 reaches to the end of the file), the number of
    /// its owner, and whether it is exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) svid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) exclusive: Option<bool>,
}

/// The short form of a handle: its CRC-32.
pub(super) fn hash(handle: &[u8]) -> String {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, handle);
    format!("0x{:08x}", crc as u32)
}

/// Decodes a handle. Returns its short form and its path.
fn handle(from: &mut Decoder<'_>, find: Find<'_>) -> Result<(Option<String>, Option<String>)> {
    let handle = FileHandle::decode(from)?;
    Ok((Some(hash(handle.as_bytes())), find(&handle)))
}

/// Finds the path of a handle.
pub(super) type Find<'a> = &'a mut dyn FnMut(&FileHandle) -> Option<String>;

/// A call, as far as the first bytes of its message describe it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Description {
    pub(super) procedure: String,
    /// The uid of AUTH_SYS.
    pub(super) uid: Option<u32>,
    pub(super) arguments: Arguments,
}

fn name(from: &mut Decoder<'_>) -> Result<Option<String>> {
    let name = Name::decode(from)?;
    Ok(Some(String::from_utf8_lossy(name.0).into_owned()))
}

/// The name of a procedure of NFS_ACL, except NULL.
fn acl_procedure(number: u32) -> Option<&'static str> {
    match number {
        nfs_acl::Getacl::NUMBER => Some(nfs_acl::Getacl::NAME),
        nfs_acl::Setacl::NUMBER => Some(nfs_acl::Setacl::NAME),
        _ => None,
    }
}

/// The name of a procedure of NLM that a client calls.
pub(super) fn nlm_procedure(number: u32) -> Option<&'static str> {
    match number {
        nlm4::Null::NUMBER => Some("NLM_NULL"),
        nlm4::Test::NUMBER => Some(nlm4::Test::NAME),
        nlm4::LockRange::NUMBER => Some(nlm4::LockRange::NAME),
        nlm4::Cancel::NUMBER => Some(nlm4::Cancel::NAME),
        nlm4::Unlock::NUMBER => Some(nlm4::Unlock::NAME),
        _ => None,
    }
}

/// Decodes the arguments of a call of NLM.
fn fill_lock(
    to: &mut Arguments,
    number: u32,
    from: &mut Decoder<'_>,
    find: Find<'_>,
) -> Result<()> {
    let (exclusive, lock) = match number {
        nlm4::Test::NUMBER => {
            let args = nlm4::TestArgs::decode(from)?;
            (Some(args.exclusive), args.lock)
        }
        nlm4::LockRange::NUMBER => {
            let args = nlm4::LockArgs::decode(from)?;
            (Some(args.exclusive), args.lock)
        }
        nlm4::Cancel::NUMBER => {
            let args = nlm4::CancelArgs::decode(from)?;
            (Some(args.exclusive), args.lock)
        }
        nlm4::Unlock::NUMBER => (None, nlm4::UnlockArgs::decode(from)?.lock),
        _ => return Ok(()),
    };
    to.handle = Some(hash(lock.file.as_bytes()));
    to.path = find(&lock.file);
    (to.offset, to.length) = (Some(lock.offset), Some(lock.length));
    (to.svid, to.exclusive) = (Some(lock.svid), exclusive);
    Ok(())
}

/// The name of the procedure, the caller, and the arguments that `head` contains.
pub(super) fn describe(head: &[u8], find: Find<'_>) -> Description {
    let mut from = Decoder::new(head);
    let Ok(call) = rpc::Call::parse(&mut from) else {
        return Description {
            procedure: "?".to_owned(),
            ..Description::default()
        };
    };
    let uid = match &call.credential {
        rpc::Auth::Sys(sys) => Some(sys.uid),
        _ => None,
    };
    if (call.program, call.version) == (nfs_acl::PROGRAM, nfs_acl::VERSION)
        && let Some(name) = acl_procedure(call.procedure)
    {
        let (handle, path) = handle(&mut from, find).unwrap_or_default();
        return Description {
            procedure: name.to_owned(),
            uid,
            arguments: Arguments {
                handle,
                path,
                ..Arguments::default()
            },
        };
    }
    if (call.program, call.version) == (nlm4::PROGRAM, nlm4::VERSION)
        && let Some(name) = nlm_procedure(call.procedure)
    {
        let mut arguments = Arguments::default();
        // Arguments that cannot be decoded are left out.
        let _ = fill_lock(&mut arguments, call.procedure, &mut from, find);
        return Description {
            procedure: name.to_owned(),
            uid,
            arguments,
        };
    }
    let number = ProcedureNumber::ALL
        .iter()
        .find(|number| **number as u32 == call.procedure);
    match number {
        Some(number) if (call.program, call.version) == (nfs3::PROGRAM, nfs3::VERSION) => {
            let mut arguments = Arguments::default();
            // Arguments that cannot be decoded are left out.
            let _ = fill(&mut arguments, *number, &mut from, find);
            Description {
                procedure: number.label().to_owned(),
                uid,
                arguments,
            }
        }
        _ => Description {
            procedure: format!("{}.{}.{}", call.program, call.version, call.procedure),
            uid,
            arguments: Arguments::default(),
        },
    }
}

fn fill(
    to: &mut Arguments,
    number: ProcedureNumber,
    from: &mut Decoder<'_>,
    find: Find<'_>,
) -> Result<()> {
    use ProcedureNumber::*;
    if number == Null {
        return Ok(());
    }
    (to.handle, to.path) = handle(from, find)?;
    match number {
        Lookup | Create | Mkdir | Symlink | Mknod | Remove | Rmdir => to.name = name(from)?,
        Rename => {
            to.name = name(from)?;
            (to.to_handle, to.to_path) = handle(from, find)?;
            to.to_name = name(from)?;
        }
        Link => {
            (to.to_handle, to.to_path) = handle(from, find)?;
            to.to_name = name(from)?;
        }
        Read | Write | Commit => {
            to.offset = Some(from.u64()?);
            to.count = Some(from.u32()?);
        }
        Readdir => {
            to.offset = Some(from.u64()?);
            from.u64()?;
            to.count = Some(from.u32()?);
        }
        Readdirplus => {
            to.offset = Some(from.u64()?);
            from.u64()?;
            from.u32()?;
            to.count = Some(from.u32()?);
        }
        Null | Getattr | Setattr | Access | Readlink | Fsstat | Fsinfo | Pathconf => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_described(bytes: Vec<u8>) {
            describe(&bytes, &mut |_| None);
        }
    }
}
