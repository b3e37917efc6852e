//! NLM and NSM as a client on the network sees them: procedures over TCP and UDP,
//! callbacks, and the effect of a restart.

use crate::common::plain::{Client, Peer};
use crate::common::{Dirs, is_root, start, stop};
use nfsrdma_test_support::Responder;
use nfsrdma_xdr::codec::Text;
use nfsrdma_xdr::nfs3::FileHandle;
use nfsrdma_xdr::nlm4::*;
use nfsrdma_xdr::nsm;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpcbind::{Mapping, portmap, protocol};
use std::path::PathBuf;

/// A server with a file in an empty export.
struct Scene {
    dirs: Dirs,
    responder: Responder,
    control: PathBuf,
    file: FileHandle,
    root: FileHandle,
}

impl Scene {
    fn new(more: &[&str]) -> Self {
        let dirs = Dirs::new();
        let control = dirs.root().join("control");
        std::fs::write(dirs.export().join("file"), b"data").unwrap();
        let mut args = vec!["--lock-port", "0", "--control", control.to_str().unwrap()];
        args.extend(more);
        let responder = start(&dirs, &args);
        let client = Client::tcp(responder.nfs);
        let (root, file) = client.look_up("file");
        Scene {
            dirs,
            control,
            root,
            file,
            responder,
        }
    }

    fn tcp(&self) -> Client {
        Client::tcp(self.responder.lock)
    }

    fn command(&self, line: &str) -> String {
        crate::common::plain::command(&self.control, line)
    }

    fn lock(&self, svid: u32, offset: u64, length: u64) -> Lock<'static> {
        Lock {
            caller_name: Text(b"host"),
            file: self.file,
            owner: Text(b"oh"),
            svid,
            offset,
            length,
        }
    }

    fn args(&self, svid: u32, offset: u64, length: u64) -> LockArgs<'static> {
        LockArgs {
            cookie: Text(b"cookie"),
            block: false,
            exclusive: true,
            lock: self.lock(svid, offset, length),
            reclaim: false,
            state: 1,
        }
    }
}

fn status<P: for<'a> Procedure<Res<'a> = Res<'a>>>(client: &Client, args: &P::Args<'_>) -> Status {
    client.call::<P, _>(args, |res| {
        assert_eq!(res.cookie, Text(b"cookie"));
        res.status
    })
}

