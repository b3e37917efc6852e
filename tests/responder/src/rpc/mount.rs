//! MOUNT version 3 (RFC 1813 section 5).

use super::{Context, Done, Service, Stop};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Text};
use nfsrdma_xdr::mount3::{
    Dump, Export, Exports, ListExports, Mnt, MountArgs, MountEntry, MountList, MountRes,
    MountStatus, Mounted, Null, Umnt, Umntall,
};
use nfsrdma_xdr::nfs3::Status;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::Accepted;

fn status(status: Status) -> MountStatus {
    match status {
        Status::Perm => MountStatus::Perm,
        Status::NoEnt => MountStatus::NoEnt,
        Status::Io => MountStatus::Io,
        Status::NotDir => MountStatus::NotDir,
        Status::Inval => MountStatus::Inval,
        Status::NameTooLong => MountStatus::NameTooLong,
        Status::Access | Status::XDev => MountStatus::Access,
        _ => MountStatus::ServerFault,
    }
}

impl Service {
    pub(super) fn mount(
        &self,
        context: &Context<'_>,
        mut from: Decoder<'_>,
        out: &mut Encoder,
    ) -> Done {
        let host = context.peer.remote.ip().to_string();
        match context.procedure {
            Null::NUMBER => {}
            Mnt::NUMBER => {
                let args = MountArgs::decode(&mut from)?;
                let root = self.fs.mount(args.path.0);
                tracing::info!(
                    %host,
                    path = %String::from_utf8_lossy(args.path.0),
                    result = ?root.as_ref().map(|_| ()),
                    "mount"
                );
                match root {
                    Ok(root) => {
                        self.mounts.add(host, args.path.0);
                        let flavors = self.flavors_of(&root).iter().copied().collect();
                        MountRes::Ok(Mounted { root, flavors })
                    }
                    Err(error) => MountRes::Fail(status(error)),
                }
                .encode(out);
            }
            Dump::NUMBER => {
                let list = self.mounts.list.lock();
                MountList(
                    list.iter()
                        .map(|(host, path)| MountEntry {
                            host: Text(host.as_bytes()),
                            path: Text(path),
                        })
                        .collect(),
                )
                .encode(out);
            }
            Umnt::NUMBER => {
                let args = MountArgs::decode(&mut from)?;
                self.mounts.remove(&host, Some(args.path.0));
            }
            Umntall::NUMBER => self.mounts.remove(&host, None),
            ListExports::NUMBER => Exports(
                self.fs
                    .exports()
                    .iter()
                    .map(|export| Export {
                        path: Text(&export.name),
                        groups: Vec::new(),
                    })
                    .collect(),
            )
            .encode(out),
            _ => return Err(Stop::Accepted(Accepted::ProcUnavail)),
        }
        Ok(None)
    }
}
