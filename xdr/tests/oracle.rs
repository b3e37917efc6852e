//! Names, numbers and flag values are those of the independent crate `nfs3_types`. (The layout of messages is in
//! tests/vectors as Linux has it; in literal.rs where that does not tell one field from another.)

use nfs3_types::xdr_codec::Unpack;
use nfs3_types::{mount as their_mount, nfs3 as theirs, portmap as their_portmap};
use nfsrdma_xdr::codec::Encode;
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::{mount3, rpcbind};

#[test]
fn constants() {
    assert_eq!((PROGRAM, VERSION), (theirs::PROGRAM, theirs::VERSION));
    assert_eq!(mount3::PROGRAM, their_mount::PROGRAM);
    assert_eq!(mount3::VERSION, their_mount::VERSION);
    assert_eq!(rpcbind::PROGRAM, their_portmap::PROGRAM);
    assert_eq!(rpcbind::portmap::VERSION, their_portmap::VERSION);
    for number in ProcedureNumber::ALL {
        let them = theirs::NFS_PROGRAM::try_from(*number as u32).unwrap();
        assert_eq!(format!("NFSPROC3_{}", number.label()), them.to_string());
    }
    let status = Status::ALL.iter().map(|status| {
        let (them, _) = theirs::nfsstat3::unpack(&mut &status.to_xdr()[..]).expect("a status");
        (status.name(), them.to_string())
    });
    for (ours, them) in status {
        let them = them
            .trim_start_matches("NFS3ERR_")
            .trim_start_matches("NFS3_");
        let plain = them.replace('_', "").replace("ACCES", "ACCESS");
        assert_eq!(ours.to_uppercase(), plain);
    }
    for (ours, them) in [
        (access::READ, theirs::ACCESS3_READ),
        (access::LOOKUP, theirs::ACCESS3_LOOKUP),
        (access::MODIFY, theirs::ACCESS3_MODIFY),
        (access::EXTEND, theirs::ACCESS3_EXTEND),
        (access::DELETE, theirs::ACCESS3_DELETE),
        (access::EXECUTE, theirs::ACCESS3_EXECUTE),
        (fsf::LINK, theirs::FSF3_LINK),
        (fsf::SYMLINK, theirs::FSF3_SYMLINK),
        (fsf::HOMOGENEOUS, theirs::FSF3_HOMOGENEOUS),
        (fsf::CANSETTIME, theirs::FSF3_CANSETTIME),
    ] {
        assert_eq!(ours, them);
    }
}
