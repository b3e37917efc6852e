//! NFSv3: maps procedure numbers to operations of the file system.

use super::failure::fail;
use super::{Context, Done, Service, Stop};
use crate::fs::dir;
use nfsrdma_xdr::codec::{Decode, DecodeError, Decoder, Encode, Encoder, Payload};
use nfsrdma_xdr::nfs3::{
    AccessArgs, CommitArgs, CreateArgs, Ddp, GetattrArgs, LinkArgs, LookupArgs, MkdirArgs,
    MknodArgs, ProcedureNumber, ReadArgs, ReaddirArgs, ReaddirplusArgs, ReadlinkArgs, RemoveArgs,
    RenameArgs, RootArgs, SetattrArgs, Status, SymlinkArgs, WriteArgs,
};
use nfsrdma_xdr::rpc::Accepted;

/// The status for arguments that are well formed, but exceed a limit of this server; `None` for
/// other errors (GARBAGE_ARGS).
fn refusal(error: DecodeError) -> Option<Status> {
    match error {
        DecodeError::TooLong {
            what: "file name" | "symbolic link",
            ..
        } => Some(Status::NameTooLong),
        _ => None,
    }
}

impl Service {
    pub(super) fn nfs(
        &self,
        context: &Context<'_>,
        mut from: Decoder<'_>,
        out: &mut Encoder,
    ) -> Done {
        let Ok(procedure) = ProcedureNumber::try_from(context.procedure) else {
            return Err(Stop::Accepted(Accepted::ProcUnavail));
        };
        // Only these procedures have an argument that may be reduced (RFC 8267 section 4).
        //= RFC 8166, Section 6.1
        //# The Responder MUST NOT process this RPC Call message and MUST report the violation as
        //# described in Section 4.5.2.
        if context.placed.is_some() && procedure.ddp() != Ddp::Argument {
            return Err(Stop::BadChunks);
        }
        if self.wrong_flavor(context, &from) {
            return Ok(fail(procedure, Status::Access as u32, out));
        }
        let (fs, who) = (&self.fs, &context.who);

        /// Decodes the arguments. If they exceed a limit, it answers with the status for that.
        macro_rules! args {
            ($type:ty) => {
                match <$type>::decode(&mut from) {
                    Ok(args) => args,
                    Err(error) => match refusal(error) {
                        // Every failed result begins with absent attributes: one word for each that
                        // the procedure has.
                        Some(status) => return Ok(fail(procedure, status as u32, out)),
                        None => return Err(error.into()),
                    },
                }
            };
        }

        match procedure {
            ProcedureNumber::Null => {}
            ProcedureNumber::Getattr => fs.getattr(&args!(GetattrArgs)).encode(out),
            ProcedureNumber::Setattr => fs.setattr(who, &args!(SetattrArgs)).encode(out),
            ProcedureNumber::Lookup => fs.lookup(who, &args!(LookupArgs<'_>)).encode(out),
            ProcedureNumber::Access => fs.access(who, &args!(AccessArgs)).encode(out),
            ProcedureNumber::Readlink => {
                let (reply, payload) = fs.readlink(&args!(ReadlinkArgs), context.alloc);
                reply.encode(out);
                return Ok(payload);
            }
            ProcedureNumber::Read => {
                let (reply, payload) = fs.read(who, &args!(ReadArgs), context.alloc);
                reply.encode(out);
                return Ok(payload);
            }
            ProcedureNumber::Write => {
                let args = args!(WriteArgs<'_>);
                let mut one = [&[][..]];
                let data = argument(context, &args.data, &from, &mut one)?;
                fs.write(who, &args, data).encode(out);
            }
            ProcedureNumber::Create => fs.create(who, &args!(CreateArgs<'_>)).encode(out),
            ProcedureNumber::Mkdir => fs.mkdir(who, &args!(MkdirArgs<'_>)).encode(out),
            ProcedureNumber::Symlink => {
                let args = args!(SymlinkArgs<'_>);
                let mut one = [&[][..]];
                let path = argument(context, &args.path, &from, &mut one)?;
                // The path has at most PATH_MAX bytes.
                let path: Vec<u8> = path.iter().flat_map(|p| p.iter().copied()).collect();
                fs.symlink(who, &args, &path).encode(out);
            }
            ProcedureNumber::Mknod => fs.mknod(who, &args!(MknodArgs<'_>)).encode(out),
            ProcedureNumber::Remove => fs.remove(who, &args!(RemoveArgs<'_>)).encode(out),
            ProcedureNumber::Rmdir => fs.rmdir(who, &args!(RemoveArgs<'_>)).encode(out),
            ProcedureNumber::Rename => fs.rename(who, &args!(RenameArgs<'_>)).encode(out),
            ProcedureNumber::Link => fs.link(who, &args!(LinkArgs<'_>)).encode(out),
            ProcedureNumber::Readdir => {
                dir::names(&fs.readdir(who, &args!(ReaddirArgs))).encode(out);
            }
            ProcedureNumber::Readdirplus => {
                dir::objects(&fs.readdirplus(who, &args!(ReaddirplusArgs))).encode(out);
            }
            ProcedureNumber::Fsstat => fs.fsstat(&args!(RootArgs)).encode(out),
            ProcedureNumber::Fsinfo => fs.fsinfo(&args!(RootArgs)).encode(out),
            ProcedureNumber::Pathconf => fs.pathconf(&args!(RootArgs)).encode(out),
            ProcedureNumber::Commit => fs.commit(&args!(CommitArgs)).encode(out),
        }
        Ok(None)
    }
}

/// The bytes of a DDP-eligible argument in pieces, whether inline or from a chunk. Both arguments
/// that may be reduced are the last ones of their procedures. `one` is memory for a single piece.
fn argument<'a>(
    context: &Context<'a>,
    payload: &Payload<'a>,
    after: &Decoder<'_>,
    one: &'a mut [&'a [u8]; 1],
) -> Result<&'a [&'a [u8]], Stop> {
    match (payload, &context.placed) {
        (Payload::Inline(bytes), _) => {
            *one = [bytes];
            Ok(one)
        }
        // The Position is where the item would be in the stream (RFC 8166 section 3.4.5).
        (Payload::Placed(_), Some(placed)) if placed.position == after.position() => {
            Ok(placed.data)
        }
        (Payload::Placed(_), _) => Err(Stop::BadChunks),
    }
}
