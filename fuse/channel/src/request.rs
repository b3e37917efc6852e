//! Decoding of the requests that the kernel sends.
//!
//! A request is `struct fuse_in_header` followed by the arguments of its operation, which
//! include/uapi/linux/fuse.h defines as one C structure each. They are read field by field, in that
//! order and in the machine's byte order, so that the code does not depend on the layout of a type,
//! and each length is checked. Names and data are borrowed from the buffer. A field that is valid
//! only if a flag is set becomes an `Option`. An opcode that this crate does not know is not an
//! error: the file system answers it with ENOSYS.

use super::abi::{self, fattr, opcode};
use super::fields::{Fields, Malformed};
use super::header::Header;
use super::operation::{Forgets, Operation, SetAttr, TimeOrNow, WriteIn};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A request, which borrows from the buffer into which it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub header: Header,
    pub operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// Decodes the bytes of one read(2).
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = Header::parse(bytes)?;
        let operation = Operation::parse(header.opcode, body)?;
        Ok(Request { header, operation })
    }
}

/// The bytes before the data of a WRITE: `struct fuse_in_header` and `struct fuse_write_in`.
pub(crate) const WRITE_HEAD: usize = 80;

/// Decodes a WRITE from the bytes before its data; `len` is the length of the whole request. `None`
/// if it is another request, or if something follows its data.
pub(crate) fn parse_write(head: &[u8; WRITE_HEAD], len: usize) -> Option<(Header, WriteIn)> {
    let (header, extensions, body) = Header::parse_first(head, len).ok()?;
    if header.opcode != opcode::WRITE || extensions > 0 {
        return None;
    }
    let (to, size) = write(&mut Fields::new(body)).ok()?;
    (len - WRITE_HEAD == size).then_some((header, to))
}

/// A time from seconds, which are signed, and nanoseconds.
fn time(seconds: u64, nanoseconds: u32) -> SystemTime {
    let seconds = seconds as i64;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    at.and_then(|at| at.checked_add(Duration::from_nanos(nanoseconds.into())))
        .unwrap_or(UNIX_EPOCH)
}

fn setattr(fields: &mut Fields<'_>) -> Result<SetAttr, Malformed> {
    let valid = fields.u32()?;
    fields.skip(4)?;
    let (handle, size) = (fields.u64()?, fields.u64()?);
    fields.skip(8)?;
    let (atime, mtime) = (fields.u64()?, fields.u64()?);
    fields.skip(8)?;
    let atime = time(atime, fields.u32()?);
    let mtime = time(mtime, fields.u32()?);
    fields.skip(4)?;
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    let has = |bit: u32| valid & bit != 0;
    let to = |bit: u32, now: u32, at: SystemTime| {
        has(bit).then(|| match has(now) {
            true => TimeOrNow::Now,
            false => TimeOrNow::SpecificTime(at),
        })
    };
    Ok(SetAttr {
        mode: has(fattr::MODE).then_some(mode),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        atime: to(fattr::ATIME, fattr::ATIME_NOW, atime),
        mtime: to(fattr::MTIME, fattr::MTIME_NOW, mtime),
        handle: has(fattr::FH).then_some(handle),
    })
}

/// The arguments of READ, READDIR and READDIRPLUS.
struct ReadIn {
    handle: u64,
    offset: u64,
    size: u32,
    flags: i32,
}

fn read(fields: &mut Fields<'_>) -> Result<ReadIn, Malformed> {
    let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
    // What follows is the owner of a mandatory lock.
    fields.skip(12)?;
    let flags = fields.i32()?;
    fields.skip(4)?;
    Ok(ReadIn {
        handle,
        offset,
        size,
        flags,
    })
}

/// The arguments of WRITE, and the length of its data.
fn write(fields: &mut Fields<'_>) -> Result<(WriteIn, usize), Malformed> {
    let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let write_flags = fields.u32()?;
    fields.skip(8)?;
    let flags = fields.i32()?;
    fields.skip(4)?;
    let to = WriteIn {
        handle,
        offset,
        cached: write_flags & abi::WRITE_CACHE != 0,
        flags,
    };
    Ok((to, size as usize))
}

fn write_with_data<'a>(fields: &mut Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let (to, size) = write(fields)?;
    let data = fields.bytes(size)?;
    Ok(Operation::Write { to, data })
}

/// The arguments of GETLK, SETLK and SETLKW.
fn lock(fields: &mut Fields<'_>) -> Result<(u64, u64, super::Lock, bool), Malformed> {
    let (handle, owner) = (fields.u64()?, fields.u64()?);
    let lock = super::Lock {
        start: fields.u64()?,
        end: fields.u64()?,
        kind: fields.u32()?,
        pid: fields.u32()?,
    };
    let flags = fields.u32()?;
    fields.skip(4)?;
    Ok((handle, owner, lock, flags & abi::LK_FLOCK != 0))
}

impl<'a> Operation<'a> {
    /// Decodes the arguments of an operation.
    fn parse(code: u32, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(body);
        let fields = &mut fields;
        Ok(match code {
            opcode::LOOKUP => Operation::Lookup {
                name: fields.name()?,
            },
            opcode::FORGET => Operation::Forget {
                count: fields.u64()?,
            },
            opcode::BATCH_FORGET => {
                let count = fields.u32()? as usize;
                fields.skip(4)?;
                let len = count.checked_mul(16).ok_or(Malformed::Truncated)?;
                Operation::BatchForget(Forgets(fields.bytes(len)?))
            }
            opcode::INTERRUPT => Operation::Interrupt {
                unique: fields.u64()?,
            },
            opcode::INIT => Operation::Init,
            opcode::DESTROY => Operation::Destroy,
            opcode::STATFS => Operation::Statfs,
            _ => return Self::parse_attributes(code, fields),
        })
    }

