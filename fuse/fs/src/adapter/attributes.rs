//! GETATTR, SETATTR, ACCESS and STATFS.

use super::convert::{set_time, space};
use super::invalidate::tell_behind;
use super::replies::{reply_attributes, reply_held, reply_ok, reply_or_undo, reply_with};
use super::state::Adapter;
use nfsrdma_channel::{Header, Reply, SetAttr};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::{FsstatOk, SetAttributes};

impl<N: Nfs3> Adapter<N> {
    pub(super) fn getattr(&self, request: &Header, node: u64, handle: Option<u64>, reply: Reply) {
        // With a handle, the kernel revalidates its cache; stat(2) and fstat(2) have none. Nor has it
        // if it is about to refuse a user by the mode or ACL that it has, which somebody else may have
        // changed since. That cannot be told from stat(2), but mostly the attributes that it has are
        // valid then, and it does not ask for stat(2).
        let revalidate = handle.is_some();
        if let Some(known) = self.fs.getattr_cached(node, revalidate) {
            reply_attributes(reply, known);
            return;
        }
        let (fs, cred) = (self.fs.clone(), self.credentials.user_of(request));
        let reply = self.waiting.hold(request, reply);
        let notifier = self.notifier.clone();
        self.start(move || async move {
            // What was known before can be told at once then.
            let told = tell_behind(&fs, &notifier, node).await;
            let known = told.then(|| fs.getattr_cached(node, revalidate)).flatten();
            let result = match known {
                Some(known) => Ok(known),
                None => fs.getattr(&cred, node, revalidate).await,
            };
            tell_behind(&fs, &notifier, node).await;
            reply_or_undo(reply, result, reply_attributes, |_| {
                fs.attributes_unheard(node);
            });
        });
    }

    pub(super) fn setattr(&self, request: &Header, node: u64, to: &SetAttr, reply: Reply) {
        let new = SetAttributes {
            mode: to.mode.map(|mode| mode & 0o7777),
            uid: to.uid,
            gid: to.gid,
            size: to.size,
            atime: set_time(to.atime),
            mtime: set_time(to.mtime),
        };
        // ftruncate(2) has the rights of whoever opened the descriptor.
        let opener = to.size.and(to.handle).and_then(|open| self.fs.opener(open));
        let by_name = to.size.is_some() && opener.is_none();
        let (fs, cred) = (
            self.fs.clone(),
            opener.unwrap_or_else(|| self.cred(request, node)),
        );
        self.change(request, reply, move |reply| async move {
            let result = match by_name {
                true => fs.may_truncate(&cred, node).await,
                false => Ok(()),
            };
            let result = match result {
                Ok(()) => fs.setattr(&cred, node, &new, by_name).await,
                Err(error) => Err(error),
            };
            reply_or_undo(reply, result, reply_attributes, |_| {
                fs.change_unheard(node);
            });
        });
    }

    pub(super) fn access(&self, request: &Header, node: u64, mask: i32, reply: Reply) {
        let cred = self.cred(request, node);
        if let Some(known) = self.fs.access_cached(&cred, node, mask) {
            reply_with(reply, known, reply_ok);
            return;
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            reply_held(reply, fs.access(&cred, node, mask).await, reply_ok);
        });
    }

    pub(super) fn statfs(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.credentials.user_of(request));
        let name_max = fs.name_max();
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            reply_held(
                reply,
                fs.statfs(&cred, node).await,
                |reply, stat: FsstatOk| reply.statfs(&space(&stat, name_max)),
            );
        });
    }
}
