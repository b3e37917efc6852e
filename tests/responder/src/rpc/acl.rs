//! NFS_ACL version 3, on the connections of NFS.

use super::{Context, Done, Service, Stop};
use crate::fs::acl::NewAcls;
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::nfs_acl::{Getacl, GetaclArgs, Null, Setacl, SetaclArgs};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::Accepted;

impl Service {
    pub(super) fn acl(
        &self,
        context: &Context<'_>,
        mut from: Decoder<'_>,
        out: &mut Encoder,
    ) -> Done {
        self.acl_calls.count(context.procedure);
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

/// How often each procedure was called.
#[derive(Debug, Default)]
pub struct AclCalls([std::sync::atomic::AtomicU64; 3]);

impl AclCalls {
    fn count(&self, procedure: u32) {
        if let Some(count) = self.0.get(procedure as usize) {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// By name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = [Null::NAME, Getacl::NAME, Setacl::NAME];
        let counts = self.0.iter();
        names
            .into_iter()
            .zip(counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed)))
    }
}
