//! Two mounts of one export and a model: data that one mount closed is seen by the other one when
//! it opens the file (close-to-open consistency). Operations, their order and the faults between
//! them follow from the seed.

use crate::fault::Fault;
use crate::load::close;
use crate::sys::{Aligned, Mapping};
use crate::tree::checksum;
use crate::tree::{self, Known, Manifest};
use anyhow::{Context, Result, ensure};
use nfsrdma_test_support::Random;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const FILES: usize = 5;
const LARGEST: usize = 1 << 20;
const TOLD: usize = 60;

/// A file that one of the mounts has open, and the other does not.
#[derive(Debug)]
struct Open {
    file: File,
    mount: usize,
    direct: bool,
}

#[derive(Debug)]
pub(crate) struct Pair {
    /// The same directory through each mount, and at the server.
    mounted: [PathBuf; 2],
    direct: PathBuf,
    random: Random,
    files: BTreeMap<String, Vec<u8>>,
    open: BTreeMap<String, Open>,
    told: VecDeque<String>,
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) compared: u64,
    number: u64,
}

impl Pair {
    pub(crate) fn new(mounts: [&Path; 2], direct: &Path, name: &str, seed: u64) -> Result<Self> {
        let pair = Pair {
            mounted: mounts.map(|mount| mount.join(name)),
            direct: direct.join(name),
            random: Random::new(seed),
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            told: VecDeque::new(),
            operations: BTreeMap::new(),
            compared: 0,
            number: 0,
        };
        fs::create_dir(&pair.mounted[0])?;
        Ok(pair)
    }

    fn tell(&mut self, what: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }

    /// Makes one operation, or returns a fault that is due.
    pub(crate) fn step(&mut self) -> Result<Option<Fault>> {
        if self.random.chance(1, 25) {
            let fault = Fault::any(&mut self.random);
            self.tell(format!("fault {fault:?}"));
            return Ok(Some(fault));
        }
        let name = format!("f{}", self.random.below(FILES));
        let result = match self.open.contains_key(&name) {
            true => self.use_open(&name),
            false => self.use_closed(&name),
        };
        let deed = result.with_context(|| {
            let told: Vec<_> = self.told.iter().map(String::as_str).collect();
            format!("after: {}", told.join("; "))
        })?;
        *self.operations.entry(deed).or_default() += 1;
        Ok(None)
    }

