//! What programs get: the measurements through the mount, by ordinary system calls.

use super::place::{Place, Stop};
use super::timing::Times;
use rustix::fs::{Advice, fadvise, statvfs};
use std::fs::{File, OpenOptions, create_dir, read_dir, remove_file};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The size of one read(2) or write(2) of large data.
pub(super) const PIECE: usize = 1 << 20;
/// The size of a page, and of a small file.
pub(super) const PAGE: usize = 4096;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// The longest time of a measurement.
    pub(super) time: Duration,
    pub(super) large_bytes: u64,
    pub(super) small: usize,
}

impl Extent {
    pub(super) const FULL: Extent = Extent {
        time: Duration::from_secs(8),
        large_bytes: 1 << 30,
        small: 2000,
    };
    pub(super) const QUICK: Extent = Extent {
        time: Duration::from_secs(1),
        large_bytes: 64 << 20,
        small: 200,
    };
}

/// What was measured through the mount.
#[derive(Debug, Default)]
pub(super) struct Through {
    pub(super) write_mb_s: f64,
    pub(super) read_mb_s: f64,
    pub(super) read_4k: Times,
    pub(super) sync_4k: Times,
    pub(super) create: Times,
    pub(super) open: Times,
    pub(super) list_per_s: f64,
    pub(super) remove: Times,
}

/// Data that nobody compresses.
pub(super) fn fill(data: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for word in data.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

fn timed<T>(times: &mut Times, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    let done = work()?;
    times.add(begun.elapsed());
    Ok(done)
}

/// Drops the clean pages of a file from the kernel's cache.
fn drop_pages(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Measures large data and single pages on one file.
pub(super) fn large(
    place: &Place,
    extent: Extent,
    stop: &Stop,
    to: &mut Through,
) -> io::Result<()> {
    let path = place.file("large");
    let room = statvfs(&place.dir)?;
    let room = room.f_bavail.saturating_mul(room.f_frsize) / 4;
    let most = extent.large_bytes.min(room).max(PIECE as u64);
    let mut piece = vec![0; PIECE];
    fill(&mut piece);
    let mut file = File::create_new(&path)?;
    let (term, begun, mut bytes) = (stop.within(extent.time), Instant::now(), 0u64);
    while bytes < most && !term.is_over() {
        file.write_all(&piece)?;
        bytes += PIECE as u64;
    }
    file.sync_all()?;
    to.write_mb_s = bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
    drop_pages(&file)?;
    drop(file);
    let mut file = File::open(&path)?;
    let (term, begun, mut read) = (stop.within(extent.time), Instant::now(), 0u64);
    while !term.is_over() {
        match file.read(&mut piece)? {
            0 => break,
            count => read += count as u64,
        }
    }
    to.read_mb_s = read as f64 / 1e6 / begun.elapsed().as_secs_f64();
    pages(&file, bytes, extent, stop, to)?;
    synced(&path, extent, stop, to)
}

/// Reads single pages, each once, that the kernel does not have.
fn pages(file: &File, bytes: u64, extent: Extent, stop: &Stop, to: &mut Through) -> io::Result<()> {
    drop_pages(file)?;
    fadvise(file, 0, None, Advice::Random)?;
    let count = bytes / PAGE as u64;
    // An odd step visits each of a power of two of pages once; others about as well.
    let step = (count / 2 + count / 7 + 1) | 1;
    let mut page = [0; PAGE];
    let term = stop.within(extent.time / 2);
    for number in 0..count.min(extent.small as u64 * 4) {
        if term.is_over() {
            break;
        }
        let at = number.wrapping_mul(step) % count * PAGE as u64;
        timed(&mut to.read_4k, || file.read_exact_at(&mut page, at))?;
    }
    Ok(())
}

/// Writes single pages, and waits for each to be in stable storage.
fn synced(path: &Path, extent: Extent, stop: &Stop, to: &mut Through) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut page = [0; PAGE];
    fill(&mut page);
    let term = stop.within(extent.time / 2);
    for number in 0..extent.small as u64 {
        if term.is_over() {
            break;
        }
        timed(&mut to.sync_4k, || {
            file.write_all_at(&page, number % 16 * PAGE as u64)?;
            file.sync_data()
        })?;
    }
    Ok(())
}

/// Measures small files: they are made, opened, listed and removed.
pub(super) fn small(
    place: &Place,
    extent: Extent,
    stop: &Stop,
    to: &mut Through,
) -> io::Result<()> {
    let dir = place.file("small");
    create_dir(&dir)?;
    let mut data = [0; PAGE];
    fill(&mut data);
    let path = |number: usize| dir.join(format!("file-{number}"));
    let term = stop.within(extent.time / 2);
    let mut made = 0;
    while made < extent.small && !term.is_over() {
        // close(2) waits for stable storage, as between machines it has to.
        timed(&mut to.create, || {
            File::create_new(path(made))?.write_all(&data)
        })?;
        made += 1;
    }
    let term = stop.within(extent.time / 2);
    for number in 0..made {
        if term.is_over() {
            break;
        }
        timed(&mut to.open, || File::open(path(number)))?;
    }
    let begun = Instant::now();
    let mut listed = 0;
    for entry in read_dir(&dir)? {
        entry?.metadata()?;
        listed += 1;
    }
    to.list_per_s = f64::from(listed) / begun.elapsed().as_secs_f64();
    let term = stop.within(extent.time);
    for number in 0..made {
        if term.is_over() {
            break;
        }
        timed(&mut to.remove, || remove_file(path(number)))?;
    }
    Ok(())
}
