//! Many threads at once.

use crate::fill;
use crate::place::Place;
use anyhow::{Context, Result, anyhow, ensure};
use nfsrdma_test_support::Random;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `work(n)` on `n` threads and returns the first error.
fn threads(n: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..n)
            .map(|i| {
                scope.spawn({
                    let work = &work;
                    move || work(i)
                })
            })
            .collect();
        all.into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            })
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(())
}

pub(crate) fn exclusive(place: &Place) -> Result<()> {
    for round in 0..place.scaled(100, 10) {
        let path = place.mounted.join(format!("lock-{round}"));
        let won = AtomicUsize::new(0);
        threads(4, |_| {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => won.fetch_add(1, Ordering::Relaxed),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => 0,
                Err(e) => return Err(e).context("an exclusive create"),
            };
            Ok(())
        })?;
        let won = won.into_inner();
        ensure!(won == 1, "{won} exclusive creates of one name succeeded");
    }
    Ok(())
}

pub(crate) fn writers(place: &Place) -> Result<()> {
    const PART: usize = 600_001;
    let path = place.mounted.join("shared");
    let parts: Vec<Vec<u8>> = (0..4).map(|n| fill::bytes(place.seed ^ n, PART)).collect();
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)?;
    threads(8, |n| {
        let mut random = Random::new(place.seed + n as u64);
        if n < 4 {
            let file = OpenOptions::new().write(true).open(&path)?;
            let mut at = 0;
            while at < PART {
                let len = (1 + random.below(100_000)).min(PART - at);
                file.write_all_at(&parts[n][at..at + len], (n * PART + at) as u64)?;
                at += len;
            }
        } else {
            // A reader sees the written data, or none yet (zeros, or the end), but no other bytes.
            let file = OpenOptions::new().read(true).open(&path)?;
            for _ in 0..place.scaled(100, 10) {
                let part = random.below(4);
                let at = random.below(PART - 5000);
                let mut got = vec![0; 5000];
                let n = file.read_at(&mut got, (part * PART + at) as u64)?;
                for (i, &byte) in got[..n].iter().enumerate() {
                    ensure!(
                        byte == 0 || byte == parts[part][at + i],
                        "byte {} of part {part} is {byte}",
                        at + i
                    );
                }
            }
        }
        Ok(())
    })?;
    place.same_everywhere("shared", &parts.concat())?;
    threads(8, |n| {
        for round in 0..place.scaled(40, 5) {
            let name = format!("own-{n}-{round}");
            let body = fill::bytes((n * 1000 + round) as u64, 1 + (round * 7919) % 150_000);
            fs::write(place.mounted.join(&name), &body)?;
            place.same_everywhere(&name, &body)?;
            if round % 2 == 0 {
                fs::remove_file(place.mounted.join(&name))?;
            }
        }
        Ok(())
    })
}

pub(crate) fn churn(place: &Place) -> Result<()> {
    let rounds = place.scaled(150, 20);
    threads(6, |n| {
        for round in 0..rounds {
            let a = place.mounted.join(format!("a-{n}-{round}"));
            let b = place.mounted.join(format!("b-{n}-{round}"));
            fs::write(&a, format!("{n} {round}"))
                .with_context(|| format!("writing {}", a.display()))?;
            fs::rename(&a, &b).with_context(|| format!("renaming {}", a.display()))?;
            ensure!(
                fs::metadata(&a).is_err(),
                "{} after its rename",
                a.display()
            );
            fill::expect_same(&b, format!("{n} {round}").as_bytes())?;
            if round % 3 == 0 {
                let d = place.mounted.join(format!("d-{n}-{round}"));
                fs::create_dir(&d)?;
                fs::rename(&b, d.join("inside"))?;
                fs::read_dir(&place.mounted)?.count();
                fs::remove_file(d.join("inside"))?;
                fs::remove_dir(&d)?;
            } else {
                fs::remove_file(&b)?;
            }
        }
        Ok(())
    })?;
    let left = fs::read_dir(&place.mounted)?.count();
    ensure!(left == 0, "{left} entries left");
    Ok(())
}
