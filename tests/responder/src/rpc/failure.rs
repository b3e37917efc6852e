//! The results of an NFS call that fails before the file system is asked.

use nfsrdma_xdr::codec::{Encode, Encoder};
use nfsrdma_xdr::nfs3::{ProcedureNumber, Status};

/// A failure without any attributes.
pub(super) fn fail(
    procedure: ProcedureNumber,
    status: Status,
    out: &mut Encoder,
) -> Option<nfsrdma_rdma::Buf> {
    let words = match procedure {
        ProcedureNumber::Null | ProcedureNumber::Getattr => 0,
        ProcedureNumber::Setattr
        | ProcedureNumber::Write
        | ProcedureNumber::Create
        | ProcedureNumber::Mkdir
        | ProcedureNumber::Symlink
        | ProcedureNumber::Mknod
        | ProcedureNumber::Remove
        | ProcedureNumber::Rmdir
        | ProcedureNumber::Commit => 2,
        ProcedureNumber::Rename => 4,
        ProcedureNumber::Link => 3,
        _ => 1,
    };
    status.encode(out);
    for _ in 0..words {
        out.bool(false);
    }
    None
}
