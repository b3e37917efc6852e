//! The operations that the kernel requests, with their arguments, and how these are decoded.
//!
//! [`Operation`] has one variant for each opcode of include/uapi/linux/fuse.h that NFSv3 has something
//! for, with the fields that this takes. The node concerned is in the request's header. Names and data borrow from
//! the buffer that the request was read into, so an operation lasts as long as the handler's call.
//!
//! The arguments of an operation are one C structure, mostly, and names after it. They are read field by field
//! ([`Fields`]), so that the code does not depend on the layout of a type, and each length is checked.

use super::abi::{self, fattr, opcode};
use super::fields::{Argument, Fields, Malformed};
use super::out::Lock;
use std::ffi::OsStr;
use std::fmt;

/// A time for SETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOrNow {
    /// Since 1970.
    At {
        seconds: i64,
        nanoseconds: u32,
    },
    Now,
}

/// The attributes that SETATTR sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
    /// The open file, if the request has one, as for ftruncate(2).
    pub handle: Option<u64>,
}

/// The arguments of WRITE without the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteIn {
    pub handle: u64,
    pub offset: u64,
    /// The data comes from the page cache: the handle is any that may write, not the one that did.
    pub cached: bool,
    pub flags: i32,
}

/// The arguments of GETLK and SETLK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockIn {
    pub handle: u64,
    pub owner: u64,
    pub lock: Lock,
    pub flock: bool,
}

/// Nodes to forget, each with the number of look-ups.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(pub(crate) &'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let mut fields = Fields::new(self.0);
        let nodeid = abi::of_file_system(fields.take().ok()?);
        let one = (nodeid, fields.take().ok()?);
        self.0 = fields.rest();
        Some(one)
    }
}

impl fmt::Debug for Forgets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// Declares the operations: the opcodes of each, and its arguments in the order in which the kernel sends them. `[n]`
/// and `; n` stand for bytes that are of no use, before a field and at the end. `by` names the function that decodes
/// what is not of this form.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $($code:ident)|+ => $name:ident $({
            $($([$before:literal])? $field:ident: $type:ty),+ $(; $after:literal)?
        })? $(by $by:ident)?,
    )*) => {
        /// An operation. Flags of open(2), modes and masks have the values of the system calls.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Operation<'a> {
            $($(#[$doc])* $name $({ $($field: $type),+ })?,)*
            /// An operation that NFSv3 does not have, or that this crate does not know.
            Unknown,
        }

        impl<'a> Operation<'a> {
            /// Decodes the arguments of an operation.
            pub(crate) fn parse(code: u32, body: &'a [u8]) -> Result<Self, Malformed> {
                let fields = &mut Fields::new(body);
                match code {
                    $($(opcode::$code)|+ => operations!(
                        @decode fields code $name
                        [$($([$($before)?] $field)+ ; $($after)?)?] $($by)?
                    ),)*
                    _ => Ok(Operation::Unknown),
                }
            }
        }
    };
    (@decode $fields:ident $code:ident $name:ident [$($by_itself:tt)*] $by:ident) => {
        $by($code, $fields)
    };
    (@decode $fields:ident $code:ident $name:ident []) => {
        Ok(Operation::$name)
    };
    (@decode $fields:ident $code:ident $name:ident [
        $([$($before:literal)?] $field:ident)+ ; $($after:literal)?
    ]) => {{
        $(
            $($fields.bytes($before)?;)?
            let $field = $fields.take()?;
        )+
        $($fields.bytes($after)?;)?
        Ok(Operation::$name { $($field),+ })
    }};
}

