//! The objects of the export.

use super::data::Data;
use nfsrdma_nfs3::Acls;
use nfsrdma_xdr::nfs3::{
    Attributes, FileHandle, FileType, SetAttributes, SetTime, SpecData, Status, Time,
    WccAttributes, WccData,
};
use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

/// The pre-operation attributes (pre_op_attr) in the reply to a WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreOp {
    /// The state to which the WRITE was applied.
    #[default]
    Atomic,
    /// None, as from Linux knfsd.
    Never,
    /// The state when the call arrived, as from a server that does not lock the file from then on.
    NotAtomic,
}

pub(super) type Id = u64;

#[derive(Debug, Default)]
pub(super) struct Dir {
    pub(super) by_cookie: BTreeMap<u64, (Box<[u8]>, Id)>,
    pub(super) by_name: HashMap<Box<[u8]>, u64>,
    pub(super) parent: Id,
    next: u64,
}

#[derive(Debug)]
pub(super) enum Body {
    File(Data),
    Dir(Dir),
    Symlink(Vec<u8>),
    Special(SpecData),
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) attributes: Attributes,
    pub(super) body: Body,
}

/// The whole export.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) objects: HashMap<Id, Object>,
    next: Id,
    last_time: u64,
    pub(super) verifier: u64,
    pub(super) cookie_verifier: u64,
    pub(super) capacity: u64,
    pub(super) bare: bool,
    /// SETATTR is answered without attributes.
    pub(super) bare_setattr: bool,
    /// The ACLs that were set and say more than the mode; `None` without NFS_ACL.
    pub(super) acls: Option<HashMap<Id, Acls>>,
    /// Everything happens within one tick of the clock.
    pub(super) clock_stands: bool,
    pub(super) pre_op: PreOp,
    /// Every WRITE goes to stable storage.
    pub(super) always_stable: bool,
    pub(super) never_stable: bool,
    /// READ gives no more bytes than this.
    pub(super) most_read: usize,
    /// The result of [`nfsrdma_nfs3::Nfs3::is_idle`].
    pub(super) idle: bool,
    /// Cookies are returned modulo this number.
    pub(super) cookies_repeat: Option<u64>,
    /// The cookie that is given as another one.
    pub(super) cookie_changed: Option<(u64, u64)>,
}