fn unlock(lock: Lock<'static>) -> UnlockArgs<'static> {
    UnlockArgs {
        cookie: Text(b"cookie"),
        lock,
    }
}

fn test_of(args: LockArgs<'static>) -> TestArgs<'static> {
    TestArgs {
        cookie: args.cookie,
        exclusive: args.exclusive,
        lock: args.lock,
    }
}

//= RFC 8267, Section 5.1
//= type=test
//# To enable interoperation of these protocols when NFS/RDMA is in use, a Legacy NFS [...]
#[test]
fn ranges_are_locked_tested_and_unlocked_over_tcp_and_udp() {
    let scene = Scene::new(&[]);
    for client in [scene.tcp(), Client::udp(scene.responder.lock)] {
        let args = scene.args(1, 10, 10);
        assert_eq!(status::<LockRange>(&client, &args), Status::Granted);
        assert_eq!(status::<LockRange>(&client, &args), Status::Granted);
        let other = scene.args(2, 15, 0);
        assert_eq!(status::<LockRange>(&client, &other), Status::Denied);
        let holder = client.call::<Test, _>(&test_of(other), |res| match res.reply {
            TestReply::Denied(holder) => (
                holder.exclusive,
                holder.svid,
                holder.owner.0.len(),
                holder.offset,
                holder.length,
            ),
            TestReply::Other(status) => panic!("{status:?}"),
        });
        assert_eq!(holder, (true, 1, 0, 10, 10));
        let free = scene.args(2, 20, 0);
        client.call::<Test, _>(&test_of(free), |res| {
            assert_eq!(res.reply, TestReply::Other(Status::Granted));
        });
        assert_eq!(status::<LockUnmonitored>(&client, &free), Status::Granted);
        for svid in [1, 2] {
            let all = unlock(scene.lock(svid, 0, 0));
            assert_eq!(status::<Unlock>(&client, &all), Status::Granted);
            assert_eq!(status::<Unlock>(&client, &all), Status::Granted);
        }
        assert_eq!(scene.command("locks"), "ok");
        client.call::<Null, _>(&nfsrdma_xdr::nfs3::Void {}, |_| ());
    }
    assert!(stop(scene.responder).success());
}

#[test]
fn what_cannot_be_locked_has_its_own_status() {
    let scene = Scene::new(&[]);
    let client = scene.tcp();
    let far = scene.args(1, 1 << 63, 0);
    assert_eq!(status::<LockRange>(&client, &far), Status::TooBig);
    let over = scene.args(1, i64::MAX as u64, 2);
    assert_eq!(status::<LockRange>(&client, &over), Status::TooBig);
    let mut of_root = scene.args(1, 0, 0);
    of_root.lock.file = scene.root;
    assert_eq!(status::<LockRange>(&client, &of_root), Status::Failed);
    // A locked file can be reached without a name. A file without locks is stale then.
    let held = scene.args(1, 0, 1);
    assert_eq!(status::<LockRange>(&client, &held), Status::Granted);
    std::fs::remove_file(scene.dirs.export().join("file")).unwrap();
    assert_eq!(
        status::<Unlock>(&client, &unlock(held.lock)),
        Status::Granted
    );
    assert_eq!(status::<LockRange>(&client, &held), Status::StaleHandle);
    let limited = Scene::new(&["--max-locks", "1"]);
    let client = limited.tcp();
    assert_eq!(
        status::<LockRange>(&client, &limited.args(1, 0, 1)),
        Status::Granted
    );
    let more = limited.args(1, 5, 1);
    assert_eq!(status::<LockRange>(&client, &more), Status::DeniedNoLocks);
    let read_only = Scene::new(&["--read-only"]);
    let client = read_only.tcp();
    let mut args = read_only.args(1, 0, 1);
    assert_eq!(status::<LockRange>(&client, &args), Status::ReadOnly);
    args.exclusive = false;
    assert_eq!(status::<LockRange>(&client, &args), Status::Granted);
}

#[test]
fn only_who_may_read_a_file_locks_it() {
    if !is_root() {
        eprintln!("skipped: taking other identities needs root");
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new(&[]);
    let path = scene.dirs.export().join("file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let client = scene.tcp().by(1000);
    let args = scene.args(1, 0, 1);
    assert_eq!(status::<LockRange>(&client, &args), Status::Failed);
}

#[test]
fn a_waiter_is_called_back_at_its_rpcbind() {
    for (style, udp) in [
        ("callback", false),
        ("callback", true),
        ("callback-sync", false),
    ] {
        let peer = Peer::start();
        let rpcbind = peer.port().to_string();
        let more = ["--client-rpcbind-port", &rpcbind, "--lock-callback", style];
        let scene = Scene::new(&more);
        let client = match udp {
            false => scene.tcp(),
            true => Client::udp(scene.responder.lock),
        };
        assert_eq!(
            status::<LockRange>(&client, &scene.args(1, 0, 0)),
            Status::Granted
        );
        let mut waiting = scene.args(2, 5, 5);
        waiting.block = true;
        assert_eq!(status::<LockRange>(&client, &waiting), Status::Blocked);
        status::<Unlock>(&client, &unlock(scene.lock(1, 0, 0)));
        let note = |args: TestArgs<'_>| {
            assert_eq!(args.lock.owner, Text(b"oh"));
            assert_eq!((args.lock.svid, args.exclusive), (2, true));
            let range = (args.lock.offset, args.lock.length);
            (args.cookie.0.to_vec(), range)
        };
        let (cookie, range) = match style {
            "callback" => peer.wait_for::<GrantedMsg, _>(note),
            _ => peer.wait_for::<Granted, _>(note),
        };
        assert_eq!(range, (5, 5), "{style}");
        if style == "callback" {
            assert_eq!(scene.command("locks").matches("held").count(), 1);
            let res = Res {
                cookie: Text(&cookie),
                status: Status::Denied,
            };
            client.call::<GrantedResult, _>(&res, |_| ());
        }
        // The client refused it, in one form or the other.
        crate::common::plain::until(|| scene.command("locks") == "ok");
        assert!(stop(scene.responder).success());
    }
}

#[test]
fn a_restart_loses_locks_tells_clients_and_takes_reclaims() {
    let peer = Peer::start();
    let port = peer.port().to_string();
    let scene = Scene::new(&["--client-status-port", &port]);
    let client = scene.tcp();
    let args = scene.args(1, 0, 4);
    assert_eq!(status::<LockRange>(&client, &args), Status::Granted);
    let reclaim = LockArgs {
        reclaim: true,
        ..args
    };
    assert_eq!(
        status::<LockRange>(&client, &reclaim),
        Status::DeniedGracePeriod
    );
    let stat = nsm::HostName {
        name: Text(b"host"),
    };
    let before = client.call::<nsm::Stat, _>(&stat, |res| res.state);
    scene.command("grace 1h");
    scene.command("restart");
    let state = peer.wait_for::<nsm::Notify, _>(|change| change.state);
    assert_eq!((state, state % 2), (before + 2, 1));
    let client = scene.tcp();
    assert_eq!(
        status::<LockRange>(&client, &args),
        Status::DeniedGracePeriod
    );
    assert_eq!(status::<LockRange>(&client, &reclaim), Status::Granted);
    scene.command("grace 0s");
    assert_eq!(
        status::<LockRange>(&client, &scene.args(2, 0, 1)),
        Status::Denied
    );
    // A new process still knows whom to notify.
    let Scene {
        dirs, responder, ..
    } = scene;
    drop(responder);
    std::fs::remove_file(dirs.root().join("control")).unwrap();
    let again = start(&dirs, &["--client-status-port", &port, "--grace", "1h"]);
    let later = peer.wait_for::<nsm::Notify, _>(|change| change.state);
    assert_eq!(later, state + 2);
    let client = Client::tcp(again.nfs);
    assert_eq!(status::<LockRange>(&client, &reclaim), Status::Granted);
}

#[test]
fn a_client_that_tells_of_its_restart_loses_its_locks() {
    let scene = Scene::new(&[]);
    let client = scene.tcp();
    for free in [true, false] {
        assert_eq!(
            status::<LockRange>(&client, &scene.args(1, 0, 4)),
            Status::Granted
        );
        let change = nsm::StateChange {
            name: Text(b"anything"),
            state: 9,
        };
        let notify = Notify {
            name: Text(b"host"),
            state: 9,
        };
        match free {
            true => client.call::<FreeAll, _>(&notify, |_| ()),
            false => client.call::<nsm::Notify, _>(&change, |_| ()),
        }
        assert_eq!(scene.command("locks"), "ok");
    }
}

#[test]
fn rpcbind_names_the_lock_manager_and_the_monitor() {
    let scene = Scene::new(&[]);
    let rpcbinds = [
        Client::tcp(scene.responder.portmap),
        Client::udp(scene.responder.portmap),
    ];
    for rpcbind in rpcbinds {
        for (program, version) in [(PROGRAM, VERSION), (nsm::PROGRAM, nsm::VERSION)] {
            for protocol in [protocol::TCP, protocol::UDP] {
                let asked = Mapping {
                    program,
                    version,
                    protocol,
                    port: 0,
                };
                let port = rpcbind.call::<portmap::Getport, _>(&asked, |port| port);
                assert_eq!(port, u32::from(scene.responder.lock));
            }
        }
    }
    let without = Dirs::new();
    let without = start(&without, &["--no-locks"]);
    let asked = Mapping {
        program: PROGRAM,
        version: VERSION,
        protocol: protocol::TCP,
        port: 0,
    };
    let rpcbind = Client::tcp(without.portmap);
    assert_eq!(rpcbind.call::<portmap::Getport, _>(&asked, |port| port), 0);
    assert!(Client::tcp(without.nfs).is_unavailable::<Null>());
}
