//! Data that tests write, read and compare.

use nfsrdma_nfs3::{Cred, Credential, Nfs3};
use nfsrdma_nfs3::{Mounted, NfsResult, WriteDone};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut, Pool};
use nfsrdma_xdr::nfs3::{FileHandle, Stable};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub fn cred() -> Cred {
    Arc::new(Credential {
        uid: 1000,
        gid: 100,
        groups: vec![1, 2, 3],
    })
}

/// Bytes that depend on their position.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

pub fn source(pool: &Pool, bytes: &[u8], piece: usize) -> Segs<Buf> {
    let pieces = bytes.chunks(piece).map(|piece| {
        let mut buf = pool.alloc(piece.len()).unwrap();
        buf.copy_from_slice(piece);
        buf.freeze()
    });
    pieces.collect()
}

pub fn sink(pool: &Pool, len: usize, piece: usize) -> Segs<BufMut> {
    let mut left = len;
    let mut bufs = Segs::new();
    while left > 0 {
        bufs.push(pool.alloc(left.min(piece)).unwrap());
        left -= left.min(piece);
    }
    bufs
}

pub async fn try_to_write(
    mounted: &Mounted,
    pool: &Pool,
    file: &FileHandle,
    bytes: &[u8],
    piece: usize,
) -> NfsResult<WriteDone> {
    let (cred, data) = (cred(), source(pool, bytes, piece));
    let written = mounted.client.write(&cred, file, 0, data, Stable::FileSync);
    written.await
}

pub async fn write(mounted: &Mounted, pool: &Pool, file: &FileHandle, bytes: &[u8], piece: usize) {
    let done = try_to_write(mounted, pool, file, bytes, piece).await;
    assert_eq!(done.unwrap().count as usize, bytes.len());
}

pub async fn read(
    mounted: &Mounted,
    pool: &Pool,
    file: &FileHandle,
    len: usize,
    piece: usize,
) -> Vec<u8> {
    let done = mounted
        .client
        .read(&cred(), file, 0, sink(pool, len, piece))
        .await
        .unwrap();
    let all: Vec<u8> = done.data.iter().flat_map(|b| b.to_vec()).collect();
    assert_eq!(all.len(), len, "every sink comes back");
    all[..done.count as usize].to_vec()
}

/// Reads the file `f` of [`pattern`] 1 from many callers at once: `len(i)` bytes from byte `i` on.
pub async fn read_at_once(
    (mounted, pool): (&Mounted, &Pool),
    f: FileHandle,
    callers: usize,
    len: fn(usize) -> usize,
) {
    let mut reading = tokio::task::JoinSet::new();
    for i in 0..callers {
        let (client, into) = (mounted.client.clone(), sink(pool, len(i), 4096));
        reading.spawn(async move {
            let done = client.read(&cred(), &f, i as u64, into).await.unwrap();
            let all: Vec<u8> = done.data.iter().flat_map(|b| b.to_vec()).collect();
            assert!(all == pattern(i + len(i), 1)[i..], "from {i}");
        });
    }
    while let Some(read) = reading.join_next().await {
        read.unwrap();
    }
}

/// Waits for a condition; the time limit only ends a broken test.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Checks that no registration is open, and that all memory is returned when the client is gone.
pub async fn leaves_nothing(mounted: Mounted, pool: Pool) {
    let client = mounted.client.clone();
    until("no registrations", || {
        client
            .stats()
            .connections
            .iter()
            .all(|c| c.open_registrations == 0)
    })
    .await;
    mounted.unmount().await;
    drop((mounted, client));
    until("all memory is back", || {
        pool.free_bytes() == pool.capacity()
    })
    .await;
}
