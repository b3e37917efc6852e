//! A worker of the load: random operations on a directory of its own, each checked against a model.

use crate::sys::{Aligned, Mapping};
use crate::tree::checksum;
use crate::tree::{self, Known, Manifest};
use anyhow::{Context, Result, ensure};
use nfsrdma_test_support::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Largest file of the random operations, in bytes.
const LARGEST: usize = 2 << 20;
/// Size of a file that is written and read in one stream.
const STREAM: usize = 6 << 20;
/// Most files that are open at a time.
const OPEN: usize = 6;
/// The number of last operations that are printed after a failure.
const TOLD: usize = 60;

#[derive(Debug, Clone, PartialEq)]
enum Node {
    File(usize),
    Dir,
    Symlink(String),
}

#[derive(Debug)]
struct Open {
    file: File,
    contents: usize,
    write: bool,
    append: bool,
    direct: bool,
    wrote: bool,
}

/// The bytes of a file, and the number of its names and descriptors.
#[derive(Debug, Default)]
struct Contents {
    bytes: Vec<u8>,
    links: usize,
    opens: usize,
    /// Whether a name was removed from it while it was open.
    hidden: bool,
}

#[derive(Debug)]
pub(crate) struct Load {
    mounted: PathBuf,
    direct: PathBuf,
    random: Random,
    nodes: BTreeMap<String, Node>,
    contents: Vec<Contents>,
    open: Vec<Open>,
    told: VecDeque<String>,
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) compared: u64,
}

type Deed = fn(&mut Load) -> Result<()>;

const DEEDS: &[(usize, &str, Deed)] = &[
    (14, "write", Load::write),
    (12, "read", Load::read),
    (6, "open", Load::open),
    (4, "create", Load::create),
    (5, "close", Load::close),
    (4, "fsync", Load::fsync),
    (4, "truncate", Load::truncate),
    (3, "mmap-read", Load::mmap_read),
    (3, "mmap-write", Load::mmap_write),
    (2, "unlink", Load::unlink),
    (3, "rename", Load::rename),
    (2, "link", Load::link),
    (1, "symlink", Load::symlink),
    (1, "mkdir", Load::mkdir),
    (1, "rmdir", Load::rmdir),
    (3, "readdir", Load::readdir),
    (3, "stat", Load::stat),
    (1, "chmod", Load::chmod),
    (3, "read-whole", Load::read_whole),
    (1, "stream", Load::stream),
];

impl Load {
    pub(crate) fn new(mounted: &Path, direct: &Path, seed: u64) -> Result<Self> {
        fs::create_dir(mounted).with_context(|| format!("mkdir {}", mounted.display()))?;
        Ok(Load {
            mounted: mounted.to_owned(),
            direct: direct.to_owned(),
            random: Random::new(seed),
            nodes: BTreeMap::new(),
            contents: Vec::new(),
            open: Vec::new(),
            told: VecDeque::new(),
            operations: BTreeMap::new(),
            compared: 0,
        })
    }

    /// Makes one operation.
    pub(crate) fn step(&mut self) -> Result<()> {
        let all = DEEDS.iter().map(|deed| deed.0).sum();
        let mut at = self.random.below(all);
        for &(weight, name, deed) in DEEDS {
            if at < weight {
                let result = deed(self).context(name);
                *self.operations.entry(name).or_default() += 1;
                return result.with_context(|| {
                    let told: Vec<_> = self.told.iter().map(String::as_str).collect();
                    format!("after: {}", told.join("; "))
                });
            }
            at -= weight;
        }
        Ok(())
    }

    /// Closes all files, and compares the whole tree through the mount and at the server.
    pub(crate) fn finish(&mut self) -> Result<Manifest> {
        while !self.open.is_empty() {
            self.close()?;
        }
        let known = |node: &Node| match node {
            Node::File(id) => {
                let bytes = &self.contents[*id].bytes;
                Known::File {
                    len: bytes.len() as u64,
                    sum: checksum(bytes),
                }
            }
            Node::Dir => Known::Dir,
            Node::Symlink(to) => Known::Symlink(to.clone()),
        };
        let manifest: Manifest = self
            .nodes
            .iter()
            .map(|(path, node)| (path.clone(), known(node)))
            .collect();
        self.compared += tree::verify(&self.mounted, &manifest).context("through the mount")?;
        self.compared += tree::verify(&self.direct, &manifest).context("at the server")?;
        Ok(manifest)
    }

    fn tell(&mut self, what: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }

