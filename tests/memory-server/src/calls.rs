//! The procedures.

use super::data::Data;
use super::sync::thread;
use super::tree::{Body, Dir, Id, Tree};
use super::{MemoryServer, Op, PreOp, verifier};
use nfsrdma_nfs3::{
    Acls, CreateMode, Cred, DirEntry, DirPage, Found, Limits, Made, Nfs3, NfsResult, ReadDone,
    SetLists, Special, Transport, WriteDone,
};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::nfs3::{
    Attributes, FileHandle, FileType, FsinfoOk, FsstatOk, LinkWcc, PathconfOk, RenameWcc,
    SetAttributes, SpecData, Stable, Status, Time, Verifier, WccAttributes, WccData, access, fsf,
};
use nfsrdma_xdr::posix_acl::PosixAcl;
use std::time::Duration;
use tokio::sync::oneshot;

/// Permission bits of `attributes` for `cred`: 4 read, 2 write, 1 execute.
fn permitted(cred: &Cred, attributes: &Attributes) -> u32 {
    if cred.uid == 0 {
        return 7;
    }
    let shift = if cred.uid == attributes.uid {
        6
    } else if cred.gid == attributes.gid || cred.groups.contains(&attributes.gid) {
        3
    } else {
        0
    };
    attributes.mode >> shift & 7
}

fn may(tree: &Tree, cred: &Cred, id: Id, wanted: u32) -> Result<(), Status> {
    if permitted(cred, &tree.attributes(id)) & wanted == wanted {
        Ok(())
    } else {
        Err(Status::Access)
    }
}

/// The directory whose names `cred` wants to change, and its attributes before that.
fn to_change(
    tree: &mut Tree,
    cred: &Cred,
    dir: &FileHandle,
) -> Result<(Id, Option<WccAttributes>), Status> {
    let id = tree.dir(dir)?.0;
    may(tree, cred, id, 3)?;
    Ok((id, tree.before(id)))
}

fn made(tree: &Tree, id: Id, dir: WccData) -> Made {
    Made {
        object: Some(tree.handle(id)),
        attributes: Some(tree.attributes(id)),
        dir,
    }
}

/// Makes an object with this name in the directory.
fn make(
    tree: &mut Tree,
    cred: &Cred,
    (dir, name): (&FileHandle, &[u8]),
    kind: FileType,
    body: Body,
    new: &SetAttributes,
) -> Result<Made, Status> {
    let (parent, before) = to_change(tree, cred, dir)?;
    let id = tree.create(dir, name, kind, body, new, (cred.uid, cred.gid))?;
    Ok(made(tree, id, tree.wcc(before, parent)))
}

/// Removes the name of a directory, or of anything else.
fn remove(
    tree: &mut Tree,
    cred: &Cred,
    dir: &FileHandle,
    name: &[u8],
    directory: bool,
) -> Result<WccData, Status> {
    let (parent, before) = to_change(tree, cred, dir)?;
    let id = tree.find(dir, name)?;
    match (&tree.objects[&id].body, directory) {
        (Body::Dir(_), false) => return Err(Status::IsDir),
        (Body::Dir(dir), true) if !dir.by_name.is_empty() => return Err(Status::NotEmpty),
        (Body::Dir(_), true) => tree.stored(parent).nlink -= 1,
        (_, true) => return Err(Status::NotDir),
        (_, false) => {}
    }
    tree.detach(dir, name)?;
    tree.unlink(id);
    Ok(tree.wcc(before, parent))
}

fn page(
    tree: &mut Tree,
    cred: &Cred,
    handle: &FileHandle,
    (cookie, given): (u64, Verifier),
    most: u32,
    plus: bool,
) -> Result<DirPage, Status> {
    may(tree, cred, tree.id(handle)?, 4)?;
    let now = verifier(tree.cookie_verifier);
    if cookie != 0 && given != now {
        return Err(Status::BadCookie);
    }
    let (bare, repeat, changed) = (tree.bare, tree.cookies_repeat, tree.cookie_changed);
    let (id, dir) = tree.dir(handle)?;
    let parent = dir.parent;
    let mut raw: Vec<(u64, Box<[u8]>, Id)> = Vec::new();
    if cookie < 1 {
        raw.push((1, (*b".").into(), id));
    }
    if cookie < 2 {
        raw.push((2, (*b"..").into(), parent));
    }
    let mut bytes = 200;
    let mut eof = true;
    for (&cookie, (name, child)) in dir.by_cookie.range(cookie.saturating_add(1)..) {
        bytes += 28 + name.len() as u32 + if plus { 160 } else { 0 };
        if bytes > most {
            eof = false;
            break;
        }
        raw.push((cookie, name.clone(), *child));
    }
    if raw.is_empty() && !eof {
        return Err(Status::TooSmall);
    }
    let entries = raw.into_iter().map(|(cookie, name, child)| {
        let attributes = tree.attributes(child);
        let told = plus && !bare;
        DirEntry {
            fileid: attributes.fileid,
            name: (*name).into(),
            cookie: match (repeat, changed) {
                (Some(repeat), _) => cookie % repeat,
                (None, Some((of, to))) if of == cookie => to,
                (None, _) => cookie,
            },
            attributes: told.then_some(attributes),
            handle: told.then(|| tree.handle(child)),
        }
    });
    Ok(DirPage {
        entries: entries.collect(),
        dir: Some(tree.attributes(id)),
        verifier: now,
        eof,
    })
}

