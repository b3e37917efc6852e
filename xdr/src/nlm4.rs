//! Network Lock Manager version 4: byte-range locks of NFS version 3 files (The Open Group,
//! "Protocols for Interworking: XNFS", document C702, chapter on NLM version 4).
//!
//! A lock belongs to an owner, which Linux's server identifies only by the client's address and
//! `svid`. LOCK may be answered with BLOCKED; then either the server calls back later (GRANTED, or
//! GRANTED_MSG answered by GRANTED_RES) or the client asks again. Each request has a synchronous
//! form, answered by its reply, and an asynchronous one (`_MSG`), whose reply is empty and whose
//! result is a separate call (`_RES`) with the same cookie.
//!
//! NLM is not used over RDMA: RFC 8267 has an upper-layer binding only for the versions of NFS, not
//! for their companion programs, and Linux's server does not offer NLM over RDMA. It is used over
//! TCP or UDP at the port that rpcbind names.

use crate::codec::{self, Decode, Decoder, Encode, Encoder, Text, xdr_enum, xdr_struct};
use crate::nfs3::{FileHandle, Void};
use crate::procedure::idempotent_procedures;

/// RPC program number of NLM.
pub const PROGRAM: u32 = 100021;
/// The version for NFS version 3: 64-bit offsets, file handles of up to 64 bytes.
pub const VERSION: u32 = 4;
/// Longest caller's name in bytes (LM_MAXSTRLEN).
pub const NAME_MAX: usize = 1024;
/// Longest netobj (cookies, owner handles) in bytes (MAXNETOBJ_SZ).
pub const NETOBJ_MAX: usize = 1024;

/// Opaque bytes that only their creator interprets.
pub type NetObj<'a> = Text<'a, NETOBJ_MAX>;

xdr_enum! {
    /// nlm4_stats.
    Status {
        Granted = 0,
        Denied = 1,
        /// The server has no resources for another lock.
        DeniedNoLocks = 2,
        /// The lock conflicts, and the client is to wait for it.
        Blocked = 3,
        /// The server has restarted and accepts only reclaims during its grace period.
        DeniedGracePeriod = 4,
        Deadlock = 5,
        ReadOnly = 6,
        StaleHandle = 7,
        /// The range ends beyond 2^63 - 1.
        TooBig = 8,
        Failed = 9,
    }
}

xdr_struct! {
    /// nlm4_lock: a range of a file, and the owner that asks for it.
    #[derive(Copy)]
    Lock<'a> {
        caller_name: Text<'a, NAME_MAX>,
        file: FileHandle,
        owner: NetObj<'a>,
        /// Signed on the wire (int32); only compared for equality.
        svid: u32,
        offset: u64,
        /// Length in bytes; 0 means up to the end of the file, even if it grows.
        length: u64,
    }
}

xdr_struct! {
    /// nlm4_lockargs.
    #[derive(Copy)]
    LockArgs<'a> {
        cookie: NetObj<'a>,
        block: bool,
        exclusive: bool,
        lock: Lock<'a>,
        /// Whether the lock was held before the server restarted.
        reclaim: bool,
        /// The client's NSM state number.
        state: u32,
    }
}

xdr_struct! {
    /// nlm4_testargs; also the arguments of GRANTED.
    #[derive(Copy)]
    TestArgs<'a> { cookie: NetObj<'a>, exclusive: bool, lock: Lock<'a>, }
}

xdr_struct! {
    /// nlm4_cancargs. All fields except the cookie must equal those of the LOCK to be cancelled.
    #[derive(Copy)]
    CancelArgs<'a> { cookie: NetObj<'a>, block: bool, exclusive: bool, lock: Lock<'a>, }
}

xdr_struct! {
    /// nlm4_unlockargs.
    #[derive(Copy)]
    UnlockArgs<'a> { cookie: NetObj<'a>, lock: Lock<'a>, }
}

xdr_struct! {
    /// nlm4_res.
    #[derive(Copy)]
    Res<'a> { cookie: NetObj<'a>, status: Status, }
}

xdr_struct! {
    /// nlm4_holder: a conflicting lock.
    #[derive(Copy)]
    Holder<'a> {
        exclusive: bool,
        svid: u32,
        owner: NetObj<'a>,
        offset: u64,
        length: u64,
    }
}

/// nlm4_testrply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestReply<'a> {
    Denied(Holder<'a>),
    /// The status is never [`Status::Denied`].
    Other(Status),
}

impl Encode for TestReply<'_> {
    fn encode(&self, to: &mut Encoder) {
        match self {
            TestReply::Denied(holder) => {
                Status::Denied.encode(to);
                holder.encode(to);
            }
            TestReply::Other(status) => status.encode(to),
        }
    }
}

impl<'a> Decode<'a> for TestReply<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        Ok(match Status::decode(from)? {
            Status::Denied => TestReply::Denied(Holder::decode(from)?),
            status => TestReply::Other(status),
        })
    }
}

xdr_struct! {
    /// nlm4_testres.
    #[derive(Copy)]
    TestRes<'a> { cookie: NetObj<'a>, reply: TestReply<'a>, }
}

xdr_struct! {
    /// nlm4_notify, the arguments of FREE_ALL: the client has restarted and holds no locks.
    #[derive(Copy)]
    Notify<'a> { name: Text<'a, NAME_MAX>, state: u32, }
}

const MAX_NETOBJ: usize = 4 + NETOBJ_MAX;
const MAX_RES: usize = MAX_NETOBJ + 4;
const MAX_TEST_RES: usize = MAX_RES + 4 + 4 + MAX_NETOBJ + 8 + 8;

