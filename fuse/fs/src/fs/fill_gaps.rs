//! READs of the gaps between dirty bytes before a flush, where these save WRITEs (`cache::gaps`
//! decides where).
//!
//! The bytes read are written back with the dirty ones, under the same conditions as other cached
//! bytes ([`Gaps::Join`]): only while there is no sign that somebody else changes the file, and
//! only in pages that programs wrote to. They are more recent than most cached bytes. If a READ
//! shows a change by somebody else, or fails, its gap stays, and only the dirty bytes are sent.

use super::Fs;
use super::file::{FileData, FileState};
use super::inode::Inode;
use super::read::{PendingRead, prev_power_of_two};
use crate::cache::{Gaps, MAX_PIECE, WriteLimits};
use futures_util::future::join_all;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rdma::contract::Segs;
use std::ops::Range;
use std::sync::Arc;

/// The most READs at a time for one flush.
const READS: usize = 4;

impl<N: Nfs3> Fs<N> {
    /// Fills the gaps of a file. Call it while programs' writes wait.
    pub(super) async fn fill_gaps(self: &Arc<Self>, inode: &Arc<Inode>, data: &Arc<FileData>) {
        let most = u64::from(self.limits().rtmax.min(self.limits().wtmax));
        if most < 4096 || self.write_limits(inode).gaps == Gaps::Keep {
            return;
        }
        let most = prev_power_of_two(most).min(MAX_PIECE);
        let mut from = Some(0);
        while from.is_some() {
            let mut reads = Vec::new();
            while let Some(at) = from
                && reads.len() < READS
            {
                let (found, next) = data.with(|inner| {
                    let limits = self.limits_of(inode, inner);
                    begin(inner, at, most, &limits)
                });
                from = next;
                let Some((id, pages, cred)) = found else {
                    continue;
                };
                let pending = PendingRead(data, id);
                let len = (pages.end - pages.start) as usize;
                self.shared.budget.make_room(len);
                // No waiting: if memory is short, only the flush will free some.
                let Some(buf) = self.pool.alloc(len) else {
                    return;
                };
                let sink = Segs::from_iter([buf]);
                reads.push(async move {
                    let read = self.fetch_into(&cred, inode, pending, pages, sink);
                    read.await.is_ok()
                });
            }
            if reads.is_empty() {
                continue;
            }
            self.shared.stats.gap_reads.add(reads.len() as u64);
            let done = join_all(reads).await;
            if done.contains(&false) || self.write_limits(inode).gaps == Gaps::Keep {
                return;
            }
        }
    }
}

/// A registered READ: its number, its range, and the credential to send it with.
type Begun = (u64, Range<u64>, Cred);

/// The next pages to read, and the offset at which to look for more.
fn begin(
    inner: &mut FileState,
    from: u64,
    most: u64,
    limits: &WriteLimits,
) -> (Option<Begun>, Option<u64>) {
    let (found, next) = inner.write_back().worth_reading(from, most, limits);
    let read = found.and_then(|(pages, cred)| {
        // Another READ of these pages is under way.
        if inner.reading(&pages).is_some() {
            return None;
        }
        Some((inner.begin_read(pages.clone()), pages, cred))
    });
    (read, next)
}
