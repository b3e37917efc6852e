//! NFS_ACL version 3: access control lists, over the connections of the mount.
//!
//! Whether the server has the program is asked once, while mounting. If a restarted server lacks
//! it, the next call finds out. An access ACL that says no more than the mode counts as none.

use super::api::{Acls, Cred, NfsError, NfsResult, SetLists};
use super::checks::misbehaved;
use super::client::Nfs3Client;
use super::procedures::{GETACL_COUNTER, OTHER_COUNTER, SETACL_COUNTER};
use nfsrdma_rpcrdma::Error;
use nfsrdma_rpcrdma::error::Rejection;
use nfsrdma_rpcrdma::transport::{Payload, Reply as RpcReply, Request};
use nfsrdma_xdr::codec::Encode;
use nfsrdma_xdr::nfs_acl::{
    AclLists, Getacl, GetaclArgs, Null, PROGRAM, Setacl, SetaclArgs, VERSION, mask,
};
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, Reply, Status, Void};
use nfsrdma_xdr::posix_acl::PosixAcl;
use nfsrdma_xdr::procedure::Procedure;

/// The number of a procedure's counter.
fn counter<P: Procedure>() -> usize {
    match P::NUMBER {
        Getacl::NUMBER => GETACL_COUNTER,
        Setacl::NUMBER => SETACL_COUNTER,
        _ => OTHER_COUNTER,
    }
}

/// Decodes and checks a list that the server sent.
fn list(entries: &[nfsrdma_xdr::nfs_acl::AclEntry], default: bool) -> NfsResult<PosixAcl> {
    match PosixAcl::from_wire(entries, default) {
        Ok(acl) if acl.is_empty() || acl.is_valid() => Ok(acl),
        Ok(_) => misbehaved("an access control list that is not valid"),
        Err(error) => misbehaved(format!("reply to GETACL: {error}")),
    }
}

impl Nfs3Client {
    /// Asks whether the server has NFS_ACL. Until it has answered, it counts as not having it.
    pub(crate) async fn probe_acl(&self, cred: &Cred) -> NfsResult<bool> {
        let present = match self.perform_acl::<Null>(cred, &Void {}).await {
            Ok(_) => true,
            Err(NfsError::Status(Status::NotSupp)) => false,
            Err(error) => return Err(error),
        };
        self.set_acl(present);
        Ok(present)
    }

    async fn perform_acl<P: Procedure>(
        &self,
        cred: &Cred,
        args: &P::Args<'_>,
    ) -> NfsResult<RpcReply> {
        let template = self.template_of(PROGRAM, VERSION, cred);
        // The longest lists do not fit inline, so GETACL always offers a Reply chunk (RFC 8166 section
        // 4.3.3). A first question without one is no way to save it: RFC 8166 names no answer for a reply
        // that fits nowhere, and Linux's server sends it inline, where it ends the connection.
        let request = Request {
            procedure: counter::<P>(),
            max_results: P::max_results(args),
            max_ddp_result: 0,
            payload: Payload::None,
        };
        let reply = self
            .submit(cred, request, |xid, to| {
                template.encode(xid, P::NUMBER, to);
                args.encode(to);
            })
            .await?;
        match reply.results::<P>().map(drop) {
            Err(Error::Rejected(
                Rejection::ProgUnavail | Rejection::ProgMismatch { .. } | Rejection::ProcUnavail,
            )) => {
                self.set_acl(false);
                Err(NfsError::Status(Status::NotSupp))
            }
            Err(error) => Err(self.no_results::<P>(error)),
            Ok(()) => Ok(reply),
        }
    }

    pub(super) async fn get_acls(
        &self,
        cred: &Cred,
        object: &FileHandle,
        directory: bool,
    ) -> NfsResult<(Option<Attributes>, Acls)> {
        let args = GetaclArgs {
            object: *object,
            mask: match directory {
                true => mask::ALL,
                false => mask::ACL | mask::ACL_COUNT,
            },
        };
        let reply = self.perform_acl::<Getacl>(cred, &args).await?;
        match self.results::<Getacl>(&reply)? {
            Reply::Ok(ok) => {
                let access = list(&ok.lists.acl, false)?;
                let acls = Acls {
                    access: match access.mode().1 {
                        true => PosixAcl::default(),
                        false => access,
                    },
                    default: match directory {
                        true => list(&ok.lists.default_acl, true)?,
                        false => PosixAcl::default(),
                    },
                };
                Ok((ok.attributes, acls))
            }
            Reply::Fail(status, _) => self.refused_at(GETACL_COUNTER, status),
        }
    }

    pub(super) async fn set_acls(
        &self,
        cred: &Cred,
        object: &FileHandle,
        acls: &Acls,
        lists: SetLists,
    ) -> NfsResult<Option<Attributes>> {
        let mut new = AclLists::default();
        if lists.access {
            new.mask |= mask::ACL;
            new.acl = acls.access.to_wire(false, 0, 0);
            new.acl_count = new.acl.len() as u32;
        }
        if lists.default {
            new.mask |= mask::DEFAULT_ACL;
            new.default_acl = acls.default.to_wire(true, 0, 0);
            new.default_count = new.default_acl.len() as u32;
        }
        let args = SetaclArgs {
            object: *object,
            lists: new,
        };
        let reply = self.perform_acl::<Setacl>(cred, &args).await?;
        match self.results::<Setacl>(&reply)? {
            Reply::Ok(attributes) => Ok(attributes),
            Reply::Fail(status, _) => self.refused_at(SETACL_COUNTER, status),
        }
    }
}
