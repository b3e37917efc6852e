//! Shorter functions for the crate `nfs3_client`.

use nfs3_client::tokio::{TokioConnector, TokioIo};
use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_types::xdr_codec::Opaque;
use nfsrdma_test_support::Responder;
use tokio::net::TcpStream;

pub type Client = Nfs3Connection<TokioIo<TcpStream>>;

pub fn credential(uid: u32, gid: u32, gids: &[u32]) -> opaque_auth<'static> {
    opaque_auth::auth_unix(&auth_unix {
        stamp: 1,
        machinename: Opaque::borrowed(b"test"),
        uid,
        gid,
        gids: gids.to_vec(),
    })
}

pub async fn connect_as(responder: &Responder, who: opaque_auth<'static>) -> Client {
    Nfs3ConnectionBuilder::new(TokioConnector, "127.0.0.1", "/export")
        .portmapper_port(responder.portmap)
        .connect_from_privileged_port(false)
        .credential(who)
        .mount()
        .await
        .unwrap()
}

/// Connects as the user who runs the test.
pub async fn connect(responder: &Responder) -> Client {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    connect_as(responder, credential(uid, gid, &[])).await
}

pub fn at(dir: &nfs_fh3, name: &str) -> diropargs3<'static> {
    diropargs3 {
        dir: dir.clone(),
        name: filename3(Opaque::owned(name.as_bytes().to_vec())),
    }
}

pub fn with_mode(mode: u32) -> sattr3 {
    sattr3 {
        mode: Nfs3Option::Some(mode),
        ..Default::default()
    }
}

pub async fn create(client: &mut Client, dir: &nfs_fh3, name: &str, mode: u32) -> nfs_fh3 {
    let args = CREATE3args {
        where_: at(dir, name),
        how: createhow3::GUARDED(with_mode(mode)),
    };
    client.create(&args).await.unwrap().unwrap().obj.unwrap()
}

pub async fn mkdir(client: &mut Client, dir: &nfs_fh3, name: &str) -> nfs_fh3 {
    let args = MKDIR3args {
        where_: at(dir, name),
        attributes: with_mode(0o755),
    };
    client.mkdir(&args).await.unwrap().unwrap().obj.unwrap()
}

pub async fn lookup(client: &mut Client, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
    let args = LOOKUP3args {
        what: at(dir, name),
    };
    match client.lookup(&args).await.unwrap() {
        Nfs3Result::Ok(ok) => Ok(ok.object),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub async fn getattr(client: &mut Client, object: &nfs_fh3) -> Result<fattr3, nfsstat3> {
    let args = GETATTR3args {
        object: object.clone(),
    };
    match client.getattr(&args).await.unwrap() {
        Nfs3Result::Ok(ok) => Ok(ok.obj_attributes),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub async fn write(
    client: &mut Client,
    file: &nfs_fh3,
    offset: u64,
    data: &[u8],
    stable: stable_how,
) -> Result<WRITE3resok, nfsstat3> {
    let args = WRITE3args {
        file: file.clone(),
        offset,
        count: data.len() as u32,
        stable,
        data: Opaque::borrowed(data),
    };
    match client.write(&args).await.unwrap() {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub async fn read(
    client: &mut Client,
    file: &nfs_fh3,
    offset: u64,
    count: u32,
) -> Result<(Vec<u8>, bool), nfsstat3> {
    let args = READ3args {
        file: file.clone(),
        offset,
        count,
    };
    match client.read(&args).await.unwrap() {
        Nfs3Result::Ok(ok) => Ok((ok.data.as_ref().to_vec(), ok.eof)),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// Lists the whole directory by READDIR.
pub async fn names(client: &mut Client, dir: &nfs_fh3, count: u32) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    let mut args = READDIR3args {
        dir: dir.clone(),
        cookie: 0,
        cookieverf: cookieverf3::default(),
        count,
    };
    loop {
        let ok = client.readdir(&args).await.unwrap().unwrap();
        args.cookieverf = ok.cookieverf;
        for entry in ok.reply.entries.into_inner() {
            args.cookie = entry.cookie;
            let name = String::from_utf8(entry.name.0.as_ref().to_vec()).unwrap();
            all.push((name, entry.fileid));
        }
        if ok.reply.eof {
            return all;
        }
    }
}
