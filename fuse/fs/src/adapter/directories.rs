//! OPENDIR, READDIR, READDIRPLUS and RELEASEDIR.
//!
//! A reply is filled with entries up to the size that the kernel requested; the kernel goes on from
//! the cookie of the last one. Each entry of READDIRPLUS counts as a LOOKUP, which gives the kernel
//! a reference to the node until FORGET, and its attributes.

use super::convert::kind;
use super::replies::{channel_entry, reply_held, reply_ok, reply_or_undo, reply_with};
use super::state::Adapter;
use crate::fs::{Fs, Listed, Listing};
use nfsrdma_channel::abi::fopen;
use nfsrdma_channel::{self as channel, Attr, Directory, Header, Reply};
use nfsrdma_nfs3::Nfs3;
use std::time::Duration;

impl<N: Nfs3> Adapter<N> {
    pub(super) fn opendir(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
        self.change(request, reply, move |reply| async move {
            let result = fs.opendir(&cred, node).await;
            if let Ok(opened) = &result {
                fs.close_earlier(opened.handle).await;
            }
            reply_or_undo(
                reply,
                result,
                |reply, opened| {
                    let mut flags = fopen::CACHE_DIR;
                    if opened.keep_cache {
                        flags |= fopen::KEEP_CACHE;
                    }
                    reply.opened(opened.handle, flags);
                },
                |opened| {
                    if let Some(opened) = opened {
                        fs.change_unheard(node);
                        let _ = fs.releasedir(opened.handle);
                    }
                },
            );
        });
    }

    pub(super) fn readdir(
        &self,
        request: &Header,
        handle: u64,
        offset: u64,
        size: u32,
        reply: Reply,
    ) {
        self.fs.listing_without_attributes(handle);
        self.list(request, handle, offset, reply, move |_, reply, listing| {
            reply_names(reply, size, &listing);
        });
    }

    pub(super) fn readdirplus(
        &self,
        request: &Header,
        handle: u64,
        offset: u64,
        size: u32,
        reply: Reply,
    ) {
        self.fs.listing_with_attributes(handle, offset);
        self.list(request, handle, offset, reply, move |fs, reply, listing| {
            reply_plus(fs, reply, size, &listing);
        });
    }

    /// Answers with entries from position `offset` on.
    fn list(
        &self,
        request: &Header,
        handle: u64,
        offset: u64,
        reply: Reply,
        tell: impl Fn(&Fs<N>, Reply, Listing) + Send + 'static,
    ) {
        if let Some(known) = self.fs.readdir_cached(handle, offset) {
            reply_with(reply, known, |reply, listing| {
                tell(&self.fs, reply, listing)
            });
            return;
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            let result = fs.readdir(handle, offset).await;
            reply_held(reply, result, |reply, listing| tell(&fs, reply, listing));
        });
    }

    pub(super) fn releasedir(&self, handle: u64, reply: Reply) {
        reply_with(reply, self.fs.releasedir(handle), reply_ok);
    }
}

fn reply_names(reply: Reply, size: u32, listing: &Listing) {
    let mut entries = Directory::new(size);
    let fits = |entry: &&Listed| {
        let kind = entry.kind.map_or(0, kind);
        entries.add(entry.fileid, entry.cookie, kind, &entry.name)
    };
    let taken = listing.entries().iter().take_while(fits).count();
    listing.taken(taken);
    reply.data(entries.bytes());
}

fn reply_plus<N: Nfs3>(fs: &Fs<N>, reply: Reply, size: u32, listing: &Listing) {
    let mut entries = Directory::new(size);
    let mut taken = 0;
    for listed in listing.entries() {
        // First, because what `listed_entry` returns counts as told to the kernel.
        if !entries.fits_plus(&listed.name) {
            break;
        }
        let entry = fs.listed_entry(listing, listed);
        let told = match &entry {
            Some(entry) => channel_entry(entry),
            // `.` and `..`, for which the kernel takes no reference, and objects without known
            // attributes, which the kernel looks up if it needs more than name and type.
            None => unlooked(listed),
        };
        let added = entries.add_plus(&told, listed.cookie, &listed.name);
        debug_assert!(added);
        taken += 1;
    }
    listing.taken(taken);
    reply.data(entries.bytes());
}

/// An entry of a listing that gives no reference: only inode number and, if it is known, type.
fn unlooked(listed: &Listed) -> channel::Entry {
    let attr = Attr {
        fileid: listed.fileid,
        mode: listed.kind.map_or(0, kind),
        ..Attr::default()
    };
    channel::Entry::absent(Duration::ZERO, attr)
}
