//! LOOKUP, READLINK, and the operations that create, remove and change names.
//!
//! Each handler determines the caller's credential, puts the reply into `waiting`, and starts the operation of `Fs`
//! as a future. A LOOKUP that the cache of names can answer is answered at once, and reads the caller's supplementary
//! groups only if the answer depends on them. If the caller was killed before the reply, the kernel does not get the
//! entry: its reference to the node is taken back, and a file that CREATE opened is closed. If the operation has made
//! or removed a name nevertheless, the kernel is notified of the name.

use super::invalidate::{tell, tell_behind};
use super::replies::{
    channel_entry, file_flags, reply_absent, reply_entry, reply_held, reply_ok, reply_or_undo,
};
use super::state::{Adapter, close};
use super::unmount::OwnMount;
use super::waiting::Held;
use crate::fs::{Entry, Found, Fs, FsError, FsResult, NewMode};
use nfsrdma_channel::{Header, Reply};
use nfsrdma_nfs3::Nfs3;
use smallvec::SmallVec;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The name in a request. Most are short, and need no allocation.
type Name = SmallVec<[u8; 40]>;

fn owned(name: &OsStr) -> Name {
    Name::from_slice(name.as_bytes())
}

impl<N: Nfs3> Adapter<N> {
    pub(super) fn lookup(&self, request: &Header, parent: u64, name: &OsStr, reply: Reply) {
        let tell = |reply, found| match found {
            Found::Is(entry) => reply_entry(reply, entry),
            Found::Absent(ttl) => reply_absent(reply, ttl),
        };
        let (uid, cred) = (request.uid(), || self.cred(request, parent));
        if let Some(known) = self.fs.lookup_cached(parent, name.as_bytes(), uid, cred) {
            tell(reply, known);
            return;
        }
        let (fs, credentials) = (self.fs.clone(), self.credentials.clone());
        let (asker, name) = (*request, owned(name));
        let without_groups = fs.looks_up_without_groups(parent);
        let cred = match without_groups {
            true => self.credentials.user_of(request),
            false => self.cred(request, parent),
        };
        let reply = self.waiting.hold(request, reply);
        let (mount, notifier) = (self.mount.clone(), self.notifier.clone());
        self.start(move || async move {
            let mut found = fs.lookup(&cred, parent, &name).await;
            if without_groups && !fs.lookup_holds_without_groups(parent, &found) {
                // The caller still waits, so its groups are those of the request.
                let cred = credentials.of(&asker);
                if !cred.groups.is_empty() {
                    if let Ok(Found::Is(entry)) = found {
                        entry_unheard(&fs, &entry);
                    }
                    found = Box::pin(fs.lookup(&cred, parent, &name)).await;
                }
            }
            if let Ok(Found::Is(entry)) = &found {
                tell_behind(&fs, &notifier, entry.nodeid).await;
            }
            let found = found.map_err(|error| sparing_mounts(&fs, &mount, (parent, &name), error));
            reply_or_undo(reply, found, tell, |found| {
                if let Some(Found::Is(entry)) = found {
                    entry_unheard(&fs, &entry);
                }
            });
        });
    }

