//! Calls that create an object: CREATE, MKDIR, SYMLINK and MKNOD, which have the same results (RFC
//! 1813 sections 3.3.8 to 3.3.11).
//!
//! If a retransmission is answered with NFS3ERR_EXIST, the first transmission may have created the
//! object; if the object there is as `expected`, the call counts as successful. An EXCLUSIVE CREATE
//! needs no such guess, because the server recognises it by its verifier. Servers may keep that
//! verifier in the file's times, so a SETATTR follows that sets the attributes and the times. If
//! the server does not support EXCLUSIVE (NFS3ERR_NOTSUPP), a GUARDED CREATE is made instead.
//!
//! A request that [comes again](nfsrdma_rpcrdma::abandon) if this process dies has a number, from which the
//! verifier is made. After the SETATTR the server does not recognise it any more, and the file of another client,
//! such as a lock, looks the same. So the SETATTR leaves a [`mark`] in the atime: its second is that of the
//! CREATE, and the fraction comes from the verifier. A server that keeps no microseconds loses it; the
//! request that comes again then gets EXIST.

use crate::api::{Cred, Made, Nfs3, NfsError, NfsResult};
use crate::checks::{at, made};
use crate::client::Nfs3Client;
use crate::retransmitted::{Expected, may_have_run};
use nfsrdma_rpcrdma::abandon;
use nfsrdma_rpcrdma::transport::Payload;
use nfsrdma_xdr::nfs3::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

impl Nfs3Client {
    /// Creates `args.at` by a procedure with the results of CREATE. If a retransmission is answered
    /// with EXIST and the object there is as `expected`, the call counts as successful.
    pub(crate) async fn make<P>(
        &self,
        cred: &Cred,
        at: DirOp<'_>,
        args: &P::Args<'_>,
        payload: Payload,
        expected: Option<Expected<'_>>,
    ) -> NfsResult<Made>
    where
        P: for<'r> Procedure<Res<'r> = CreateRes>,
    {
        let reply = self.perform::<P>(cred, args, payload).await?;
        match self.results::<P>(&reply)? {
            Reply::Ok(created) => Ok(made(created)),
            Reply::Fail(status, _) => {
                if let (Status::Exist, true, Some(expected)) =
                    (status, may_have_run(&reply), expected)
                    && let Some(made) = Box::pin(self.made_before(cred, at, expected)).await
                {
                    return Ok(made);
                }
                self.refused::<P, _>(status)
            }
        }
    }

    pub(crate) async fn create_plain(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        how: CreateHow,
    ) -> NfsResult<Made> {
        let expected = match &how {
            CreateHow::Guarded(new) => Some(Expected::new(FileType::Regular, new.mode)),
            CreateHow::Exclusive(verifier) => Some(Expected::marked(mark(*verifier))),
            CreateHow::Unchecked(_) => None,
        };
        let at = at(dir, name)?;
        let args = CreateArgs { at, how };
        self.make::<Create>(cred, at, &args, Payload::None, expected)
            .await
    }

    /// CREATE EXCLUSIVE, followed by SETATTR, because the server may have kept the verifier in the
    /// file's times (RFC 1813 section 3.3.8).
    pub(crate) async fn create_exclusive(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let number = abandon::number();
        let verifier = match number {
            Some(number) => verifier_of(number),
            None => verifier_of(unique_number()?),
        };
        let how = CreateHow::Exclusive(verifier);
        let mut made = match self.create_plain(cred, dir, name, how).await {
            // "If the server can not support these exclusive create semantics, possibly
            // because of the requirement to commit the verifier to stable storage, it should
            // fail the CREATE request with the error, NFS3ERR_NOTSUPP."
            Err(NfsError::Status(Status::NotSupp)) => {
                let how = CreateHow::Guarded(*attributes);
                return self.create_plain(cred, dir, name, how).await;
            }
            made => made?,
        };
        let object = match made.object {
            Some(object) => object,
            None => {
                let found = self.lookup(cred, dir, name).await.map_err(unfinished)?;
                made.object = Some(found.object);
                made.attributes = found.attributes;
                found.object
            }
        };
        let mut new = *attributes;
        if let (Some(_), SetTime::Keep, Some(is)) = (number, new.atime, made.attributes) {
            new.atime = SetTime::To(Time {
                nanoseconds: mark(verifier),
                ..is.ctime
            });
        }
        for time in [&mut new.atime, &mut new.mtime] {
            if *time == SetTime::Keep {
                *time = SetTime::ToServerTime;
            }
        }
        let set = self.setattr(cred, &object, &new).await;
        let wcc = set.map_err(unfinished)?;
        made.attributes = wcc.after;
        Ok(made)
    }
}

/// The error of a call after CREATE, which has changed the directory already.
fn unfinished(error: NfsError) -> NfsError {
    match error {
        NfsError::Status(status) => NfsError::Unfinished(status),
        error => error,
    }
}

/// What a file's atime gets instead of nanoseconds, in microseconds, which most servers keep.
fn mark(verifier: Verifier) -> u32 {
    (u64::from_be_bytes(verifier.0) % 1_000_000) as u32 * 1000
}

/// The verifier that an exclusive CREATE of this number has. Those of successive numbers differ in all
/// bits, because servers may keep only some of them.
fn verifier_of(number: u64) -> Verifier {
    /// Odd, so that no two numbers have the same verifier: 2^64 divided by the golden ratio.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    Verifier(number.wrapping_mul(STEP).to_be_bytes())
}

/// A number that no other exclusive CREATE has. The first one is random, because clients do not know each
/// other's.
fn unique_number() -> NfsResult<u64> {
    static START: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let start = match START.get() {
        Some(start) => *start,
        None => {
            let mut start = [0; 8];
            getrandom::fill(&mut start)
                .map_err(|error| NfsError::Local(format!("no random numbers: {error}")))?;
            *START.get_or_init(|| u64::from_ne_bytes(start))
        }
    };
    Ok(start.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_exclusive_creates_have_the_same_verifier() {
        let all: Vec<u64> = (0..10_000)
            .map(|_| u64::from_be_bytes(verifier_of(unique_number().unwrap()).0))
            .collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        // A server may keep only 31 bits of each half, as our responder does.
        for by in [0, 32] {
            let half: HashSet<u64> = all.iter().map(|v| v >> by & 0x7fff_ffff).collect();
            assert!(half.len() > 9_990);
        }
    }
}