operations! {
    LOOKUP => Lookup { name: &'a OsStr },
    /// Has no answer.
    FORGET => Forget { count: u64 },
    /// Has no answer.
    BATCH_FORGET => BatchForget { nodes: Forgets<'a> },
    GETATTR => Getattr { handle: Option<u64> } by getattr,
    SETATTR => Setattr { to: SetAttr },
    READLINK => Readlink,
    SYMLINK => Symlink { name: &'a OsStr, target: &'a OsStr },
    MKNOD => Mknod { mode: u32, rdev: u32, umask: u32, [4] name: &'a OsStr },
    MKDIR => Mkdir { mode: u32, umask: u32, name: &'a OsStr },
    UNLINK => Unlink { name: &'a OsStr },
    RMDIR => Rmdir { name: &'a OsStr },
    /// RENAME, with no flags, or RENAME2.
    RENAME | RENAME2 => Rename {
        new_parent: u64,
        flags: u32,
        name: &'a OsStr,
        new_name: &'a OsStr
    } by rename,
    /// The header's node is the new name's directory.
    LINK => Link { node: u64, name: &'a OsStr },
    OPEN => Open { flags: i32; 4 },
    /// Before the flags is the owner of a mandatory lock.
    READ => Read { handle: u64, offset: u64, size: u32, [12] flags: i32; 4 },
    WRITE => Write { to: WriteIn, data: &'a [u8] } by write,
    STATFS => Statfs,
    /// `flock_owner`: the owner whose flock(2) locks end with the open file.
    RELEASE => Release { handle: u64, flock_owner: Option<u64> } by release,
    FSYNC => Fsync { handle: u64; 8 },
    /// The form without FUSE_SETXATTR_EXT, which is not negotiated.
    SETXATTR => Setxattr { flags: u32, name: &'a OsStr, value: &'a [u8] } by setxattr,
    /// `size` 0 asks for the value's length.
    GETXATTR => Getxattr { size: u32, [4] name: &'a OsStr },
    LISTXATTR => Listxattr { size: u32; 4 },
    REMOVEXATTR => Removexattr { name: &'a OsStr },
    FLUSH => Flush { handle: u64, [8] lock_owner: u64 },
    OPENDIR => Opendir { flags: i32; 4 },
    READDIR => Readdir { handle: u64, offset: u64, size: u32; 20 },
    READDIRPLUS => Readdirplus { handle: u64, offset: u64, size: u32; 20 },
    RELEASEDIR => Releasedir { handle: u64; 16 },
    GETLK => Getlk { of: LockIn; 4 },
    /// SETLK, or SETLKW, which waits for the lock.
    SETLK | SETLKW => Setlk { of: LockIn, wait: bool } by setlk,
    ACCESS => Access { mask: i32; 4 },
    CREATE => Create { flags: i32, mode: u32, umask: u32, [4] name: &'a OsStr },
    /// The caller of the request `unique` got a signal. A reply would make the kernel send this
    /// again.
    INTERRUPT => Interrupt { unique: u64 },
    DESTROY => Destroy,
    IOCTL => Ioctl,
}

fn getattr<'a>(_: u32, fields: &mut Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let flags: u32 = fields.take()?;
    fields.bytes(4)?;
    let handle = fields.take()?;
    let handle = (flags & abi::GETATTR_FH != 0).then_some(handle);
    Ok(Operation::Getattr { handle })
}

fn rename<'a>(code: u32, fields: &mut Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let new_parent = abi::of_file_system(fields.take()?);
    let mut flags = 0;
    if code == opcode::RENAME2 {
        flags = fields.take()?;
        fields.bytes(4)?;
    }
    Ok(Operation::Rename {
        new_parent,
        flags,
        name: fields.take()?,
        new_name: fields.take()?,
    })
}

/// The arguments of WRITE, and the length of its data.
pub(crate) fn write_in(fields: &mut Fields<'_>) -> Result<(WriteIn, usize), Malformed> {
    let (handle, offset) = (fields.take()?, fields.take()?);
    let (size, write_flags): (u32, u32) = (fields.take()?, fields.take()?);
    fields.bytes(8)?;
    let flags = fields.take()?;
    fields.bytes(4)?;
    let to = WriteIn {
        handle,
        offset,
        cached: write_flags & abi::WRITE_CACHE != 0,
        flags,
    };
    Ok((to, size as usize))
}

fn write<'a>(_: u32, fields: &mut Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let (to, size) = write_in(fields)?;
    let data = fields.bytes(size)?;
    Ok(Operation::Write { to, data })
}

fn release<'a>(_: u32, fields: &mut Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let handle = fields.take()?;
    fields.bytes(4)?;
    let (how, owner): (u32, u64) = (fields.take()?, fields.take()?);
    let flock_owner = (how & abi::RELEASE_FLOCK_UNLOCK != 0).then_some(owner);
    Ok(Operation::Release {
        handle,
        flock_owner,
    })
}

fn setxattr<'a>(_: u32, fields: &mut Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let (size, flags): (u32, u32) = (fields.take()?, fields.take()?);
    let name = fields.take()?;
    let value = fields.bytes(size as usize)?;
    Ok(Operation::Setxattr { flags, name, value })
}

fn setlk<'a>(code: u32, fields: &mut Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let of = fields.take()?;
    fields.bytes(4)?;
    let wait = code == opcode::SETLKW;
    Ok(Operation::Setlk { of, wait })
}

impl<'a> Argument<'a> for Forgets<'a> {
    fn read(fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        let count: u32 = fields.take()?;
        fields.bytes(4)?;
        let len = (count as usize).checked_mul(16);
        Ok(Forgets(fields.bytes(len.ok_or(Malformed::Truncated)?)?))
    }
}

impl Argument<'_> for LockIn {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(LockIn {
            handle: fields.take()?,
            owner: fields.take()?,
            lock: fields.take()?,
            flock: fields.take()?,
        })
    }
}

impl Argument<'_> for Lock {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(Lock {
            start: fields.take()?,
            end: fields.take()?,
            kind: fields.take()?,
            pid: fields.take()?,
        })
    }
}

impl Argument<'_> for SetAttr {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let valid: u32 = fields.take()?;
        fields.bytes(4)?;
        let (handle, size) = (fields.take()?, fields.take()?);
        fields.bytes(8)?;
        let seconds: [u64; 2] = [fields.take()?, fields.take()?];
        fields.bytes(8)?;
        let nanoseconds: [u32; 2] = [fields.take()?, fields.take()?];
        fields.bytes(4)?;
        let mode = fields.take()?;
        fields.bytes(4)?;
        let (uid, gid) = (fields.take()?, fields.take()?);
        fields.bytes(4)?;
        let has = |bit: u32| valid & bit != 0;
        let time = |bit: u32, now: u32, of: usize| {
            has(bit).then(|| match has(now) {
                true => TimeOrNow::Now,
                false => TimeOrNow::At {
                    seconds: seconds[of] as i64,
                    nanoseconds: nanoseconds[of],
                },
            })
        };
        Ok(SetAttr {
            mode: has(fattr::MODE).then_some(mode),
            uid: has(fattr::UID).then_some(uid),
            gid: has(fattr::GID).then_some(gid),
            size: has(fattr::SIZE).then_some(size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, 0),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, 1),
            handle: has(fattr::FH).then_some(handle),
        })
    }
}
