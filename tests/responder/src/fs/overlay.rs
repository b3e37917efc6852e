//! Holds UNSTABLE data in memory until COMMIT, so that killing the process loses uncommitted data.
//! This tests what clients do with write verifiers.

use nfsrdma_xdr::nfs3::{Attributes, FileHandle, Time};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

/// Most bytes held for all files. Further data is written to the files at once.
const BYTES_MAX: usize = 512 << 20;

/// The key is the handle, because an inode number may be reused by another file.
type Key = FileHandle;

#[derive(Debug, Default)]
struct File {
    /// Data by offset. Extents do not overlap and are not empty.
    extents: BTreeMap<u64, Vec<u8>>,
    /// The time of the last write to them.
    changed: Option<Time>,
}

#[derive(Debug, Default)]
struct Held {
    files: HashMap<Key, File>,
    bytes: usize,
}

/// The data that is not yet in any file.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    held: Mutex<Held>,
}

impl File {
    fn end(&self) -> u64 {
        self.extents
            .last_key_value()
            .map_or(0, |(at, data)| at + data.len() as u64)
    }

    /// Removes `from..to`, and returns the number of bytes that were held there.
    fn clear(&mut self, from: u64, to: u64) -> usize {
        let touched: Vec<u64> = self
            .extents
            .range(..to)
            .rev()
            .take_while(|(at, data)| **at + data.len() as u64 > from)
            .map(|(at, _)| *at)
            .collect();
        let mut cleared = 0;
        for at in touched {
            let Some(mut data) = self.extents.remove(&at) else {
                continue;
            };
            let end = at + data.len() as u64;
            if end > to {
                let tail = data.split_off((to - at) as usize);
                self.extents.insert(to, tail);
            }
            if at < from {
                let middle = data.split_off((from - at) as usize);
                cleared += middle.len();
                self.extents.insert(at, data);
            } else {
                cleared += data.len();
            }
        }
        cleared
    }
}

impl Overlay {
    /// Holds `data`; returns `false` if there is no room for it.
    pub(super) fn write(&self, key: Key, offset: u64, data: &[&[u8]]) -> bool {
        let data: Vec<u8> = data
            .iter()
            .flat_map(|piece| piece.iter().copied())
            .collect();
        let mut held = self.held.lock();
        if held.bytes + data.len() > BYTES_MAX {
            return false;
        }
        let file = held.files.entry(key).or_default();
        file.changed = Some(now());
        if data.is_empty() {
            return true;
        }
        let cleared = file.clear(offset, offset + data.len() as u64);
        let added = data.len();
        file.extents.insert(offset, data);
        held.bytes = held.bytes + added - cleared;
        true
    }

    /// Copies held data over `buffer`, which has `read` bytes of the file from `offset` on. Returns
    /// the number of valid bytes afterwards.
    pub(super) fn read(&self, key: Key, offset: u64, buffer: &mut [u8], read: usize) -> usize {
        let held = self.held.lock();
        let Some(file) = held.files.get(&key) else {
            return read;
        };
        let limit = offset + buffer.len() as u64;
        // A hole before held data reads as zeros.
        let size = file.end().clamp(offset, limit);
        let end = read.max((size - offset) as usize);
        buffer[read..end].fill(0);
        for (&at, data) in file.extents.range(..limit).rev() {
            let data_end = at + data.len() as u64;
            if data_end <= offset {
                break;
            }
            let from = at.max(offset);
            let to = data_end.min(limit);
            buffer[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
        }
        end
    }

    /// Adjusts size and times as if the data were in the file.
    pub(super) fn adjust(&self, key: Key, attributes: &mut Attributes) {
        let held = self.held.lock();
        if let Some(file) = held.files.get(&key) {
            attributes.size = attributes.size.max(file.end());
            if let Some(changed) = file.changed {
                attributes.mtime = attributes.mtime.max(changed);
                attributes.ctime = attributes.ctime.max(changed);
            }
        }
    }

    /// Somebody set the time, so held data must not change it again.
    pub(super) fn discard_change_time(&self, key: Key) {
        if let Some(file) = self.held.lock().files.get_mut(&key) {
            file.changed = None;
        }
    }

    /// Removes held data from `size` on.
    pub(super) fn truncate(&self, key: Key, size: u64) {
        let mut held = self.held.lock();
        if let Some(file) = held.files.get_mut(&key) {
            let cleared = file.clear(size, u64::MAX);
            held.bytes -= cleared;
        }
    }

    /// Whether data of a file is held.
    pub(super) fn holds(&self, key: Key) -> bool {
        self.held.lock().files.contains_key(&key)
    }

    /// Writes the held data of a file. Data that cannot be written stays. The file gets the mtime
    /// that clients were shown before, because COMMIT changes no data.
    pub(super) fn flush(&self, key: Key, fd: &OwnedFd) -> rustix::io::Result<()> {
        let mut held = self.held.lock();
        let Some(file) = held.files.get_mut(&key) else {
            return Ok(());
        };
        let modified = match file.changed {
            Some(at) => rustix::fs::Timespec {
                tv_sec: at.seconds.into(),
                tv_nsec: at.nanoseconds.into(),
            },
            None => {
                let stat = rustix::fs::fstat(fd)?;
                rustix::fs::Timespec {
                    tv_sec: stat.st_mtime,
                    tv_nsec: stat.st_mtime_nsec as _,
                }
            }
        };
        let shown = match file.changed {
            Some(_) => modified,
            None => rustix::fs::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
        };
        let mut written = 0;
        let mut result = Ok(());
        while let Some(extent) = file.extents.first_entry() {
            let mut done = 0;
            while done < extent.get().len() {
                match rustix::io::pwrite(fd, &extent.get()[done..], extent.key() + done as u64) {
                    Ok(0) => result = Err(rustix::io::Errno::IO),
                    Ok(n) => done += n,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => result = Err(e),
                }
                if result.is_err() {
                    break;
                }
            }
            if result.is_err() {
                break;
            }
            written += extent.remove().len();
        }
        if written > 0 && result.is_ok() {
            result = set_modified(fd, modified, shown);
        }
        if file.extents.is_empty() {
            held.files.remove(&key);
        }
        held.bytes -= written;
        result
    }

    /// Drops all data, as a restart does.
    pub(super) fn forget_all(&self) {
        *self.held.lock() = Held::default();
    }

    /// Drops the held data of a file that is gone.
    pub(super) fn forget(&self, key: Key) {
        let mut held = self.held.lock();
        if let Some(file) = held.files.remove(&key) {
            held.bytes -= file.extents.values().map(Vec::len).sum::<usize>();
        }
    }
}

fn set_modified(
    fd: &OwnedFd,
    at: rustix::fs::Timespec,
    shown: rustix::fs::Timespec,
) -> rustix::io::Result<()> {
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: at,
    };
    // A ctime that clients were shown must not go back: the file system's clock may be a tick
    // behind the clock of `changed`.
    for _ in 0..100 {
        rustix::fs::futimens(fd, &times)?;
        let stat = rustix::fs::fstat(fd)?;
        let stamped = (stat.st_ctime, stat.st_ctime_nsec as _);
        if stamped >= (shown.tv_sec, shown.tv_nsec) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

/// The current time from a fine clock, so that two changes have different times.
fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Time {
        seconds: now.tv_sec as u32,
        nanoseconds: now.tv_nsec as u32,
    }
}
