//! Contents of files.

use crate::fill;
use crate::place::Place;
use crate::sys;
use crate::tree::ODD_SIZES;
use anyhow::{Context, Result, ensure};
use nfsrdma_test_support::Random;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

pub(crate) fn sizes(place: &Place) -> Result<()> {
    for &size in ODD_SIZES {
        let body = fill::bytes(place.seed ^ size as u64, size);
        let name = format!("size-{size}");
        fs::write(place.mounted.join(&name), &body)?;
        place
            .same_everywhere(&name, &body)
            .with_context(|| format!("written in one piece: {size}"))?;
        // The reverse: written at the server, and read in small pieces through the mount.
        if let Some(direct) = &place.direct {
            let name = format!("there-{size}");
            fs::write(direct.join(&name), &body)?;
            fill::expect_same(&place.mounted.join(&name), &body)
                .context("written at the server")?;
        }
        let name = format!("pieces-{size}");
        let mut file = File::create(place.mounted.join(&name))?;
        for piece in body.chunks(7777) {
            file.write_all(piece)?;
        }
        drop(file);
        place
            .same_everywhere(&name, &body)
            .context("written in pieces")?;
    }
    Ok(())
}

pub(crate) fn random_io(place: &Place) -> Result<()> {
    const MAX: usize = 3 << 20;
    let mut random = Random::new(place.seed);
    let path = place.mounted.join("file");
    let mut model: Vec<u8> = Vec::new();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    let mut piece = vec![0; 1 << 20];
    for step in 0..place.scaled(1500, 100) {
        let at = random.below(MAX);
        let len = match random.below(4) {
            0 => random.below(64),
            1 => random.below(5000),
            2 => random.below(70_000),
            _ => random.below(600_000),
        }
        .min(MAX - at);
        match random.below(10) {
            0..=3 => {
                let body = fill::bytes(random.number(), len);
                file.write_all_at(&body, at as u64)?;
                if model.len() < at + len && len > 0 {
                    model.resize(at + len, 0);
                }
                if len > 0 {
                    model[at..at + len].copy_from_slice(&body);
                }
            }
            4..=7 => {
                let mut got = 0;
                while got < len {
                    match file.read_at(&mut piece[got..len], (at + got) as u64)? {
                        0 => break,
                        n => got += n,
                    }
                }
                let end = (at + len).min(model.len());
                let expected = if at < end { &model[at..end] } else { &[][..] };
                fill::expect_equal(&path, &piece[..got], expected)
                    .with_context(|| format!("step {step}: {len} bytes at {at}"))?;
            }
            8 => {
                let size = random.below(MAX);
                file.set_len(size as u64)?;
                model.resize(size, 0);
            }
            _ => match random.below(3) {
                0 => file.sync_all()?,
                1 => {
                    drop(file);
                    if let Some(direct) = &place.direct {
                        fill::expect_same(&direct.join("file"), &model)
                            .with_context(|| format!("step {step}: at the server after close"))?;
                    }
                    file = OpenOptions::new().read(true).write(true).open(&path)?;
                }
                _ => ensure!(
                    file.metadata()?.len() == model.len() as u64,
                    "step {step}: size {} instead of {}",
                    file.metadata()?.len(),
                    model.len()
                ),
            },
        }
    }
    drop(file);
    place.same_everywhere("file", &model)
}

pub(crate) fn append(place: &Place) -> Result<()> {
    let path = place.mounted.join("log");
    let mut expected = Vec::new();
    let mut first = OpenOptions::new().append(true).create(true).open(&path)?;
    let mut second = OpenOptions::new().append(true).open(&path)?;
    for n in 0..place.scaled(2000, 50) {
        let line = format!("line {n} {}\n", "x".repeat(n % 200));
        let file = if n % 3 == 0 { &mut second } else { &mut first };
        file.write_all(line.as_bytes())?;
        expected.extend_from_slice(line.as_bytes());
    }
    drop((first, second));
    place.same_everywhere("log", &expected)
}

pub(crate) fn offsets(place: &Place) -> Result<()> {
    let path = place.mounted.join("sparse");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    let spots = [
        0u64,
        (1 << 31) - 3,
        (1 << 32) - 5,
        1 << 32,
        (1 << 32) + 4096,
        (5 << 30) + 123,
        (1 << 40) + 77,
    ];
    for &at in &spots {
        file.write_all_at(&fill::bytes(at, 10_000), at)
            .with_context(|| format!("writing at {at}"))?;
    }
    file.sync_all()?;
    let end = spots[6] + 10_000;
    ensure!(
        file.metadata()?.len() == end,
        "size {}",
        file.metadata()?.len()
    );
    ensure!(
        file.metadata()?.blocks() < 10_000,
        "the holes take no space"
    );
    for open in [file, File::open(&path)?] {
        for &at in &[spots[1], spots[5], spots[6]] {
            let mut got = vec![0; 10_000];
            open.read_exact_at(&mut got, at)?;
            fill::expect_equal(&path, &got, &fill::bytes(at, 10_000))?;
        }
        let mut hole = vec![1; 100_000];
        open.read_exact_at(&mut hole, 3 << 30)?;
        ensure!(hole.iter().all(|&b| b == 0), "a hole reads as zeros");
    }
    if let Some(direct) = &place.direct {
        let mut got = vec![0; 10_000];
        File::open(direct.join("sparse"))?.read_exact_at(&mut got, spots[6])?;
        fill::expect_equal(&path, &got, &fill::bytes(spots[6], 10_000)).context("at the server")?;
    }
    Ok(())
}

