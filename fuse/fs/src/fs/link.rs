//! LINK (RFC 1813 section 3.3.15).

use super::Fs;
use super::entry::Entry;
use super::error::FsResult;
use super::inode::Kind;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::WccData;
use std::pin::pin;

impl<N: Nfs3> Fs<N> {
    pub async fn link(
        &self,
        cred: &Cred,
        nodeid: u64,
        parent: u64,
        name: &[u8],
    ) -> FsResult<Entry> {
        let inode = self.inode(nodeid)?;
        let dir = self.inode(parent)?;
        let change = self.change(&inode, Kind::Metadata);
        let call = pin!(self.nfs.link(cred, &inode.handle, &dir.handle, name));
        let link = self
            .changing_name(&dir, name, call, |link| link.dir)
            .await?;
        // The reply has no pre-operation attributes of the file.
        change.end(&WccData {
            before: None,
            after: link.attributes,
        });
        self.own_name(&dir, name, Some(&inode));
        let known = inode.state.lock().fresh(self.now()).copied();
        let attributes = match known {
            Some(attributes) => attributes,
            None => self.fetch(cred, &inode).await?,
        };
        let inode = self.table.adopt(&inode);
        Ok(self.entry(&dir, &inode, attributes))
    }
}
