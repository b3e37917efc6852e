//! Credentials, as they are recorded for the process that goes on with the mount if this one dies.

use nfsrdma_nfs3::{Cred, Credential};
use std::sync::Arc;

/// A credential, as it is kept. The groups are all that calls carry.
pub(crate) fn kept(cred: &Credential) -> nfsrdma_record::Credential {
    nfsrdma_record::Credential::new(cred.uid, cred.gid, &cred.groups)
}

/// A credential that was kept.
pub(crate) fn cred_of(kept: &nfsrdma_record::Credential) -> Cred {
    Arc::new(Credential {
        uid: kept.uid,
        gid: kept.gid,
        groups: kept.groups().to_vec(),
    })
}
