//! Who calls, and by which flavor: the one place where calls are authenticated.

use super::gss::{Closed, Entered, Seal};
use super::security::USUAL;
use super::{Context, Message, Service};
use nfsrdma_xdr::codec::{Decode, Decoder};
use nfsrdma_xdr::nfs3::{self, FileHandle, Fsinfo, Getattr, Null};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{Auth, AuthStat, Call, flavor};

impl Service {
    /// Authenticates a call, whose body is in `from`. `plain` is memory for a body that is encrypted.
    pub(super) fn enter<'a>(
        &self,
        call: &Call<'a>,
        message: &Message<'a>,
        from: Decoder<'a>,
        plain: &'a mut Vec<u8>,
    ) -> Result<Entered<'a>, Closed> {
        let mapping = &self.fs.settings().mapping;
        let (who, flavor) = match (&call.credential, &self.security.gss) {
            (Auth::None, _) => (mapping.identity(None), flavor::NONE),
            (Auth::Sys(sys), _) => {
                let credential = Some((sys.uid, sys.gid, &sys.groups[..]));
                (mapping.identity(credential), flavor::SYS)
            }
            (
                Auth::Other {
                    flavor: flavor::RPCSEC_GSS,
                    ..
                },
                Some(gss),
            ) => {
                let signed = &message.bytes[..call.signed_len().min(message.bytes.len())];
                let placed = message.placed.is_some();
                return gss.open(mapping, call, signed, from, placed, plain);
            }
            (Auth::Other { .. }, _) => return Err(AuthStat::BadCred.into()),
        };
        Ok(Entered {
            who,
            flavor,
            from,
            seal: Seal::default(),
        })
    }

    /// The flavors of the export that has an object.
    pub(super) fn flavors_of(&self, object: &FileHandle) -> &[u32] {
        match self.fs.export_of(object) {
            Ok((export, _)) => self.flavors_of_export(export),
            Err(_) => USUAL,
        }
    }

    fn flavors_of_export(&self, export: usize) -> &[u32] {
        self.security.flavors_of(&self.fs.exports()[export].name)
    }

    /// Whether a call of NFS or NFS_ACL, whose arguments are in `from`, comes by a flavor that the
    /// object's export does not have. Like Linux's server, this one tells every caller the
    /// attributes of an export's root, which it needs to find the right flavor.
    pub(super) fn wrong_flavor(&self, context: &Context<'_>, from: &Decoder<'_>) -> bool {
        if self.security.flavors.is_empty() || context.procedure == Null::NUMBER {
            return false;
        }
        // Every other procedure has a handle first. What is wrong with it the procedure will tell.
        let handle = FileHandle::decode(&mut from.clone());
        let Some((export, is_root)) = handle
            .ok()
            .and_then(|handle| self.fs.export_of(&handle).ok())
        else {
            return false;
        };
        let harmless = context.program == nfs3::PROGRAM
            && [Getattr::NUMBER, Fsinfo::NUMBER].contains(&context.procedure);
        !(self.flavors_of_export(export).contains(&context.flavor) || is_root && harmless)
    }
}
