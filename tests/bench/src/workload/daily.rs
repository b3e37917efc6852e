//! Rows that users feel as a whole. Each does a number of operations; with `growth` each stands in the table three
//! times, with a hundredth, a tenth and all of them: a rate that falls is a cost that grows with what is cached,
//! dirty or in one directory.
//!
//! Who waits for stable storage: `scattered-512` once at its end, `append-4` each process at its end, `commit-8k` at
//! every operation, everything else at each close(2) as far as the file system does that by itself. NFS with
//! close-to-open consistency does (RFC 1813 section 4.11 lets a client choose); a local file system and sshfs do not,
//! and libnfs' FUSE client writes stably at each write.

use super::row::{Done, Unit, Workload, pages, program, row, timed};
use crate::bound::Bound;
use crate::scale::Scale;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A row's work: a directory of its own, which does not exist yet, the exported root, and how many operations.
type Work = fn(&Path, &Path, usize) -> Result<Done>;

/// Name, work, and operations at full size.
const ROWS: [(&str, Work, usize); 10] = [
    ("scattered-512", scattered, 24_000),
    ("append-4", append, 20_000),
    ("commit-8k", commit, 1_000),
    ("postmark", postmark, 5_000),
    ("untar-tree", untar_tree, 10_000),
    ("find", find, 10_000),
    ("ls-l-expired", ls_expired, 20_000),
    ("rm-rf", remove_tree, 10_000),
    ("git-clone", git_clone, 1),
    ("dbench-4", dbench, 4),
];

pub(super) fn rows(growth: bool) -> Vec<Workload> {
    let mut rows = Vec::new();
    for (name, work, full) in ROWS {
        // These have no size.
        let sizes: &[usize] = match full > 100 && growth {
            true => &[100, 10, 1],
            false => &[1],
        };
        for &part in sizes {
            let title = match growth && full > 100 {
                true => format!("{name}@{}%", 100 / part),
                false => name.to_owned(),
            };
            let run = move |root: &Path, scale: &Scale| {
                let operations = (full / part / scale.shrink).max(1);
                let own = root.join("scratch").join(format!("daily-{name}"));
                let _ = fs::remove_dir_all(&own);
                fs::create_dir(&own)?;
                let done = work(&own, root, operations);
                let removed = fs::remove_dir_all(&own);
                let done = done?;
                removed?;
                Ok(done)
            };
            rows.push(row(&title, Unit::PerSecond, true, Bound::None, run));
        }
    }
    rows
}

/// Writes of 512 bytes all over a large file, then fsync.
fn scattered(own: &Path, _: &Path, writes: usize) -> Result<Done> {
    let file = File::create(own.join("file"))?;
    file.set_len(1 << 30)?;
    timed(|| {
        for at in pages(writes, (1 << 30) / 4096) {
            file.write_all_at(&[0x5a; 512], at)?;
        }
        file.sync_all()?;
        Ok(writes as u64)
    })
}

/// Four processes append records to one file each by O_APPEND, and to one they share.
fn append(own: &Path, _: &Path, records: usize) -> Result<Done> {
    let each = records / 4;
    let shared = own.join("shared");
    let script = format!(
        "import os,sys\n\
         fds=[os.open(p,os.O_WRONLY|os.O_APPEND|os.O_CREAT,0o644) for p in sys.argv[1:]]\n\
         for n in range({each}):\n os.write(fds[n%2],b'%099d\\n'%n)\n\
         for fd in fds: os.fsync(fd)\n"
    );
    let done = timed(|| {
        let children: Vec<_> = (0..4)
            .map(|n| {
                Command::new("python3")
                    .arg("-c")
                    .arg(&script)
                    .arg(own.join(format!("own-{n}")))
                    .arg(&shared)
                    .spawn()
                    .context("running python3")
            })
            .collect::<Result<_>>()?;
        for mut child in children {
            ensure!(child.wait()?.success(), "an appending process failed");
        }
        Ok(4 * each as u64)
    })?;
    let lines = fs::read(&shared)?.iter().filter(|&&b| b == b'\n').count();
    ensure!(
        lines == 4 * (each / 2),
        "{lines} records in the shared file"
    );
    Ok(done)
}

/// A database's commits: 8 KiB appended to a log, fsync, one page of a table written.
fn commit(own: &Path, _: &Path, commits: usize) -> Result<Done> {
    let mut log = File::create(own.join("log"))?;
    let table = File::create(own.join("table"))?;
    table.set_len(256 << 20)?;
    timed(|| {
        for at in pages(commits, (256 << 20) / 4096) {
            log.write_all(&[0x11; 8192])?;
            log.sync_data()?;
            table.write_all_at(&[0x22; 4096], at)?;
        }
        table.sync_all()?;
        Ok(commits as u64)
    })
}