pub(crate) fn direct(place: &Place) -> Result<()> {
    let path = place.mounted.join("file");
    let size = 3 << 20;
    let body = fill::bytes(place.seed, size);
    fs::write(&path, &body)?;
    let uncached = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .context("opening with O_DIRECT")?;
    let mut buffer = sys::Aligned::new(size);
    uncached.read_exact_at(buffer.bytes(), 0)?;
    fill::expect_equal(&path, buffer.bytes(), &body).context("O_DIRECT read of cached data")?;
    // A descriptor that was opened before sees the data of O_DIRECT writes.
    let cached = OpenOptions::new().read(true).write(true).open(&path)?;
    let mut got = vec![0; 8192];
    cached.read_exact_at(&mut got, 4096)?;
    let mut expected = body.clone();
    let mut piece = sys::Aligned::new(8192);
    piece.bytes().copy_from_slice(&fill::bytes(99, 8192));
    uncached.write_all_at(piece.bytes(), 4096)?;
    expected[4096..12288].copy_from_slice(piece.bytes());
    cached.read_exact_at(&mut got, 4096)?;
    fill::expect_equal(&path, &got, &expected[4096..12288])
        .context("cached read after O_DIRECT write")?;
    // An O_DIRECT read sees data that is written but not flushed.
    cached.write_all_at(&[7; 5000], 1_000_000)?;
    expected[1_000_000..1_005_000].fill(7);
    uncached.read_exact_at(buffer.bytes(), 0)?;
    fill::expect_equal(&path, buffer.bytes(), &expected)
        .context("O_DIRECT read of unflushed data")?;
    drop((cached, uncached));
    place.same_everywhere("file", &expected)
}

pub(crate) fn mmap(place: &Place) -> Result<()> {
    let path = place.mounted.join("file");
    let mut expected = fill::bytes(5, 1_000_000);
    fs::write(&path, &expected)?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    {
        let mut private = sys::Mapping::new(&file, expected.len(), false)?;
        fill::expect_equal(&path, private.bytes(), &expected)?;
        private.bytes()[10..20].fill(1);
    }
    fill::expect_same(&path, &expected).context("a private mapping changes nothing")?;
    {
        let mut shared = sys::Mapping::new(&file, expected.len(), true)?;
        shared.bytes()[12_345..23_456].fill(9);
        expected[12_345..23_456].fill(9);
        shared.sync()?;
        fill::expect_same(&path, &expected).context("read after msync")?;
        shared.bytes()[999_999] = 8;
        expected[999_999] = 8;
    }
    file.sync_all()?;
    drop(file);
    place.same_everywhere("file", &expected)
}

pub(crate) fn durable(place: &Place) -> Result<()> {
    let Some(direct) = &place.direct else {
        return Err(sys::Skipped("the server's directory cannot be seen".into()).into());
    };
    let body = fill::bytes(8, 2_500_000);
    let path = place.mounted.join("fsync");
    let mut file = File::create(&path)?;
    file.write_all(&body)?;
    file.sync_all()?;
    fill::expect_same(&direct.join("fsync"), &body).context("after fsync")?;
    file.write_all(b"tail")?;
    file.sync_data()?;
    fill::expect_same(&direct.join("fsync"), &[&body[..], b"tail"].concat())
        .context("after fdatasync")?;
    drop(file);
    fs::write(place.mounted.join("close"), &body)?;
    fill::expect_same(&direct.join("close"), &body).context("after close")?;
    // The close of a duplicated descriptor also counts as a close.
    let file = File::create(place.mounted.join("dup"))?;
    let second = file.try_clone()?;
    file.write_all_at(&body, 0)?;
    drop(second);
    fill::expect_same(&direct.join("dup"), &body).context("after close of a duplicate")?;
    drop(file);
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_SYNC)
        .open(place.mounted.join("osync"))?;
    opened.write_all_at(&body[..100_000], 0)?;
    fill::expect_same(&direct.join("osync"), &body[..100_000])
        .context("after a write with O_SYNC")?;
    Ok(())
}

pub(crate) fn bulk(place: &Place) -> Result<()> {
    let size = place.scaled(64 << 20, 4 << 20);
    let path = place.mounted.join("bulk");
    let body = fill::bytes(place.seed, size);
    let mut file = File::create(&path)?;
    for piece in body.chunks(1 << 20) {
        file.write_all(piece)?;
    }
    file.sync_all()?;
    drop(file);
    place.same_everywhere("bulk", &body)?;
    if let Some(direct) = &place.direct {
        let back = direct.join("back");
        fs::write(&back, &body)?;
        ensure!(
            fill::checksum(&place.mounted.join("back"))? == fill::checksum(&back)?,
            "a file written at the server, read through the mount"
        );
    }
    Ok(())
}