    pub(super) fn readlink(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            let result = fs.readlink(&cred, node).await;
            reply_held(reply, result, |reply, path| reply.data(&path));
        });
    }

    pub(super) fn mknod(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        mode: NewMode,
        rdev: u32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), owned(name));
        self.change(request, reply, move |reply| async move {
            let result = fs.mknod(&cred, parent, &name, mode, rdev).await;
            reply_new_entry(reply, result, &fs, (parent, &name));
        });
    }

    pub(super) fn mkdir(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        mode: NewMode,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), owned(name));
        self.change(request, reply, move |reply| async move {
            let result = fs.mkdir(&cred, parent, &name, mode).await;
            reply_new_entry(reply, result, &fs, (parent, &name));
        });
    }

    /// UNLINK, or RMDIR (`dir`).
    pub(super) fn remove(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        dir: bool,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), owned(name));
        self.change(request, reply, move |reply| async move {
            let result = match dir {
                true => fs.rmdir(&cred, parent, &name).await,
                false => fs.unlink(&cred, parent, &name).await,
            };
            reply_or_undo(reply, result, reply_ok, |_| {
                fs.name_unheard(parent, &name);
            });
        });
    }

    pub(super) fn symlink(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        target: &OsStr,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), owned(name));
        let target = target.to_owned();
        self.change(request, reply, move |reply| async move {
            let result = fs.symlink(&cred, parent, &name, target.as_bytes()).await;
            reply_new_entry(reply, result, &fs, (parent, &name));
        });
    }

    pub(super) fn rename(
        &self,
        request: &Header,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: u32,
        reply: Reply,
    ) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, from.0));
        let (name, new_name) = (owned(from.1), owned(to.1));
        let (parent, new_parent) = (from.0, to.0);
        self.change(request, reply, move |reply| async move {
            let from = (parent, &name[..]);
            let to = (new_parent, &new_name[..]);
            let result = fs.rename(&cred, from, to, flags).await;
            reply_or_undo(reply, result, reply_ok, |_| {
                fs.name_unheard(from.0, from.1);
                fs.name_unheard(to.0, to.1);
            });
        });
    }

    pub(super) fn link(
        &self,
        request: &Header,
        node: u64,
        parent: u64,
        name: &OsStr,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), owned(name));
        let notifier = self.notifier.clone();
        self.change(request, reply, move |reply| async move {
            let result = fs.link(&cred, node, parent, &name).await;
            tell_behind(&fs, &notifier, node).await;
            reply_new_entry(reply, result, &fs, (parent, &name));
        });
    }

    pub(super) fn create(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        mode: NewMode,
        flags: i32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), owned(name));
        let (unflushed, notifier) = (!self.posix_locks(), self.notifier.clone());
        self.change(request, reply, move |reply| async move {
            let result = fs.create(&cred, parent, &name, mode, flags).await;
            if let Ok((_, opened)) = &result {
                fs.close_earlier(opened.handle).await;
                tell(&notifier, fs.behind_open(opened.handle).await).await;
            }
            reply_or_undo(
                reply,
                result,
                |reply, (entry, opened)| {
                    reply.created(
                        &channel_entry(&entry),
                        opened.handle,
                        file_flags(&opened, flags, unflushed),
                    );
                },
                |made| {
                    fs.name_unheard(parent, &name);
                    if let Some((entry, opened)) = made {
                        fs.change_unheard(entry.nodeid);
                        entry_unheard(&fs, &entry);
                        close(&fs, opened);
                    }
                },
            );
        });
    }
}

/// Maps the error of a LOOKUP for the kernel. The kernel takes every error but ENOMEM and EINTR to
/// mean that the name leads nowhere any longer, even if only this caller may not search the directory,
/// or has waited too long for the server. It then detaches all mounts on that name or below it, for
/// everybody. So the error becomes ENOMEM if there are such mounts.
fn sparing_mounts<N: Nfs3>(
    fs: &Fs<N>,
    mount: &OwnMount,
    (parent, name): (u64, &[u8]),
    error: FsError,
) -> FsError {
    if error.says_gone() {
        return error;
    }
    let below = mount.mounts_below();
    match below.iter().any(|path| fs.is_on_path(parent, name, path)) {
        true => FsError::NoMemory,
        false => error,
    }
}

/// The kernel did not get this entry: takes back its reference. It may know the object by another name.
fn entry_unheard<N: Nfs3>(fs: &Fs<N>, entry: &Entry) {
    fs.attributes_unheard(entry.nodeid);
    fs.forget(entry.nodeid, 1);
}

/// Answers with the entry of a name that was made. If the caller was killed, takes back the kernel's
/// reference, and has the kernel look up the name, which it may believe not to exist.
fn reply_new_entry<N: Nfs3>(
    reply: Held,
    result: FsResult<Entry>,
    fs: &Fs<N>,
    (parent, name): (u64, &[u8]),
) {
    reply_or_undo(reply, result, reply_entry, |entry| {
        if let Some(entry) = entry {
            entry_unheard(fs, &entry);
        }
        fs.name_unheard(parent, name);
    });
}
