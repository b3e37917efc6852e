//! What is timed: ordinary system calls and programs in a mounted directory. `daily` has the rows that
//! users feel as a whole: databases, builds, version control.

mod daily;
mod row;

use crate::bound::Bound;
use crate::scale::Scale;
use anyhow::{Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use daily::archives;
pub(crate) use row::{Unit, Workload};

use row::{Done, pages, program, row, timed};

/// Every row; those of `daily` in three sizes with `growth`.
pub(crate) fn all(growth: bool) -> Vec<Workload> {
    use Unit::{MegabytesPerSecond as MB, PerSecond as OPS};
    // At most 1.3 times the time.
    const TIME: f64 = 1.0 / 1.3;
    let read_bound = Bound::Stream { target: 0.8 };
    let write_bound = Bound::Stream { target: 0.7 };
    let warm = Bound::Fuse { target: 0.9 };
    let page = Bound::PageTrip { target: TIME };
    let requester = Bound::Requester { target: 0.6 };
    let trips = |trips| Bound::Trips {
        trips,
        target: TIME,
    };
    let none = Bound::None;
    let mut rows = vec![
        row("read-1m-cold", MB, true, read_bound, |d, s| {
            read(d, s, 1 << 20)
        }),
        row("read-1m-warm", MB, false, warm, |d, s| {
            read_again(d, s, 1 << 20)
        }),
        row("read-128k-cold", MB, true, read_bound, |d, s| {
            read(d, s, 128 << 10)
        }),
        row("read-128k-warm", MB, false, warm, |d, s| {
            read_again(d, s, 128 << 10)
        }),
        row("write-1m-fsync", MB, true, write_bound, |d, s| {
            write(d, s, 1 << 20)
        }),
        row("write-128k-fsync", MB, true, write_bound, |d, s| {
            write(d, s, 128 << 10)
        }),
        row("randread-4k-d1", OPS, true, page, |d, s| {
            random_read(d, s, 1)
        }),
        row("randread-4k-d32", OPS, true, requester, |d, s| {
            random_read(d, s, 32)
        }),
        row("randwrite-4k-fsync", OPS, true, none, random_write),
        // LOOKUP.
        row("stat-cold", OPS, true, trips(1.0), stat),
        row("stat-warm", OPS, false, warm, stat),
        // GETATTR.
        row("open", OPS, false, trips(1.0), open),
        // LOOKUP (the kernel's, before each O_CREAT), CREATE, WRITE.
        row("create", OPS, true, trips(3.0), create),
        // REMOVE.
        row("unlink", OPS, false, trips(1.0), unlink),
        // READDIRPLUS of 64 KiB holds more than 200 entries.
        row("list", OPS, true, trips(1.0 / 200.0), list),
        row("untar", OPS, true, none, untar),
        row("grep-cold", OPS, true, none, grep),
        row("mixed-8", OPS, true, none, mixed),
    ];
    rows.extend(daily::rows(growth));
    rows
}

fn read(dir: &Path, scale: &Scale, size: usize) -> Result<Done> {
    let mut file = File::open(dir.join("large"))?;
    let mut piece = vec![0; size];
    timed(|| {
        let mut total = 0;
        loop {
            match file.read(&mut piece)? {
                0 => break,
                n => total += n as u64,
            }
        }
        ensure!(
            total == scale.large,
            "read {total} bytes of {}",
            scale.large
        );
        Ok(total)
    })
}

/// Several times: once is over too soon to be measured.
fn read_again(dir: &Path, scale: &Scale, size: usize) -> Result<Done> {
    const TIMES: u64 = 5;
    timed(|| {
        for _ in 0..TIMES {
            read(dir, scale, size)?;
        }
        Ok(TIMES * scale.large)
    })
}

fn write(dir: &Path, scale: &Scale, size: usize) -> Result<Done> {
    let path = dir.join("scratch/written");
    let piece = vec![0x5a; size];
    let _ = fs::remove_file(&path);
    let done = timed(|| {
        let mut file = File::create(&path)?;
        for _ in 0..scale.large / size as u64 {
            file.write_all(&piece)?;
        }
        file.sync_all()?;
        Ok(scale.large)
    })?;
    fs::remove_file(&path)?;
    Ok(done)
}

fn random_read(dir: &Path, scale: &Scale, depth: usize) -> Result<Done> {
    let file = File::open(dir.join("large"))?;
    // SAFETY: advice on a descriptor that is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let all: Vec<u64> = pages(
        scale.reads * if depth > 1 { 2 } else { 1 },
        scale.large / 4096,
    )
    .collect();
    let share = all.len() / depth;
    timed(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = all
                .chunks(share)
                .map(|mine| {
                    let file = &file;
                    scope.spawn(move || -> Result<()> {
                        let mut page = vec![0; 4096];
                        for &at in mine {
                            file.read_exact_at(&mut page, at)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|t| t.join().expect("a reader does not panic"))
        })?;
        Ok(all.len() as u64)
    })
}

fn random_write(dir: &Path, scale: &Scale) -> Result<Done> {
    let path = dir.join("scratch/random");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    file.set_len(scale.large)?;
    let page = [0xa5; 4096];
    let done = timed(|| {
        for at in pages(scale.writes, scale.large / 4096) {
            file.write_all_at(&page, at)?;
        }
        file.sync_all()?;
        Ok(scale.writes as u64)
    })?;
    drop(file);
    fs::remove_file(&path)?;
    Ok(done)
}

fn stat(dir: &Path, scale: &Scale) -> Result<Done> {
    let dir = dir.join("files");
    timed(|| {
        for n in 0..scale.files {
            fs::symlink_metadata(dir.join(format!("f{n}")))?;
        }
        Ok(scale.files as u64)
    })
}

/// One file again and again.
fn open(dir: &Path, scale: &Scale) -> Result<Done> {
    let path = dir.join("large");
    timed(|| {
        for _ in 0..scale.files {
            File::open(&path)?;
        }
        Ok(scale.files as u64)
    })
}

fn create(dir: &Path, scale: &Scale) -> Result<Done> {
    let dir = dir.join("scratch/created");
    fs::create_dir(&dir)?;
    timed(|| {
        for n in 0..scale.files {
            fs::write(dir.join(format!("f{n}")), [b'y'; 1000])?;
        }
        Ok(scale.files as u64)
    })
}

fn unlink(dir: &Path, scale: &Scale) -> Result<Done> {
    let dir = dir.join("scratch/created");
    let done = timed(|| {
        for n in 0..scale.files {
            fs::remove_file(dir.join(format!("f{n}")))?;
        }
        Ok(scale.files as u64)
    })?;
    fs::remove_dir(&dir)?;
    Ok(done)
}

fn list(dir: &Path, scale: &Scale) -> Result<Done> {
    timed(|| {
        let mut count = 0;
        for entry in fs::read_dir(dir.join("entries"))? {
            entry?.metadata()?;
            count += 1;
        }
        ensure!(count == scale.entries as u64, "{count} entries listed");
        Ok(count)
    })
}

fn untar(dir: &Path, scale: &Scale) -> Result<Done> {
    let done = timed(|| {
        program(dir, "tar", &["-xf", "source.tar", "-C", "scratch"])?;
        Ok(scale.source as u64)
    });
    // Also what a tar that failed left: the next target starts without.
    let removed = fs::remove_dir_all(dir.join("scratch/source"));
    let done = done?;
    removed?;
    Ok(done)
}

fn grep(dir: &Path, scale: &Scale) -> Result<Done> {
    timed(|| {
        program(dir, "grep", &["-rlq", "function_7()", "source"])?;
        program(dir, "grep", &["-rc", "function_", "source"])?;
        Ok(scale.source as u64)
    })
}

fn mixed(dir: &Path, scale: &Scale) -> Result<Done> {
    let total = AtomicU64::new(0);
    let rounds = scale.files / 50;
    timed(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let total = &total;
                    scope.spawn(move || -> Result<()> {
                        let large = File::open(dir.join("large"))?;
                        let own = dir.join(format!("scratch/mixed-{thread}"));
                        fs::create_dir(&own)?;
                        let mut piece = vec![0; 64 << 10];
                        for (round, at) in pages(rounds, scale.large / 4096 - 16).enumerate() {
                            large.read_exact_at(&mut piece, at)?;
                            let path = own.join(format!("f{round}"));
                            fs::write(&path, &piece[..5000])?;
                            fs::metadata(dir.join(format!("files/f{}", round * 8 + thread)))?;
                            fs::read(&path)?;
                            if round % 2 == 0 {
                                fs::remove_file(&path)?;
                            }
                            total.fetch_add(5, Ordering::Relaxed);
                        }
                        fs::remove_dir_all(&own)?;
                        Ok(())
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|t| t.join().expect("a worker does not panic"))
        })?;
        Ok(total.load(Ordering::Relaxed))
    })
}
