//! NFS_ACL version 3, on the connections of NFS.

use super::{Context, Done, Service, Stop};
use crate::fs::acl::NewAcls;
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::nfs_acl::{Getacl, GetaclArgs, Null, Setacl, SetaclArgs};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::Accepted;
use std::sync::atomic::{AtomicU64, Ordering};

impl Service {
    pub(super) fn acl(
        &self,
        context: &Context<'_>,
        mut from: Decoder<'_>,
        out: &mut Encoder,
    ) -> Done {
        self.acl_calls.count(context.procedure);
        if self.acl_calls.is_dropped() {
            return Err(Stop::NoReply);
        }
        match context.procedure {
            Null::NUMBER => {}
            Getacl::NUMBER => self.fs.getacl(&GetaclArgs::decode(&mut from)?).encode(out),
            Setacl::NUMBER => {
                let args = SetaclArgs::decode(&mut from)?;
                let new =
                    NewAcls::decode(&args.lists).ok_or(Stop::Accepted(Accepted::GarbageArgs))?;
                self.fs.setacl(&context.who, &args.object, &new).encode(out);
            }
            _ => return Err(Stop::Accepted(Accepted::ProcUnavail)),
        }
        Ok(None)
    }
}

/// How often each procedure was called, and how many calls are still to be dropped.
#[derive(Debug, Default)]
pub struct AclCalls([AtomicU64; 3], AtomicU64);

impl AclCalls {
    fn count(&self, procedure: u32) {
        if let Some(count) = self.0.get(procedure as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// By name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = [Null::NAME, Getacl::NAME, Setacl::NAME];
        let counts = self.0.iter();
        names
            .into_iter()
            .zip(counts.map(|count| count.load(Ordering::Relaxed)))
    }

    /// The next `count` calls are neither run nor answered.
    pub fn drop_next(&self, count: u64) {
        self.1.store(count, Ordering::Relaxed);
    }

    fn is_dropped(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.1
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}