idempotent_procedures! {
    Null = 0, "NULL", Void => Void, 0;
    /// Whether a lock could be granted.
    Test = 1, "TEST", TestArgs<'a> => TestRes<'a>, MAX_TEST_RES;
    /// Granted again to an owner that asks for a lock it already holds.
    LockRange = 2, "LOCK", LockArgs<'a> => Res<'a>, MAX_RES;
    Cancel = 3, "CANCEL", CancelArgs<'a> => Res<'a>, MAX_RES;
    /// Also granted for a range that is not locked.
    Unlock = 4, "UNLOCK", UnlockArgs<'a> => Res<'a>, MAX_RES;
    /// From the server: it has granted a lock that was waited for.
    Granted = 5, "GRANTED", TestArgs<'a> => Res<'a>, MAX_RES;
    TestMsg = 6, "TEST_MSG", TestArgs<'a> => Void, 0;
    LockMsg = 7, "LOCK_MSG", LockArgs<'a> => Void, 0;
    CancelMsg = 8, "CANCEL_MSG", CancelArgs<'a> => Void, 0;
    UnlockMsg = 9, "UNLOCK_MSG", UnlockArgs<'a> => Void, 0;
    GrantedMsg = 10, "GRANTED_MSG", TestArgs<'a> => Void, 0;
    TestResult = 11, "TEST_RES", TestRes<'a> => Void, 0;
    LockResult = 12, "LOCK_RES", Res<'a> => Void, 0;
    CancelResult = 13, "CANCEL_RES", Res<'a> => Void, 0;
    UnlockResult = 14, "UNLOCK_RES", Res<'a> => Void, 0;
    GrantedResult = 15, "GRANTED_RES", Res<'a> => Void, 0;
    /// LOCK by a client that is not monitored by NSM.
    LockUnmonitored = 22, "NM_LOCK", LockArgs<'a> => Res<'a>, MAX_RES;
    /// Frees all locks of a client.
    FreeAll = 23, "FREE_ALL", Notify<'a> => Void, 0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procedure::Procedure;

    fn lock() -> Lock<'static> {
        Lock {
            caller_name: Text(b"host"),
            file: FileHandle::new(b"abcde").unwrap(),
            owner: Text(b"7@h"),
            svid: 9,
            offset: 0x1_0000_0002,
            length: 0x3_0000_0004,
        }
    }

    const LOCK: &[u8] = b"\0\0\0\x04host\0\0\0\x05abcde\0\0\0\0\0\0\x037@h\0\0\0\0\x09\
        \0\0\0\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04";

    #[test]
    fn requests_literal() {
        let cookie = Text(b"\x01\x02\x03\x04");
        const COOKIE: &[u8] = b"\0\0\0\x04\x01\x02\x03\x04";
        let (no, yes) = ([0, 0, 0, 0], [0, 0, 0, 1]);
        let args = LockArgs {
            cookie,
            block: true,
            exclusive: false,
            lock: lock(),
            reclaim: true,
            state: 5,
        };
        let bytes = [COOKIE, &yes, &no, LOCK, &yes, &[0, 0, 0, 5]].concat();
        assert_eq!(args.to_xdr(), bytes);
        assert_eq!(LockArgs::from_xdr(&bytes), Ok(args));
        let args = CancelArgs {
            cookie,
            block: false,
            exclusive: true,
            lock: lock(),
        };
        assert_eq!(args.to_xdr(), [COOKIE, &no, &yes, LOCK].concat());
        let args = TestArgs {
            cookie,
            exclusive: true,
            lock: lock(),
        };
        assert_eq!(args.to_xdr(), [COOKIE, &yes, LOCK].concat());
        let args = UnlockArgs {
            cookie,
            lock: lock(),
        };
        assert_eq!(args.to_xdr(), [COOKIE, LOCK].concat());
        let notify = Notify {
            name: Text(b"host"),
            state: 3,
        };
        assert_eq!(notify.to_xdr(), b"\0\0\0\x04host\0\0\0\x03");
    }

    #[test]
    fn results_literal() {
        let res = Res {
            cookie: Text(b""),
            status: Status::DeniedGracePeriod,
        };
        assert_eq!(res.to_xdr(), [0, 0, 0, 0, 0, 0, 0, 4]);
        let denied = TestRes {
            cookie: Text(b""),
            reply: TestReply::Denied(Holder {
                exclusive: true,
                svid: 6,
                owner: Text(b""),
                offset: 7,
                length: 8,
            }),
        };
        let words: [u32; 9] = [0, 1, 1, 6, 0, 0, 7, 0, 8];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(denied.to_xdr(), bytes);
        assert_eq!(TestRes::from_xdr(&bytes), Ok(denied));
        let granted = TestRes {
            cookie: Text(b""),
            reply: TestReply::Other(Status::Granted),
        };
        assert_eq!(granted.to_xdr(), [0; 8]);
    }

    #[test]
    fn the_largest_results_are_as_stated() {
        let longest = Text(&[0x55; NETOBJ_MAX]);
        let args = TestArgs {
            cookie: longest,
            exclusive: true,
            lock: lock(),
        };
        let res = TestRes {
            cookie: longest,
            reply: TestReply::Denied(Holder {
                exclusive: true,
                svid: 1,
                owner: longest,
                offset: 0,
                length: 0,
            }),
        };
        assert_eq!(res.to_xdr().len(), Test::max_results(&args));
        let more = Text::<2048>(&[0; NETOBJ_MAX + 1]);
        assert!(NetObj::from_xdr(&more.to_xdr()).is_err());
    }
}
