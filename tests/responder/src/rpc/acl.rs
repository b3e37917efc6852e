//! NFS_ACL version 3, on the connections of NFS.

use super::{Context, Done, Service, Stop};
use crate::fs::acl::NewAcls;
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::nfs_acl::{Getacl, GetaclArgs, Null, Setacl, SetaclArgs};
use nfsrdma_xdr::nfs3::Status;
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
        if self.acl_calls.is_dropped() {
            return Err(Stop::NoReply);
        }
        let known = [Getacl::NUMBER, Setacl::NUMBER].contains(&context.procedure);
        if known && self.wrong_flavor(context, &from) {
            out.u32(Status::Access as u32);
            out.bool(false);
            return Ok(None);
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