const ROOT: Id = 2;

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Tree {
            objects: HashMap::new(),
            next: ROOT,
            last_time: 0,
            verifier: 1,
            cookie_verifier: 0,
            capacity: u64::MAX,
            bare: false,
            bare_setattr: false,
            acls: None,
            clock_stands: false,
            pre_op: PreOp::Atomic,
            always_stable: false,
            never_stable: false,
            most_read: usize::MAX,
            idle: false,
            cookies_repeat: None,
            cookie_changed: None,
        };
        let body = Body::Dir(Dir {
            parent: ROOT,
            next: 10,
            ..Dir::default()
        });
        tree.make(FileType::Directory, 0o777, body);
        tree
    }

    pub(super) fn root(&self) -> FileHandle {
        self.handle(ROOT)
    }

    pub(super) fn handle(&self, id: Id) -> FileHandle {
        FileHandle::new(&id.to_be_bytes()).expect("eight bytes fit")
    }

    /// A time later than all earlier ones, unless the clock is stopped.
    pub(super) fn now(&mut self) -> Time {
        if !self.clock_stands || self.last_time == 0 {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let since = since.unwrap_or_default().as_nanos() as u64;
            self.last_time = since.max(self.last_time + 1);
        }
        Time {
            seconds: (self.last_time / 1_000_000_000) as u32,
            nanoseconds: (self.last_time % 1_000_000_000) as u32,
        }
    }

    /// The pre-operation attributes of a WRITE that arrived at `arrived`.
    pub(super) fn before_write(
        &self,
        id: Id,
        arrived: Option<WccAttributes>,
    ) -> Option<WccAttributes> {
        match self.pre_op {
            PreOp::Atomic => self.before(id),
            PreOp::Never => None,
            PreOp::NotAtomic => arrived,
        }
    }

    pub(super) fn change_file(&mut self, path: &str, offset: u64, data: &[u8], mode: Option<u32>) {
        let Some(handle) = self.walk(path) else {
            return;
        };
        let Ok(id) = self.id(&handle) else { return };
        if !data.is_empty()
            && let Ok(file) = self.file(&handle)
        {
            file.write(offset, data, true);
            self.touch(id);
        }
        if let Some(mode) = mode {
            self.stored(id).mode = mode;
            self.change(id);
        }
    }

    fn make(&mut self, kind: FileType, mode: u32, body: Body) -> Id {
        let id = self.next;
        self.next += 1;
        let now = self.now();
        let attributes = Attributes {
            kind,
            mode: mode & 0o7777,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            size: match &body {
                Body::Symlink(target) => target.len() as u64,
                Body::Dir(_) => 4096,
                Body::File(_) | Body::Special(_) => 0,
            },
            used: 0,
            rdev: match body {
                Body::Special(device) => device,
                _ => SpecData::default(),
            },
            fsid: 7,
            fileid: id,
            atime: now,
            mtime: now,
            ctime: now,
        };
        self.objects.insert(id, Object { attributes, body });
        id
    }

    pub(super) fn id(&self, handle: &FileHandle) -> Result<Id, Status> {
        let bytes = handle
            .as_bytes()
            .try_into()
            .map_err(|_| Status::BadHandle)?;
        let id = u64::from_be_bytes(bytes);
        self.objects
            .contains_key(&id)
            .then_some(id)
            .ok_or(Status::Stale)
    }

    pub(super) fn object(&mut self, handle: &FileHandle) -> Result<&mut Object, Status> {
        let id = self.id(handle)?;
        self.objects.get_mut(&id).ok_or(Status::Stale)
    }

    pub(super) fn attributes(&self, id: Id) -> Attributes {
        let object = &self.objects[&id];
        let mut attributes = object.attributes;
        if let Body::File(data) = &object.body {
            attributes.size = data.size;
            attributes.used = data.used();
        }
        attributes
    }

    pub(super) fn file(&mut self, handle: &FileHandle) -> Result<&mut Data, Status> {
        match &mut self.object(handle)?.body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(Status::IsDir),
            Body::Symlink(_) | Body::Special(_) => Err(Status::Inval),
        }
    }

    pub(super) fn dir(&mut self, handle: &FileHandle) -> Result<(Id, &mut Dir), Status> {
        let id = self.id(handle)?;
        match &mut self.object(handle)?.body {
            Body::Dir(dir) => Ok((id, dir)),
            _ => Err(Status::NotDir),
        }
    }

    pub(super) fn before(&self, id: Id) -> Option<WccAttributes> {
        let a = self.attributes(id);
        Some(WccAttributes {
            size: a.size,
            mtime: a.mtime,
            ctime: a.ctime,
        })
    }

    pub(super) fn wcc(&self, before: Option<WccAttributes>, id: Id) -> WccData {
        WccData {
            before,
            after: Some(self.attributes(id)),
        }
    }

    /// The attributes as they are stored, without the size of a file.
    pub(super) fn stored(&mut self, id: Id) -> &mut Attributes {
        let object = self.objects.get_mut(&id);
        &mut object.expect("the object exists").attributes
    }

    /// Records a change of the contents.
    pub(super) fn touch(&mut self, id: Id) {
        self.change(id);
        let attributes = self.stored(id);
        attributes.mtime = attributes.ctime;
    }

    /// Records a change of the attributes.
    pub(super) fn change(&mut self, id: Id) {
        self.stored(id).ctime = self.now();
    }

    pub(super) fn find(&mut self, dir: &FileHandle, name: &[u8]) -> Result<Id, Status> {
        let (id, entries) = self.dir(dir)?;
        match name {
            b"." => return Ok(id),
            b".." => return Ok(entries.parent),
            _ => {}
        }
        let cookie = entries.by_name.get(name).ok_or(Status::NoEnt)?;
        Ok(entries.by_cookie[cookie].1)
    }

    pub(super) fn insert(
        &mut self,
        dir: &FileHandle,
        name: &[u8],
        child: Id,
    ) -> Result<(), Status> {
        let (id, entries) = self.dir(dir)?;
        let cookie = entries.next;
        entries.next += 3;
        entries.by_cookie.insert(cookie, (name.into(), child));
        entries.by_name.insert(name.into(), cookie);
        self.touch(id);
        Ok(())
    }

    /// Removes a name. The object stays.
    pub(super) fn detach(&mut self, dir: &FileHandle, name: &[u8]) -> Result<Id, Status> {
        let (id, entries) = self.dir(dir)?;
        let cookie = entries.by_name.remove(name).ok_or(Status::NoEnt)?;
        let (_, child) = entries
            .by_cookie
            .remove(&cookie)
            .ok_or(Status::ServerFault)?;
        self.touch(id);
        Ok(child)
    }

    /// Records that an object lost a name.
    pub(super) fn unlink(&mut self, id: Id) {
        self.change(id);
        let attributes = self.stored(id);
        attributes.nlink = attributes.nlink.saturating_sub(1);
        if attributes.nlink == 0 || attributes.kind == FileType::Directory {
            self.objects.remove(&id);
        }
    }

    pub(super) fn create(
        &mut self,
        dir: &FileHandle,
        name: &[u8],
        kind: FileType,
        body: Body,
        new: &SetAttributes,
        owner: (u32, u32),
    ) -> Result<Id, Status> {
        if self.find(dir, name).is_ok() {
            return Err(Status::Exist);
        }
        let parent = self.dir(dir)?.0;
        let body = match body {
            Body::Dir(_) => Body::Dir(Dir {
                parent,
                next: 10,
                ..Dir::default()
            }),
            body => body,
        };
        if kind == FileType::Directory {
            self.stored(parent).nlink += 1;
        }
        let id = self.make(kind, 0o666, body);
        let attributes = self.stored(id);
        (attributes.uid, attributes.gid) = owner;
        self.set(id, new);
        self.insert(dir, name, id)?;
        Ok(id)
    }

    pub(super) fn set(&mut self, id: Id, new: &SetAttributes) {
        let now = self.now();
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let a = &mut object.attributes;
        a.mode = new.mode.map_or(a.mode, |mode| mode & 0o7777);
        a.uid = new.uid.unwrap_or(a.uid);
        a.gid = new.gid.unwrap_or(a.gid);
        a.ctime = now;
        if let (Some(size), Body::File(data)) = (new.size, &mut object.body) {
            data.truncate(size);
            a.mtime = now;
        }
        let time = |new: SetTime, old: Time| match new {
            SetTime::Keep => old,
            SetTime::ToServerTime => now,
            SetTime::To(time) => time,
        };
        a.atime = time(new.atime, a.atime);
        a.mtime = time(new.mtime, a.mtime);
    }

    pub(super) fn used(&self) -> u64 {
        let data = self.objects.values().map(|object| match &object.body {
            Body::File(data) => data.used(),
            _ => 0,
        });
        data.sum()
    }

    pub(super) fn restart(&mut self) {
        self.verifier += 1;
        for object in self.objects.values_mut() {
            if let Body::File(data) = &mut object.body {
                data.crash();
            }
        }
    }

    pub(super) fn renumber(&mut self) {
        self.cookie_verifier += 1;
        for object in self.objects.values_mut() {
            if let Body::Dir(dir) = &mut object.body {
                // Beyond every cookie given before. Doubling them would overflow at some point.
                let shift = 1 << 32;
                let old = std::mem::take(&mut dir.by_cookie);
                for (cookie, entry) in old {
                    dir.by_name.insert(entry.0.clone(), cookie + shift);
                    dir.by_cookie.insert(cookie + shift, entry);
                }
                dir.next += shift;
            }
        }
    }

    pub(super) fn walk(&mut self, path: &str) -> Option<FileHandle> {
        let mut at = self.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let id = self.find(&at, name.as_bytes()).ok()?;
            at = self.handle(id);
        }
        Some(at)
    }

    pub(super) fn contents(&mut self, path: &str) -> Option<Vec<u8>> {
        let handle = self.walk(path)?;
        let data = self.file(&handle).ok()?;
        let mut all = vec![0; usize::try_from(data.size).ok()?];
        data.read(0, &mut all);
        Some(all)
    }

    pub(super) fn durable(&mut self, path: &str) -> Option<Vec<u8>> {
        let handle = self.walk(path)?;
        Some(self.file(&handle).ok()?.durable())
    }

    pub(super) fn change_type(&mut self, path: &str, kind: FileType) {
        if let Some(id) = self.walk(path).and_then(|handle| self.id(&handle).ok()) {
            self.stored(id).kind = kind;
        }
    }

    pub(super) fn fileid(&mut self, path: &str) -> Option<u64> {
        let handle = self.walk(path)?;
        let object = self.object(&handle).ok()?;
        Some(object.attributes.fileid)
    }

    pub(super) fn names(&mut self, path: &str) -> Vec<String> {
        let Some(handle) = self.walk(path) else {
            return Vec::new();
        };
        let Ok((_, dir)) = self.dir(&handle) else {
            return Vec::new();
        };
        let names = dir.by_cookie.values();
        names
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
            .collect()
    }

    pub(super) fn plant(&mut self, name: &str, contents: &[u8]) {
        let root = self.root();
        let body = Body::File(Data::default());
        let new = SetAttributes {
            mode: Some(0o644),
            ..SetAttributes::default()
        };
        let (name, owner) = (name.as_bytes(), (0, 0));
        let known = self.find(&root, name);
        let planted =
            known.or_else(|_| self.create(&root, name, FileType::Regular, body, &new, owner));
        if let Ok(id) = planted {
            let handle = self.handle(id);
            if let Ok(data) = self.file(&handle) {
                data.truncate(0);
                data.write(0, contents, true);
            }
            self.touch(id);
        }
    }
}
