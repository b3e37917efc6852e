//! The results of an NFS call that fails before the file system is asked.

use nfsrdma_xdr::codec::Encoder;
use nfsrdma_xdr::nfs3::ProcedureNumber;

/// A failure with this nfsstat3, without any attributes.
pub(super) fn fail(
    procedure: ProcedureNumber,
    status: u32,
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
    out.u32(status);
    for _ in 0..words {
        out.bool(false);
    }
    None
}