    fn use_closed(&mut self, name: &str) -> Result<&'static str> {
        let mount = self.random.below(2);
        let path = self.mounted[mount].join(name);
        if !self.files.contains_key(name) {
            self.tell(format!("{mount}: create {name}"));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
                .with_context(|| format!("create {}", path.display()))?;
            self.files.insert(name.to_owned(), Vec::new());
            let direct = false;
            self.open.insert(
                name.to_owned(),
                Open {
                    file,
                    mount,
                    direct,
                },
            );
            return Ok("create");
        }
        match self.random.below(10) {
            0 => {
                self.tell(format!("{mount}: unlink {name}"));
                fs::remove_file(&path).with_context(|| format!("unlink {}", path.display()))?;
                self.files.remove(name);
                Ok("unlink")
            }
            1 | 2 => {
                // Editors and compilers replace a file like this.
                let fresh = format!("new{}", self.number);
                self.number += 1;
                let len = self.random.length(LARGEST);
                let data = self.random.bytes(len);
                self.tell(format!("{mount}: replace {name} by {len} bytes"));
                fs::write(self.mounted[mount].join(&fresh), &data)?;
                fs::rename(self.mounted[mount].join(&fresh), &path)?;
                self.files.insert(name.to_owned(), data);
                self.check(name, 1 - mount)?;
                Ok("replace")
            }
            3 => {
                self.check(name, mount)?;
                Ok("read-whole")
            }
            _ => {
                let direct = self.random.chance(1, 6);
                let truncate = self.random.chance(1, 8);
                self.tell(format!(
                    "{mount}: open {name} direct={direct} truncate={truncate}"
                ));
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .truncate(truncate)
                    .custom_flags(if direct { libc::O_DIRECT } else { 0 })
                    .open(&path)
                    .with_context(|| format!("open {}", path.display()))?;
                let bytes = self.files.entry(name.to_owned()).or_default();
                if truncate {
                    bytes.clear();
                }
                let size = file.metadata()?.len();
                ensure!(
                    size == bytes.len() as u64,
                    "{name} opened through mount {mount} has {size} bytes, not {}",
                    bytes.len()
                );
                self.open.insert(
                    name.to_owned(),
                    Open {
                        file,
                        mount,
                        direct,
                    },
                );
                Ok("open")
            }
        }
    }

    fn use_open(&mut self, name: &str) -> Result<&'static str> {
        let (Some(open), Some(bytes)) = (self.open.get(name), self.files.get_mut(name)) else {
            return Ok("nothing");
        };
        let random = &mut self.random;
        let (mount, size) = (open.mount, bytes.len());
        match random.below(12) {
            0..=3 => {
                let reach = match random.chance(1, 6) {
                    true => LARGEST,
                    false => (size + 1).min(LARGEST),
                };
                let mut offset = random.below(reach);
                let mut len = random.length(LARGEST - offset);
                if open.direct {
                    offset = offset / 4096 * 4096;
                    len = len.next_multiple_of(4096);
                }
                let mut data = Aligned::new(len);
                data.copy_from_slice(&random.bytes(len));
                open.file.write_all_at(&data, offset as u64)?;
                bytes.resize(size.max(offset + len), 0);
                bytes[offset..offset + len].copy_from_slice(&data);
                self.tell(format!("{mount}: write {name} [{offset}, +{len})"));
                Ok("write")
            }
            4 | 5 => {
                let mut offset = random.below(size + 1);
                let mut len = random.length(LARGEST);
                if open.direct {
                    offset = offset / 4096 * 4096;
                    len = len.next_multiple_of(4096);
                }
                let mut got = Aligned::new(len);
                let mut n = 0;
                while n < len && offset + n < size {
                    let more = open.file.read_at(&mut got[n..], (offset + n) as u64)?;
                    n += more;
                    if more == 0 {
                        break;
                    }
                }
                let expected = &bytes[offset..(offset + len).min(size)];
                tree::same(
                    &format!("read of {name} by {mount} at {offset}"),
                    &got[..n],
                    expected,
                )?;
                self.compared += n as u64;
                self.tell(format!("{mount}: read {name} [{offset}, +{len})"));
                Ok("read")
            }
            6 => {
                let to = random.below(2 * size + 10).min(LARGEST);
                open.file.set_len(to as u64)?;
                bytes.resize(to, 0);
                self.tell(format!("{mount}: truncate {name} {to}"));
                Ok("truncate")
            }
            7 if size > 0 && !open.direct => {
                let offset = random.below(size);
                let len = random.length(size - offset);
                let data = random.bytes(len);
                let map = Mapping::new(&open.file, offset + data.len(), true)?;
                let mut got = vec![0; data.len()];
                map.read(offset, &mut got)?;
                let place = &mut bytes[offset..offset + data.len()];
                tree::same(
                    &format!("mapping of {name} by {mount} at {offset}"),
                    &got,
                    place,
                )?;
                map.write(offset, &data)?;
                map.sync()?;
                place.copy_from_slice(&data);
                self.tell(format!("{mount}: mmap {name} [{offset}, +{})", data.len()));
                Ok("mmap")
            }
            8 => {
                open.file.sync_all()?;
                self.tell(format!("{mount}: fsync {name}"));
                self.at_server(name, "fsync")?;
                Ok("fsync")
            }
            _ => {
                self.shut(name)?;
                Ok("close")
            }
        }
    }

    /// Closes a file, and checks it from everywhere.
    fn shut(&mut self, name: &str) -> Result<()> {
        let Some(open) = self.open.remove(name) else {
            return Ok(());
        };
        self.tell(format!("{}: close {name}", open.mount));
        close(open.file)?;
        self.at_server(name, "close")?;
        self.check(name, 1 - open.mount)?;
        self.check(name, open.mount)
    }

    fn at_server(&mut self, name: &str, after: &str) -> Result<()> {
        let there = fs::read(self.direct.join(name))
            .with_context(|| format!("at the server after {after}: {name}"))?;
        tree::same(
            &format!("at the server after {after}: {name}"),
            &there,
            &self.files[name],
        )?;
        self.compared += there.len() as u64;
        Ok(())
    }

    /// Checks the contents that a mount sees when it opens the file now.
    fn check(&mut self, name: &str, mount: usize) -> Result<()> {
        self.tell(format!("{mount}: read whole {name}"));
        let got = fs::read(self.mounted[mount].join(name))
            .with_context(|| format!("{name} through mount {mount}"))?;
        tree::same(
            &format!("{name} through mount {mount}"),
            &got,
            &self.files[name],
        )?;
        self.compared += got.len() as u64;
        Ok(())
    }

    /// Closes all files, and compares everything from everywhere.
    pub(crate) fn finish(&mut self) -> Result<Manifest> {
        let open: Vec<_> = self.open.keys().cloned().collect();
        for name in open {
            self.shut(&name)?;
        }
        let known = |bytes: &Vec<u8>| Known::File {
            len: bytes.len() as u64,
            sum: checksum(bytes),
        };
        let manifest: Manifest = self
            .files
            .iter()
            .map(|(name, bytes)| (name.clone(), known(bytes)))
            .collect();
        self.compared += tree::verify(&self.direct, &manifest).context("at the server")?;
        Ok(manifest)
    }
}