    /// Operations on attributes and names.
    fn parse_attributes(code: u32, fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        Ok(match code {
            opcode::GETATTR => {
                let flags = fields.u32()?;
                fields.skip(4)?;
                let handle = fields.u64()?;
                let handle = (flags & abi::GETATTR_FH != 0).then_some(handle);
                Operation::Getattr { handle }
            }
            opcode::SETATTR => Operation::Setattr(setattr(fields)?),
            opcode::READLINK => Operation::Readlink,
            opcode::SYMLINK => Operation::Symlink {
                name: fields.name()?,
                target: fields.name()?,
            },
            opcode::MKNOD => {
                let (mode, rdev, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
                fields.skip(4)?;
                let name = fields.name()?;
                Operation::Mknod {
                    name,
                    mode,
                    rdev,
                    umask,
                }
            }
            opcode::MKDIR => {
                let (mode, umask) = (fields.u32()?, fields.u32()?);
                let name = fields.name()?;
                Operation::Mkdir { name, mode, umask }
            }
            opcode::UNLINK => Operation::Unlink {
                name: fields.name()?,
            },
            opcode::RMDIR => Operation::Rmdir {
                name: fields.name()?,
            },
            opcode::RENAME | opcode::RENAME2 => {
                let new_parent = fields.u64()?;
                let mut flags = 0;
                if code == opcode::RENAME2 {
                    flags = fields.u32()?;
                    fields.skip(4)?;
                }
                Operation::Rename {
                    name: fields.name()?,
                    new_parent,
                    new_name: fields.name()?,
                    flags,
                }
            }
            opcode::LINK => Operation::Link {
                node: fields.u64()?,
                name: fields.name()?,
            },
            opcode::ACCESS => {
                let mask = fields.i32()?;
                fields.skip(4)?;
                Operation::Access { mask }
            }
            opcode::SETXATTR => {
                // The form without FUSE_SETXATTR_EXT, which is not negotiated.
                let (size, flags) = (fields.u32()?, fields.u32()?);
                let name = fields.name()?;
                let value = fields.bytes(size as usize)?;
                Operation::Setxattr { name, value, flags }
            }
            opcode::GETXATTR => {
                let size = fields.u32()?;
                fields.skip(4)?;
                let name = fields.name()?;
                Operation::Getxattr { name, size }
            }
            opcode::LISTXATTR => {
                let size = fields.u32()?;
                fields.skip(4)?;
                Operation::Listxattr { size }
            }
            opcode::REMOVEXATTR => Operation::Removexattr {
                name: fields.name()?,
            },
            _ => return Self::parse_open(code, fields),
        })
    }

    /// Operations that open, and those on open directories.
    fn parse_open(code: u32, fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        Ok(match code {
            opcode::OPEN | opcode::OPENDIR => {
                let flags = fields.i32()?;
                fields.skip(4)?;
                match code {
                    opcode::OPEN => Operation::Open { flags },
                    _ => Operation::Opendir { flags },
                }
            }
            opcode::CREATE => {
                let (flags, mode, umask) = (fields.i32()?, fields.u32()?, fields.u32()?);
                fields.skip(4)?;
                Operation::Create {
                    name: fields.name()?,
                    mode,
                    umask,
                    flags,
                }
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let ReadIn {
                    handle,
                    offset,
                    size,
                    ..
                } = read(fields)?;
                if code == opcode::READDIR {
                    Operation::Readdir {
                        handle,
                        offset,
                        size,
                    }
                } else {
                    Operation::Readdirplus {
                        handle,
                        offset,
                        size,
                    }
                }
            }
            opcode::RELEASE | opcode::RELEASEDIR => {
                let (handle, flags) = (fields.u64()?, fields.i32()?);
                let how = fields.u32()?;
                let owner = fields.u64()?;
                if code == opcode::RELEASEDIR {
                    Operation::Releasedir { handle, flags }
                } else {
                    Operation::Release {
                        handle,
                        flags,
                        flush: how & abi::RELEASE_FLUSH != 0,
                        flock_owner: (how & abi::RELEASE_FLOCK_UNLOCK != 0).then_some(owner),
                    }
                }
            }
            opcode::FSYNC | opcode::FSYNCDIR => {
                let handle = fields.u64()?;
                let datasync = fields.u32()? & abi::FSYNC_FDATASYNC != 0;
                fields.skip(4)?;
                if code == opcode::FSYNC {
                    Operation::Fsync { handle, datasync }
                } else {
                    Operation::Fsyncdir { handle, datasync }
                }
            }
            _ => return Self::parse_file(code, fields),
        })
    }

    /// Operations on open files.
    fn parse_file(code: u32, fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        Ok(match code {
            opcode::READ => {
                let ReadIn {
                    handle,
                    offset,
                    size,
                    flags,
                } = read(fields)?;
                Operation::Read {
                    handle,
                    offset,
                    size,
                    flags,
                }
            }
            opcode::WRITE => write_with_data(fields)?,
            opcode::FLUSH => {
                let handle = fields.u64()?;
                fields.skip(8)?;
                let lock_owner = fields.u64()?;
                Operation::Flush { handle, lock_owner }
            }
            opcode::GETLK => {
                let (handle, owner, lock, flock) = lock(fields)?;
                Operation::Getlk {
                    handle,
                    owner,
                    lock,
                    flock,
                }
            }
            opcode::SETLK | opcode::SETLKW => {
                let (handle, owner, lock, flock) = lock(fields)?;
                Operation::Setlk {
                    handle,
                    owner,
                    lock,
                    flock,
                    wait: code == opcode::SETLKW,
                }
            }
            opcode::IOCTL => Operation::Ioctl,
            _ => Operation::Unknown,
        })
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
