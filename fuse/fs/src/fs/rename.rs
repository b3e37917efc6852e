//! RENAME (RFC 1813 section 3.3.14).
//!
//! RENAME removes the file that the new name led to. NFSv3 has no open files, so its data would be
//! lost to programs of this mount that have it open. Such a target gets a hidden name first, by a RENAME
//! of its own, as with Linux's client. So for a moment other machines do not find the new name. (Programs
//! of this mount wait for the directory, which the kernel has locked.) If the server then refuses the
//! RENAME, the name is restored. If it is not known whether it was run, it is restored only if nothing has
//! that name. For a target that is not open, RENAME is the only call. Finally the cached names
//! are changed accordingly. The flags of renameat2(2) are refused with EINVAL, because NFSv3 has
//! nothing like them.
//!
//! If the caller is killed, a RENAME that was sent ends as usual, and no other is sent; a target that was put
//! aside gets its name back (`put_back`). The kernel is told of both names in any case.
//!
//! If the request comes again because the process that got it first has died, the RENAME may have been run.
//! Then the source has lost its old name, which may lead to somebody else's file by now, and the new name is there.

use super::Fs;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Kind};
use super::losing::{Losing, check_not_hidden};
use super::remove::{HIDDEN, HiddenName, mark_removed};
use nfsrdma_nfs3::{Cred, Nfs3, NfsError};
use nfsrdma_rpcrdma::abandon::regardless;
use nfsrdma_xdr::nfs3::Status;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The sticky bit (S_ISVTX).
pub(super) const STICKY: u32 = 0o1000;

impl<N: Nfs3> Fs<N> {
    /// Renames `from` to `to`, each a directory and a name. All `flags` of renameat2(2) are
    /// refused: even RENAME_NOREPLACE could only be approximated by LINK and REMOVE, between which
    /// both names exist.
    pub async fn rename(
        self: &Arc<Self>,
        cred: &Cred,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> FsResult<()> {
        if flags != 0 {
            return Err(FsError::Invalid);
        }
        let (from_dir, to_dir) = (self.inode(from.0)?, self.inode(to.0)?);
        if self.has_lost(cred, &from_dir, from.1).await {
            self.child(cred, &to_dir, to.1).await?;
            self.name_unknown(&to_dir, to.1);
            return Ok(());
        }
        // The target loses its name, the source does not.
        if from.1.starts_with(HIDDEN) {
            let source = self.child(cred, &from_dir, from.1).await?;
            check_not_hidden(&from_dir, from.1, &source)?;
        }
        let losing = match self.lacks(&to_dir, to.1) {
            true => None,
            false => match self.about_to_lose(cred, &to_dir, to.1).await {
                Err(error) if error.status() == Some(Status::NoEnt) => None,
                losing => Some(losing?),
            },
        };
        let mut aside = None;
        if let Some((target, Losing::Open(_))) = &losing {
            let source = self.child(cred, &from_dir, from.1).await?;
            // If both are names of one file, RENAME does nothing (RFC 1813 section 3.3.14).
            if source.handle != target.handle {
                let hiding = Box::pin(self.hide_by_rename(cred, &to_dir, to.1, target));
                aside = Some((hiding.await?, source));
            }
        }
        let target = losing.as_ref().map(|(target, _)| target);
        let epochs = || [&from_dir, &to_dir].map(|dir| dir.state.lock().epoch);
        let before = epochs();
        let source = self.known_child(&from_dir, from.1);
        let result = self
            .rename_call(cred, (&from_dir, from.1), (&to_dir, to.1))
            .await
            .map_err(|error| {
                // Where no status came, the server may have made the change.
                if error.status().is_none() {
                    self.name_unknown(&to_dir, to.1);
                }
                self.note_name_error(&from_dir, from.1, error)
            });
        if let Err(error) = result {
            if let (Some(target), Some((hidden, source))) = (target, aside) {
                let to = (&to_dir, to.1);
                let undone = self.put_back(cred, to, target, &hidden, &source, &error);
                regardless(Box::pin(undone)).await;
            }
            return Err(error);
        }
        // If another client has changed a directory before, the names may have led to other objects,
        // of which one was renamed; or to one, and then both are still there.
        let is = |source: &Arc<Inode>| target.is_some_and(|of| Arc::ptr_eq(of, source));
        match source.filter(|_| epochs() == before) {
            Some(source) if !is(&source) => {
                self.own_name(&from_dir, from.1, None);
                self.own_name(&to_dir, to.1, Some(&source));
                source.state.lock().named_otherwise();
            }
            // The kernel has moved its own entry for the old name to the new one.
            _ => {
                self.forget_name(&from_dir, from.1);
                self.name_unknown(&to_dir, to.1);
            }
        }
        if let Some(target) = target {
            mark_removed(target);
            target.state.lock().named_otherwise();
        }
        Ok(())
    }

    /// Takes the hidden name from `target` again after the RENAME of `source` over it has failed with `error`.
    async fn put_back(
        &self,
        cred: &Cred,
        (dir, name): (&Arc<Inode>, &[u8]),
        target: &Arc<Inode>,
        hidden: &HiddenName,
        source: &Inode,
        error: &FsError,
    ) {
        // Without a status of the server, the RENAME may have been run.
        let refused = error.status().is_some();
        // Another client may have made the name meanwhile.
        let back = match self.nfs.lookup(cred, &dir.handle, name).await {
            Err(NfsError::Status(Status::NoEnt)) => Ok(true),
            // It was run.
            Ok(found) if !refused && found.object == source.handle => return,
            Ok(_) => Ok(false),
            Err(error) => Err(error.into()),
        };
        let back = match back {
            Ok(true) => {
                let call = self.rename_call(cred, (dir, hidden), (dir, name));
                call.await.map(|()| true)
            }
            back => back,
        };
        // The hidden name is gone, or it is the last one of a file that nobody has removed: the last
        // close must not remove it.
        {
            let mut state = target.state.lock();
            if state.silly.take().is_some() {
                target.hidden_links.fetch_sub(1, Ordering::Relaxed);
            }
            state.named_otherwise();
        }
        match back {
            Ok(true) => self.own_name(dir, name, Some(target)),
            Ok(false) => not_given_back(hidden, &FsError::Exists),
            Err(error) => not_given_back(hidden, &error),
        }
    }

    async fn rename_call(
        &self,
        cred: &Cred,
        from: (&Arc<Inode>, &[u8]),
        to: (&Arc<Inode>, &[u8]),
    ) -> FsResult<()> {
        let (from_dir, to_dir) = (&from.0.handle, &to.0.handle);
        let call = pin!(self.nfs.rename(cred, from_dir, from.1, to_dir, to.1));
        if Arc::ptr_eq(from.0, to.0) {
            self.changing(from.0, call, |wcc| wcc.to_dir).await?;
            return Ok(());
        }
        let change = self.change(to.0, Kind::Contents);
        let wcc = self.changing(from.0, call, |wcc| wcc.from_dir).await?;
        change.end(&wcc.to_dir);
        Ok(())
    }
}

/// Logs that an open file could not get its name back after a RENAME over it has failed.
fn not_given_back(hidden: &[u8], error: &FsError) {
    tracing::warn!(
        name = %String::from_utf8_lossy(hidden),
        %error,
        "a file that was to be replaced could not get its name back, and has this one now"
    );
}