/// Small files made, read, appended to and removed, as a mail spool's are.
fn postmark(own: &Path, _: &Path, transactions: usize) -> Result<Done> {
    let files = (transactions / 2).max(4);
    let path = |n: usize| own.join(format!("s{}/m{n}", n % 10));
    for n in 0..10 {
        fs::create_dir(own.join(format!("s{n}")))?;
    }
    timed(|| {
        for n in 0..files {
            fs::write(path(n), vec![b'm'; 500 + n * 7919 % 9500])?;
        }
        let (mut first, mut next) = (0, files);
        for n in 0..transactions {
            let known = path(first + n * 104_729 % (next - first));
            match n % 4 {
                0 => drop(fs::read(known)?),
                1 => OpenOptions::new()
                    .append(true)
                    .open(known)?
                    .write_all(&[b'a'; 1000])?,
                2 => {
                    fs::write(path(next), vec![b'n'; 500 + n * 7919 % 9500])?;
                    next += 1;
                }
                _ => {
                    fs::remove_file(path(first))?;
                    first += 1;
                }
            }
        }
        for n in first..next {
            fs::remove_file(path(n))?;
        }
        Ok((2 * files + transactions) as u64)
    })
}

/// An archive of `files` small files, 50 to a directory, made beside the data once.
fn archive(root: &Path, files: usize) -> Result<PathBuf> {
    let archive = root.join(format!("tree-{files}.tar"));
    ensure!(
        archive.exists(),
        "{} is missing: the data were prepared for other sizes",
        archive.display()
    );
    Ok(archive)
}

/// The sizes of the archives that [`archive`] is asked for.
pub(crate) fn archives(shrink: usize) -> impl Iterator<Item = usize> {
    [100, 10, 1]
        .map(|part| (10_000 / part / shrink).max(1))
        .into_iter()
}

fn unpack(own: &Path, root: &Path, files: usize) -> Result<()> {
    let archive = archive(root, files)?;
    program(own, "tar", &["-xf", &archive.to_string_lossy()])
}

fn untar_tree(own: &Path, root: &Path, files: usize) -> Result<Done> {
    timed(|| unpack(own, root, files).map(|()| files as u64))
}

fn find(own: &Path, root: &Path, files: usize) -> Result<Done> {
    unpack(own, root, files)?;
    timed(|| {
        program(own, "find", &[".", "-type", "f", "-size", "+1M"])?;
        Ok(files as u64)
    })
}

fn remove_tree(own: &Path, root: &Path, files: usize) -> Result<Done> {
    unpack(own, root, files)?;
    timed(|| {
        program(own, "rm", &["-rf", "tree"])?;
        Ok(files as u64)
    })
}

/// `ls -l` again, when the names are still known and the attributes (of files, believed for three seconds at least by
/// default) are not.
fn ls_expired(own: &Path, _: &Path, entries: usize) -> Result<Done> {
    const ATTRIBUTES_EXPIRE: Duration = Duration::from_secs(4);
    for n in 0..entries {
        File::create(own.join(format!("entry-{n}")))?;
    }
    program(own, "ls", &["-l"])?;
    let listed = Instant::now();
    while listed.elapsed() < ATTRIBUTES_EXPIRE {
        std::thread::sleep(ATTRIBUTES_EXPIRE - listed.elapsed().min(ATTRIBUTES_EXPIRE));
    }
    timed(|| {
        program(own, "ls", &["-l"])?;
        Ok(entries as u64)
    })
}

/// A clone, and the state of its work tree.
fn git_clone(own: &Path, root: &Path, _: usize) -> Result<Done> {
    let from = root.join("repository.git");
    timed(|| {
        program(
            own,
            "git",
            &["clone", "-q", &from.to_string_lossy(), "clone"],
        )?;
        program(&own.join("clone"), "git", &["status", "--porcelain"])?;
        Ok(1)
    })
}

/// dbench's throughput in MB/s stands for operations.
fn dbench(own: &Path, _: &Path, clients: usize) -> Result<Done> {
    const SECONDS: f64 = 10.0;
    let output = Command::new("dbench")
        .args(["-t", "10", "-D"])
        .arg(own)
        .arg(clients.to_string())
        .output()
        .context("running dbench")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate: f64 = text
        .lines()
        .find_map(|line| {
            line.strip_prefix("Throughput ")?
                .split(' ')
                .next()?
                .parse()
                .ok()
        })
        .with_context(|| format!("dbench gave no throughput (status {})", output.status))?;
    Ok(Done {
        amount: (rate * SECONDS) as u64,
        seconds: SECONDS,
    })
}
