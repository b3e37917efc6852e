//! A file that is written in the root of the export and removed again (`--write`).

use super::patience::within;
use super::report::{Finding, Verdict};
use nfsrdma_nfs3::{CreateMode, Cred, Mounted, Nfs3, NfsError, NfsResult, Transport};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, Pool};
use nfsrdma_xdr::nfs3::{FileHandle, SetAttributes, Stable, Time, Verifier};
use std::time::SystemTime;

/// What the server said of the file.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) verifiers: Vec<Verifier>,
    /// The time of its last change, by the server's clock, and when that was by ours.
    pub(super) time: Time,
    pub(super) at: SystemTime,
}

/// Writes the file and removes it. The error is what is wrong.
pub(super) async fn write(mounted: &Mounted, cred: &Cred, pool: &Pool) -> Result<Written, Finding> {
    const CHECK: &str = "writes";
    let name = format!(".nfsrdma-doctor-{}", std::process::id());
    let (client, root) = (&mounted.client, &mounted.root);
    let new = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    let create = client.create(cred, root, name.as_bytes(), CreateMode::Exclusive, &new);
    let made = within(create).await.map_err(|error| Finding {
        remedy: Some("give an export in whose root this user may write".into()),
        verdict: Verdict::Skip,
        ..Finding::ok(CHECK, format!("no file can be made: {error}"))
    })?;
    let written = match made.object {
        Some(file) => fill(mounted, cred, pool, &file).await,
        None => Err(NfsError::PeerMisbehaved("CREATE gave no handle".into())),
    };
    // It is removed also if it could not be written.
    let removed = within(client.remove(cred, root, name.as_bytes())).await;
    match (written, removed) {
        (Ok(written), Ok(_)) => Ok(written),
        (Ok(_), Err(error)) => Err(Finding::warn(
            CHECK,
            format!("{name} could not be removed: {error}"),
            "remove it from the root of the export",
        )),
        (Err(error), _) => Err(Finding::fail(
            CHECK,
            format!("a file cannot be written: {error}"),
            "see the server's log",
        )),
    }
}

/// Data for a WRITE, if there is memory for them.
pub(super) fn some_bytes(pool: &Pool, length: usize) -> Option<Buf> {
    let mut buffer = pool.alloc(length)?;
    buffer.fill(0x5a);
    Some(buffer.freeze())
}

async fn fill(
    mounted: &Mounted,
    cred: &Cred,
    pool: &Pool,
    file: &FileHandle,
) -> NfsResult<Written> {
    let client = &mounted.client;
    let size = client.limits().wtmax as usize;
    let data = some_bytes(pool, size);
    let data = data.ok_or_else(|| NfsError::Local("no memory for a WRITE".into()))?;
    let mut verifiers = Vec::new();
    for _ in 0..3 {
        let data = Segs::from_iter([data.clone()]);
        let write = client.write(cred, file, 0, data, Stable::Unstable);
        verifiers.push(within(write).await?.verifier);
    }
    let (_, verifier) = within(client.commit(cred, file, 0, 0)).await?;
    verifiers.push(verifier);
    // Only this change is known to happen between two moments of ours.
    let size = SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    };
    within(client.setattr(cred, file, &size)).await?;
    let at = SystemTime::now();
    let attributes = within(client.getattr(cred, file)).await?;
    Ok(Written {
        verifiers,
        time: attributes.ctime,
        at,
    })
}