impl Nfs3 for MemoryServer {
    async fn getattr(&self, cred: &Cred, object: &FileHandle) -> NfsResult<Attributes> {
        self.ticket(cred)?;
        self.call(Op::Getattr, |tree| {
            tree.id(object).map(|id| tree.attributes(id))
        })
        .await
    }

    async fn setattr(
        &self,
        cred: &Cred,
        object: &FileHandle,
        new: &SetAttributes,
    ) -> NfsResult<WccData> {
        self.call(Op::Setattr, |tree| {
            let id = tree.id(object)?;
            let attributes = tree.attributes(id);
            if cred.uid != 0 && cred.uid != attributes.uid {
                may(tree, cred, id, 2)?;
            }
            if new.size.is_some() {
                tree.file(object)?;
            }
            let before = tree.before(id);
            tree.set(id, new);
            Ok(match tree.bare_setattr {
                true => WccData::default(),
                false => tree.wcc(before, id),
            })
        })
        .await
    }

    async fn lookup(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<Found> {
        self.call(Op::Lookup, |tree| {
            let parent = tree.dir(dir)?.0;
            may(tree, cred, parent, 1)?;
            let id = tree.find(dir, name)?;
            Ok(Found {
                object: tree.handle(id),
                attributes: Some(tree.attributes(id)),
                dir: Some(tree.attributes(parent)),
            })
        })
        .await
    }

    async fn access(
        &self,
        cred: &Cred,
        object: &FileHandle,
        wanted: u32,
    ) -> NfsResult<(u32, Option<Attributes>)> {
        self.call(Op::Access, |tree| {
            let id = tree.id(object)?;
            let attributes = tree.attributes(id);
            let bits = permitted(cred, &attributes);
            let mut granted = 0;
            if bits & 4 != 0 {
                granted |= access::READ;
            }
            if bits & 2 != 0 {
                granted |= access::MODIFY | access::EXTEND | access::DELETE;
            }
            if bits & 1 != 0 {
                granted |= access::LOOKUP | access::EXECUTE;
            }
            Ok((granted & wanted, Some(attributes)))
        })
        .await
    }

    async fn readlink(
        &self,
        _: &Cred,
        symlink: &FileHandle,
    ) -> NfsResult<(Vec<u8>, Option<Attributes>)> {
        self.call(Op::Readlink, |tree| {
            let id = tree.id(symlink)?;
            match &tree.object(symlink)?.body {
                Body::Symlink(target) => Ok((target.clone(), Some(tree.attributes(id)))),
                _ => Err(Status::Inval),
            }
        })
        .await
    }

    async fn read(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        sink: Segs<BufMut>,
    ) -> NfsResult<ReadDone> {
        let mut sink = sink;
        let done = self
            .call(Op::Read, |tree| {
                let id = tree.id(file)?;
                if cred.uid != tree.attributes(id).uid {
                    may(tree, cred, id, 4)?;
                }
                let most = tree.most_read;
                let data = tree.file(file)?;
                let mut count = 0;
                for buf in &mut sink {
                    let len = buf.len().min(most - count);
                    let n = data.read(offset + count as u64, &mut buf[..len]);
                    count += n;
                    if n < buf.len() {
                        break;
                    }
                }
                let eof = offset + count as u64 >= data.size;
                Ok((count as u32, eof, tree.attributes(id)))
            })
            .await;
        let (count, eof, attributes) = done?;
        Ok(ReadDone {
            attributes: Some(attributes),
            data: sink,
            count,
            eof,
        })
    }

    async fn write(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        data: Segs<Buf>,
        stable: Stable,
    ) -> NfsResult<WriteDone> {
        self.ticket(cred)?;
        let arrived = {
            let tree = self.tree.lock();
            tree.id(file).ok().and_then(|id| tree.before(id))
        };
        self.call(Op::Write, |tree| {
            let id = tree.id(file)?;
            if cred.uid != tree.attributes(id).uid {
                may(tree, cred, id, 2)?;
            }
            let before = tree.before_write(id, arrived);
            let len: usize = data.iter().map(|part| part.len()).sum();
            if tree.capacity != u64::MAX && tree.used() + len as u64 > tree.capacity {
                return Err(Status::NoSpc);
            }
            let stable = match (tree.always_stable, tree.never_stable) {
                (true, _) => Stable::FileSync,
                (false, true) => Stable::Unstable,
                (false, false) => stable,
            };
            let to = tree.file(file)?;
            let mut at = offset;
            for part in &data {
                to.write(at, part, stable != Stable::Unstable);
                at += part.len() as u64;
            }
            tree.touch(id);
            Ok(WriteDone {
                wcc: tree.wcc(before, id),
                count: len as u32,
                committed: stable,
                verifier: verifier(tree.verifier),
            })
        })
        .await
    }

    async fn commit(
        &self,
        cred: &Cred,
        file: &FileHandle,
        _: u64,
        _: u32,
    ) -> NfsResult<(WccData, Verifier)> {
        self.ticket(cred)?;
        self.call(Op::Commit, |tree| {
            let id = tree.id(file)?;
            tree.file(file)?.commit();
            let before = match tree.pre_op {
                PreOp::Atomic => tree.before(id),
                PreOp::Never | PreOp::NotAtomic => None,
            };
            Ok((tree.wcc(before, id), verifier(tree.verifier)))
        })
        .await
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        mode: CreateMode,
        new: &SetAttributes,
    ) -> NfsResult<Made> {
        self.call(Op::Create, |tree| {
            if let Ok(id) = tree.find(dir, name)
                && mode == CreateMode::Unchecked
            {
                let (parent, before) = to_change(tree, cred, dir)?;
                if new.size == Some(0) && matches!(tree.objects[&id].body, Body::File(_)) {
                    may(tree, cred, id, 2)?;
                    let cut = SetAttributes {
                        size: Some(0),
                        ..SetAttributes::default()
                    };
                    tree.set(id, &cut);
                }
                return Ok(made(tree, id, tree.wcc(before, parent)));
            }
            let body = Body::File(Data::default());
            make(tree, cred, (dir, name), FileType::Regular, body, new)
        })
        .await
    }

    async fn mkdir(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        new: &SetAttributes,
    ) -> NfsResult<Made> {
        self.call(Op::Mkdir, |tree| {
            let body = Body::Dir(Dir::default());
            make(tree, cred, (dir, name), FileType::Directory, body, new)
        })
        .await
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        target: &[u8],
        new: &SetAttributes,
    ) -> NfsResult<Made> {
        self.call(Op::Symlink, |tree| {
            let body = Body::Symlink(target.to_vec());
            make(tree, cred, (dir, name), FileType::Symlink, body, new)
        })
        .await
    }

    async fn mknod(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        special: Special,
        new: &SetAttributes,
    ) -> NfsResult<Made> {
        let (kind, device) = match special {
            Special::Character(device) => (FileType::Character, device),
            Special::Block(device) => (FileType::Block, device),
            Special::Socket => (FileType::Socket, SpecData::default()),
            Special::Fifo => (FileType::Fifo, SpecData::default()),
        };
        self.call(Op::Mknod, |tree| {
            make(tree, cred, (dir, name), kind, Body::Special(device), new)
        })
        .await
    }

    async fn remove(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<WccData> {
        self.call(Op::Remove, |tree| remove(tree, cred, dir, name, false))
            .await
    }

    async fn rmdir(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<WccData> {
        self.call(Op::Rmdir, |tree| remove(tree, cred, dir, name, true))
            .await
    }

    async fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
    ) -> NfsResult<RenameWcc> {
        self.call(Op::Rename, |tree| {
            let (source_dir, source_before) = to_change(tree, cred, from_dir)?;
            let (target_dir, target_before) = to_change(tree, cred, to_dir)?;
            let source = tree.find(from_dir, from)?;
            let wcc = |tree: &Tree| RenameWcc {
                from_dir: tree.wcc(source_before, source_dir),
                to_dir: tree.wcc(target_before, target_dir),
            };
            if let Ok(target) = tree.find(to_dir, to) {
                if target == source {
                    return Ok(wcc(tree));
                }
                let source_is_dir = matches!(tree.objects[&source].body, Body::Dir(_));
                match &tree.objects[&target].body {
                    Body::Dir(dir) if !dir.by_name.is_empty() => return Err(Status::NotEmpty),
                    Body::Dir(_) if !source_is_dir => return Err(Status::IsDir),
                    Body::Dir(_) => {}
                    _ if source_is_dir => return Err(Status::NotDir),
                    _ => {}
                }
                tree.detach(to_dir, to)?;
                tree.unlink(target);
            }
            tree.detach(from_dir, from)?;
            tree.insert(to_dir, to, source)?;
            tree.change(source);
            if let Some(object) = tree.objects.get_mut(&source)
                && let Body::Dir(dir) = &mut object.body
            {
                dir.parent = target_dir;
            }
            Ok(wcc(tree))
        })
        .await
    }

    async fn link(
        &self,
        cred: &Cred,
        file: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> NfsResult<LinkWcc> {
        self.call(Op::Link, |tree| {
            let id = tree.id(file)?;
            let (parent, before) = to_change(tree, cred, dir)?;
            if matches!(tree.objects[&id].body, Body::Dir(_)) {
                return Err(Status::IsDir);
            }
            if tree.find(dir, name).is_ok() {
                return Err(Status::Exist);
            }
            tree.insert(dir, name, id)?;
            tree.stored(id).nlink += 1;
            tree.change(id);
            Ok(LinkWcc {
                attributes: Some(tree.attributes(id)),
                dir: tree.wcc(before, parent),
            })
        })
        .await
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        cookie: u64,
        given: Verifier,
        count: u32,
    ) -> NfsResult<DirPage> {
        self.call(Op::Readdir, |tree| {
            page(tree, cred, dir, (cookie, given), count, false)
        })
        .await
    }

    async fn readdirplus(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        cookie: u64,
        given: Verifier,
        _: u32,
        most: u32,
    ) -> NfsResult<DirPage> {
        self.call(Op::Readdirplus, |tree| {
            page(tree, cred, dir, (cookie, given), most, true)
        })
        .await
    }

    async fn fsstat(&self, _: &Cred, object: &FileHandle) -> NfsResult<FsstatOk> {
        self.call(Op::Fsstat, |tree| {
            let id = tree.id(object)?;
            let total = tree.capacity.min(1 << 40);
            let free = total.saturating_sub(tree.used());
            Ok(FsstatOk {
                attributes: Some(tree.attributes(id)),
                total_bytes: total,
                free_bytes: free,
                available_bytes: free,
                total_files: 1 << 30,
                free_files: (1 << 30) - tree.objects.len() as u64,
                available_files: (1 << 30) - tree.objects.len() as u64,
                invarsec: 0,
            })
        })
        .await
    }

    async fn fsinfo(&self, _: &Cred, object: &FileHandle) -> NfsResult<FsinfoOk> {
        let limits = self.limits;
        self.call(Op::Fsinfo, |tree| {
            let id = tree.id(object)?;
            Ok(FsinfoOk {
                attributes: Some(tree.attributes(id)),
                rtmax: limits.rtmax,
                rtpref: limits.rtmax,
                rtmult: 1,
                wtmax: limits.wtmax,
                wtpref: limits.wtmax,
                wtmult: 1,
                dtpref: limits.dtpref,
                max_file_size: limits.max_file_size,
                time_delta: Time {
                    seconds: 0,
                    nanoseconds: 1,
                },
                properties: fsf::LINK | fsf::SYMLINK | fsf::HOMOGENEOUS | fsf::CANSETTIME,
            })
        })
        .await
    }

    async fn pathconf(&self, _: &Cred, object: &FileHandle) -> NfsResult<PathconfOk> {
        self.call(Op::Pathconf, |tree| {
            let id = tree.id(object)?;
            Ok(PathconfOk {
                attributes: Some(tree.attributes(id)),
                link_max: 32000,
                name_max: 255,
                no_trunc: true,
                chown_restricted: true,
                case_insensitive: false,
                case_preserving: true,
            })
        })
        .await
    }

    async fn getacl(
        &self,
        _: &Cred,
        object: &FileHandle,
        _: bool,
    ) -> NfsResult<(Option<Attributes>, Acls)> {
        self.call(Op::Getacl, |tree| {
            let id = tree.id(object)?;
            let acls = tree.acls.as_ref().ok_or(Status::NotSupp)?.get(&id);
            Ok((Some(tree.attributes(id)), acls.cloned().unwrap_or_default()))
        })
        .await
    }

    async fn setacl(
        &self,
        _: &Cred,
        object: &FileHandle,
        acls: &Acls,
        _: SetLists,
    ) -> NfsResult<Option<Attributes>> {
        self.call(Op::Setacl, |tree| {
            let id = tree.id(object)?;
            let (mode, in_the_mode) = acls.access.mode();
            let mut kept = acls.clone();
            if in_the_mode {
                kept.access = PosixAcl::default();
            }
            tree.acls.as_mut().ok_or(Status::NotSupp)?.insert(id, kept);
            let new = SetAttributes {
                mode: Some(mode),
                ..SetAttributes::default()
            };
            tree.set(id, &new);
            Ok(Some(tree.attributes(id)))
        })
        .await
    }
}

impl Transport for MemoryServer {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn has_acl(&self) -> bool {
        self.tree.lock().acls.is_some()
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        let (over, ended) = oneshot::channel::<()>();
        thread::spawn(move || {
            thread::sleep(time);
            drop(over);
        });
        async move { drop(ended.await) }
    }

    fn is_idle(&self) -> bool {
        self.tree.lock().idle
    }
}
