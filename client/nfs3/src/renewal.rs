//! Asks FSINFO again after a lost connection: the server may have been restarted with other limits,
//! or replaced.

use crate::api::Nfs3;
use crate::client::Nfs3Client;
use crate::limits::Source;
use nfsrdma_rpcrdma::exec;
use nfsrdma_xdr::nfs3::FsinfoOk;

impl Nfs3Client {
    /// Sets the limits that the server returned while mounting.
    pub(crate) fn set_limits(&self, source: Source, fsinfo: &FsinfoOk) {
        self.known().set(source, fsinfo);
    }

    /// Asks the server again, in a task of its own.
    pub(crate) fn renew_limits_soon(&self) {
        let client = self.clone();
        exec::spawn(async move {
            client.renew_limits().await;
            client.known().answered();
        });
    }

    /// Asks the server again. If that fails, the limits remain as they are.
    async fn renew_limits(&self) {
        let Some(source) = self.known().source() else {
            return;
        };
        let Ok(fsinfo) = self.fsinfo(&source.cred, &source.root).await else {
            return;
        };
        let (old, new) = self.known().renew(source, &fsinfo);
        if (old.rtmax, old.wtmax) != (new.rtmax, new.wtmax) {
            self.known().log_change(&new);
        }
    }

    /// After a WRITE of `len` bytes was refused by RPC or RDMA, or the server ended each connection
    /// over it: the server's limit, if it is less.
    pub(crate) async fn smaller_write(&self, len: usize) -> Option<usize> {
        let takes = || self.known().get().wtmax.max(1) as usize;
        if takes() >= len {
            self.renew_limits().await;
        }
        Some(takes()).filter(|most| *most < len)
    }
}
