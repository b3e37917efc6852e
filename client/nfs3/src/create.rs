//! CREATE, and what else makes an object: MKDIR, SYMLINK and MKNOD have the same results.

use crate::api::{Cred, Made, Nfs3, NfsError, NfsResult};
use crate::checks::{at, made};
use crate::client::Nfs3Client;
use crate::retransmitted::Expected;
use nfsrdma_rpcrdma::transport::Payload;
use nfsrdma_xdr::nfs3::*;

impl Nfs3Client {
    /// Makes `args.at` with a procedure whose results are those of CREATE. If its reply was
    /// lost and EXIST answers the second sending, what is `expected` counts as made.
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
        match reply.results::<P>()? {
            Reply::Ok(created) => made(created),
            Reply::Fail(status, _) => {
                if let (Status::Exist, true, Some(expected)) =
                    (status, reply.retransmitted, expected)
                    && let Some(made) = self.made_before(cred, at, expected).await
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
            CreateHow::Unchecked(_) | CreateHow::Exclusive(_) => None,
        };
        let at = at(dir, name)?;
        let args = CreateArgs { at, how };
        self.make::<Create>(cred, at, &args, Payload::None, expected)
            .await
    }

    /// CREATE EXCLUSIVE, then SETATTR: the server may have kept the verifier in the times
    /// (RFC 1813 section 3.3.8).
    pub(crate) async fn create_exclusive(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let mut verifier = [0; 8];
        getrandom::fill(&mut verifier)
            .map_err(|error| NfsError::Local(format!("no random numbers: {error}")))?;
        let how = CreateHow::Exclusive(Verifier(verifier));
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
                let found = self.lookup(cred, dir, name).await?;
                made.object = Some(found.object);
                found.object
            }
        };
        let mut new = *attributes;
        for time in [&mut new.atime, &mut new.mtime] {
            if *time == SetTime::Keep {
                *time = SetTime::ToServerTime;
            }
        }
        let wcc = self.setattr(cred, &object, &new, None).await?;
        made.attributes = wcc.after;
        Ok(made)
    }
}