    fn dirs(&self) -> Vec<String> {
        let mut dirs = vec![String::new()];
        let is_dir =
            |(path, node): (&String, &Node)| matches!(node, Node::Dir).then(|| format!("{path}/"));
        dirs.extend(self.nodes.iter().filter_map(is_dir));
        dirs
    }

    /// A path that may or may not exist.
    fn any_path(&mut self) -> String {
        let dirs = self.dirs();
        let dir = self.random.pick(&dirs).clone();
        format!("{dir}f{}", self.random.below(6))
    }

    fn file_paths(&self) -> Vec<String> {
        let is_file =
            |(path, node): (&String, &Node)| matches!(node, Node::File(_)).then(|| path.clone());
        self.nodes.iter().filter_map(is_file).collect()
    }

    /// A file that exists.
    fn some_file(&mut self) -> Option<(String, usize)> {
        let all = self.file_paths();
        if all.is_empty() {
            return None;
        }
        let path = self.random.pick(&all).clone();
        match self.nodes[&path] {
            Node::File(id) => Some((path, id)),
            Node::Dir | Node::Symlink(_) => None,
        }
    }

    /// The index of an open file for which `fits` is true, if there is one.
    fn some_open(&mut self, fits: impl Fn(&Open) -> bool) -> Option<usize> {
        let all: Vec<_> = (0..self.open.len())
            .filter(|&i| fits(&self.open[i]))
            .collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    fn drop_name(&mut self, path: &str) {
        if let Some(Node::File(id)) = self.nodes.remove(path) {
            self.contents[id].links -= 1;
            self.contents[id].hidden |= self.contents[id].opens > 0;
            self.forget(id);
        }
    }

    fn forget(&mut self, id: usize) {
        let contents = &mut self.contents[id];
        if contents.links == 0 && contents.opens == 0 {
            contents.bytes = Vec::new();
        }
    }

    fn open_as(&mut self, path: &str, id: usize, create: bool) -> Result<()> {
        if self.open.len() >= OPEN {
            self.close()?;
        }
        let write = create || self.random.chance(3, 4);
        let direct = self.random.chance(1, 5);
        let append = write && !direct && self.random.chance(1, 6);
        let truncate = write && !create && !append && self.random.chance(1, 8);
        self.tell(format!(
            "open {path}#{id} write={write} append={append} direct={direct} create={create} truncate={truncate}"
        ));
        let file = OpenOptions::new()
            .read(true)
            .write(write && !append)
            .append(append)
            .truncate(truncate)
            .create_new(create)
            .custom_flags(if direct { libc::O_DIRECT } else { 0 })
            .open(self.mounted.join(path))
            .with_context(|| format!("open {path}"))?;
        if truncate {
            self.contents[id].bytes.clear();
        }
        self.contents[id].opens += 1;
        self.open.push(Open {
            file,
            contents: id,
            write,
            append,
            direct,
            wrote: false,
        });
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        match self.some_file() {
            Some((path, id)) => self.open_as(&path, id, false),
            None => self.create(),
        }
    }

    fn create(&mut self) -> Result<()> {
        let path = self.any_path();
        if self.nodes.contains_key(&path) {
            self.tell(format!("create {path}, which is there"));
            let result = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(self.mounted.join(&path));
            let error = result.err().map(|e| e.raw_os_error());
            ensure!(
                error == Some(Some(libc::EEXIST)),
                "create {path}, which is there: {error:?}"
            );
            return Ok(());
        }
        let id = self.contents.len();
        self.contents.push(Contents {
            links: 1,
            ..Contents::default()
        });
        self.nodes.insert(path.clone(), Node::File(id));
        self.open_as(&path, id, true)
    }

    /// Compares the data written so far with the file at the server.
    fn compare_direct(&mut self, id: usize, after: &str) -> Result<()> {
        let named = self.nodes.iter().find(|(_, n)| **n == Node::File(id));
        // A file without a name cannot be read there.
        let Some((path, _)) = named else {
            return Ok(());
        };
        let there =
            fs::read(self.direct.join(path)).with_context(|| format!("at the server: {path}"))?;
        let bytes = &self.contents[id].bytes;
        tree::same(
            &format!("at the server after {after}: {path}#{id}"),
            &there,
            bytes,
        )?;
        self.compared += there.len() as u64;
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let Some(at) = self.some_open(|_| true) else {
            return Ok(());
        };
        let open = self.open.swap_remove(at);
        let id = open.contents;
        self.tell(format!("close #{id}"));
        close(open.file).with_context(|| format!("close of #{id}"))?;
        if open.wrote {
            self.compare_direct(id, "close")?;
        }
        self.contents[id].opens -= 1;
        self.forget(id);
        Ok(())
    }

    fn fsync(&mut self) -> Result<()> {
        let Some(at) = self.some_open(|_| true) else {
            return Ok(());
        };
        let id = self.open[at].contents;
        self.tell(format!("fsync #{id}"));
        match self.random.chance(1, 2) {
            true => self.open[at].file.sync_all()?,
            false => self.open[at].file.sync_data()?,
        }
        self.compare_direct(id, "fsync")
    }

    fn write(&mut self) -> Result<()> {
        let Some(at) = self.some_open(|open| open.write) else {
            return self.open();
        };
        let id = self.open[at].contents;
        let (direct, append) = (self.open[at].direct, self.open[at].append);
        let size = self.contents[id].bytes.len();
        // Sometimes behind the end, which leaves a hole.
        let reach = match self.random.chance(1, 8) {
            true => LARGEST,
            false => (size + 1).min(LARGEST),
        };
        let mut offset = self.random.below(reach);
        let mut len = self.random.length(LARGEST - offset);
        if direct {
            offset = offset / 4096 * 4096;
            len = len.next_multiple_of(4096);
        }
        if append {
            offset = size;
            if size > LARGEST {
                return Ok(());
            }
        }
        self.tell(format!(
            "write #{id} [{offset}, +{len}) direct={direct} append={append}"
        ));
        let data = self.random.bytes(len);
        let open = &mut self.open[at];
        // A close flushes the data of this descriptor; O_DIRECT data is already there.
        open.wrote |= !direct;
        if direct {
            let mut aligned = Aligned::new(len);
            aligned.copy_from_slice(&data);
            open.file.write_all_at(&aligned, offset as u64)?;
        } else {
            // With O_APPEND the offset is ignored.
            open.file.write_all_at(&data, offset as u64)?;
        }
        let bytes = &mut self.contents[id].bytes;
        if bytes.len() < offset + len {
            bytes.resize(offset + len, 0);
        }
        bytes[offset..offset + len].copy_from_slice(&data);
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let Some(at) = self.some_open(|_| true) else {
            return self.open();
        };
        let id = self.open[at].contents;
        let size = self.contents[id].bytes.len();
        let mut offset = self.random.below(size + size / 16 + 2);
        let mut len = self.random.length(1 << 20);
        if self.open[at].direct {
            offset = offset / 4096 * 4096;
            len = len.next_multiple_of(4096);
        }
        self.tell(format!(
            "read #{id} [{offset}, +{len}) direct={}",
            self.open[at].direct
        ));
        let mut got = Aligned::new(len);
        let mut n = 0;
        while n < len {
            let more = self.open[at]
                .file
                .read_at(&mut got[n..], (offset + n) as u64)?;
            n += more;
            if more == 0 || offset + n >= size {
                break;
            }
        }
        let expected = &self.contents[id].bytes[offset.min(size)..(offset + len).min(size)];
        tree::same(&format!("read of #{id} at {offset}"), &got[..n], expected)?;
        self.compared += n as u64;
        Ok(())
    }

    fn truncate(&mut self) -> Result<()> {
        let by_path = self.random.chance(1, 2);
        let (id, size) = if by_path {
            let Some((path, id)) = self.some_file() else {
                return Ok(());
            };
            let size = self.new_size(id);
            self.tell(format!("truncate {path}#{id} {size}"));
            let file = OpenOptions::new()
                .write(true)
                .open(self.mounted.join(&path))?;
            file.set_len(size as u64)?;
            (id, size)
        } else {
            let Some(at) = self.some_open(|open| open.write) else {
                return Ok(());
            };
            let id = self.open[at].contents;
            let size = self.new_size(id);
            self.tell(format!("ftruncate #{id} {size}"));
            self.open[at].file.set_len(size as u64)?;
            (id, size)
        };
        self.contents[id].bytes.resize(size, 0);
        Ok(())
    }

    fn new_size(&mut self, id: usize) -> usize {
        let size = self.contents[id].bytes.len();
        match self.random.below(4) {
            0 => 0,
            1 => self.random.below(LARGEST),
            _ => self.random.below(size + 1),
        }
    }

    /// A range for a mapping, inside the file.
    fn mapped(&mut self, write: bool) -> Option<(usize, usize, usize, usize)> {
        let at = self.some_open(|open| !open.direct && !open.append && (open.write || !write))?;
        let id = self.open[at].contents;
        let size = self.contents[id].bytes.len();
        if size == 0 {
            return None;
        }
        let offset = self.random.below(size);
        let len = self.random.length(300_000).min(size - offset);
        Some((at, id, offset, len))
    }

    fn mmap_read(&mut self) -> Result<()> {
        let Some((at, id, offset, len)) = self.mapped(false) else {
            return Ok(());
        };
        self.tell(format!("mmap-read #{id} [{offset}, +{len})"));
        let map = Mapping::new(&self.open[at].file, offset + len, false)?;
        let mut got = vec![0; len];
        map.read(offset, &mut got)?;
        let expected = &self.contents[id].bytes[offset..offset + len];
        tree::same(&format!("mapping of #{id} at {offset}"), &got, expected)?;
        self.compared += len as u64;
        Ok(())
    }

    fn mmap_write(&mut self) -> Result<()> {
        let Some((at, id, offset, len)) = self.mapped(true) else {
            return Ok(());
        };
        self.tell(format!("mmap-write #{id} [{offset}, +{len})"));
        let data = self.random.bytes(len);
        let map = Mapping::new(&self.open[at].file, offset + len, true)?;
        map.write(offset, &data)?;
        map.sync()?;
        self.contents[id].bytes[offset..offset + len].copy_from_slice(&data);
        self.compare_direct(id, "msync")
    }

    fn unlink(&mut self) -> Result<()> {
        let all: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, n)| **n != Node::Dir)
            .map(|(p, _)| p.clone())
            .collect();
        if all.is_empty() {
            return Ok(());
        }
        let path = self.random.pick(&all).clone();
        self.tell(format!("unlink {path}"));
        fs::remove_file(self.mounted.join(&path))?;
        self.drop_name(&path);
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let Some((from, id)) = self.some_file() else {
            return Ok(());
        };
        let to = self.any_path();
        self.tell(format!("rename {from}#{id} {to}"));
        fs::rename(self.mounted.join(&from), self.mounted.join(&to))?;
        // With two names of one file, nothing happens (rename(2)).
        if self.nodes.get(&to) != Some(&Node::File(id)) {
            self.drop_name(&to);
            self.nodes.remove(&from);
            self.nodes.insert(to, Node::File(id));
        }
        Ok(())
    }

    fn link(&mut self) -> Result<()> {
        let Some((from, id)) = self.some_file() else {
            return Ok(());
        };
        let to = self.any_path();
        self.tell(format!("link {from}#{id} {to}"));
        let result = fs::hard_link(self.mounted.join(&from), self.mounted.join(&to));
        if self.nodes.contains_key(&to) {
            let error = result.err().and_then(|e| e.raw_os_error());
            ensure!(
                error == Some(libc::EEXIST),
                "link to {to}, which is there: {error:?}"
            );
            return Ok(());
        }
        result?;
        self.contents[id].links += 1;
        self.nodes.insert(to, Node::File(id));
        Ok(())
    }

    fn symlink(&mut self) -> Result<()> {
        let path = self.any_path();
        if let Some(node) = self.nodes.get(&path) {
            if let Node::Symlink(to) = node {
                let got = fs::read_link(self.mounted.join(&path))?;
                ensure!(got == Path::new(to), "{path} leads to {}", got.display());
            }
            return Ok(());
        }
        let to = format!("to-{}", "x".repeat(self.random.below(900)));
        self.tell(format!("symlink {path}"));
        symlink(&to, self.mounted.join(&path))?;
        self.nodes.insert(path, Node::Symlink(to));
        Ok(())
    }

    fn mkdir(&mut self) -> Result<()> {
        let dir = format!("d{}", self.random.below(4));
        self.tell(format!("mkdir {dir}"));
        let result = fs::create_dir(self.mounted.join(&dir));
        if self.nodes.contains_key(&dir) {
            let error = result.err().and_then(|e| e.raw_os_error());
            ensure!(
                error == Some(libc::EEXIST),
                "mkdir {dir}, which is there: {error:?}"
            );
            return Ok(());
        }
        result?;
        self.nodes.insert(dir, Node::Dir);
        Ok(())
    }

    fn rmdir(&mut self) -> Result<()> {
        let dir = format!("d{}", self.random.below(4));
        let inside = format!("{dir}/");
        if !self.nodes.contains_key(&dir) || self.nodes.keys().any(|p| p.starts_with(&inside)) {
            return Ok(());
        }
        self.tell(format!("rmdir {dir}"));
        match fs::remove_dir(self.mounted.join(&dir)) {
            Ok(()) => {
                self.nodes.remove(&dir);
            }
            // Open files without a name still have hidden names in it.
            Err(e) if e.raw_os_error() == Some(libc::ENOTEMPTY) => {
                let hidden = self.contents.iter().any(|c| c.hidden && c.opens > 0);
                ensure!(hidden, "rmdir of the empty {dir}: {e}");
            }
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    fn readdir(&mut self) -> Result<()> {
        let dirs = self.dirs();
        let dir = self.random.pick(&dirs).clone();
        self.tell(format!("readdir {dir}"));
        let mut got = BTreeSet::new();
        for entry in fs::read_dir(self.mounted.join(&dir))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with(".nfs") {
                ensure!(got.insert(name.clone()), "{dir}: {name} twice");
            }
        }
        let inside = |path: &String| {
            let rest = path.strip_prefix(&dir)?;
            (!rest.contains('/')).then(|| rest.to_owned())
        };
        let expected: BTreeSet<_> = self.nodes.keys().filter_map(inside).collect();
        ensure!(got == expected, "{dir:?} lists {got:?}, not {expected:?}");
        Ok(())
    }

    fn stat(&mut self) -> Result<()> {
        let path = self.any_path();
        self.tell(format!("stat {path}"));
        let got = fs::symlink_metadata(self.mounted.join(&path));
        match self.nodes.get(&path) {
            None => {
                let error = got.err().and_then(|e| e.raw_os_error());
                ensure!(error == Some(libc::ENOENT), "stat {path}: {error:?}");
            }
            Some(Node::File(id)) => {
                let (got, known) = (got?, &self.contents[*id]);
                let links = known.links as u64;
                // A name that was removed from an open file stays as a hidden name until the file
                // is closed. The link count may include it as long as attributes are valid.
                let hidden = if known.hidden { 64 } else { 0 };
                ensure!(
                    got.len() == known.bytes.len() as u64
                        && (links..=links + hidden).contains(&got.nlink()),
                    "{path}#{id} has {} bytes and {} links, not {} and {}",
                    got.len(),
                    got.nlink(),
                    known.bytes.len(),
                    known.links
                );
            }
            Some(Node::Dir) => ensure!(got?.is_dir(), "{path} is no directory"),
            Some(Node::Symlink(to)) => {
                let got = got?;
                ensure!(got.is_symlink() && got.len() == to.len() as u64, "{path}");
            }
        }
        Ok(())
    }

    fn chmod(&mut self) -> Result<()> {
        let Some((path, _)) = self.some_file() else {
            return Ok(());
        };
        let mode = *self.random.pick(&[0o600, 0o644, 0o755, 0o666]);
        self.tell(format!("chmod {path} {mode:o}"));
        let full = self.mounted.join(&path);
        fs::set_permissions(&full, fs::Permissions::from_mode(mode))?;
        let got = fs::metadata(&full)?.permissions().mode() & 0o7777;
        ensure!(got == mode, "{path} has the mode {got:o}, not {mode:o}");
        Ok(())
    }

    fn read_whole(&mut self) -> Result<()> {
        let Some((path, id)) = self.some_file() else {
            return Ok(());
        };
        self.tell(format!("read-whole {path}#{id}"));
        let got = fs::read(self.mounted.join(&path))?;
        tree::same(&format!("{path}#{id}"), &got, &self.contents[id].bytes)?;
        self.compared += got.len() as u64;
        Ok(())
    }

    /// Writes and reads a large file from the beginning to the end.
    fn stream(&mut self) -> Result<()> {
        let path = self.mounted.join("stream");
        let seed = self.random.number();
        let len = STREAM + self.random.below(5000);
        self.tell(format!("stream of {len}"));
        let data = Random::new(seed).bytes(len);
        fs::write(&path, &data)?;
        let there = fs::read(self.direct.join("stream"))?;
        tree::same("the stream at the server", &there, &data)?;
        let got = fs::read(&path)?;
        tree::same("the stream through the mount", &got, &data)?;
        self.compared += 2 * len as u64;
        fs::remove_file(&path)?;
        Ok(())
    }
}

/// Closes a file, and returns the error of the close.
pub(crate) fn close(file: File) -> Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor is this file's, which is no longer used.
    if unsafe { libc::close(file.into_raw_fd()) } != 0 {
        return Err(std::io::Error::last_os_error()).context("close");
    }
    Ok(())
}
