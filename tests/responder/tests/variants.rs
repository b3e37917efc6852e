//! The imitated habits of other servers, over TCP by an independent client, and the control socket.

use crate::common::client::*;
use crate::common::{Dirs, start};
use nfs3_types::nfs3::*;
use nfsrdma_test_support::Responder;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

/// A responder with a control socket.
struct Scripted {
    responder: Responder,
    lines: BufReader<UnixStream>,
}

impl Scripted {
    fn start(dirs: &Dirs, more: &[&str]) -> Self {
        let path = dirs.root().join("control");
        let socket = path.to_str().unwrap();
        let responder = start(dirs, &[&["--control", socket], more].concat());
        let lines = BufReader::new(UnixStream::connect(&path).unwrap());
        Scripted { responder, lines }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.lines.get_mut(), "{command}").unwrap();
        let mut answer = String::new();
        self.lines.read_line(&mut answer).unwrap();
        answer.trim_end().to_string()
    }

    fn tell(&mut self, command: &str) {
        let answer = self.ask(command);
        assert!(answer.starts_with("ok"), "{command}: {answer}");
    }
}

const UNSTABLE: stable_how = stable_how::UNSTABLE;

async fn set_mtime(client: &mut Client, file: &nfs_fh3, seconds: u32) -> wcc_data {
    let args = SETATTR3args {
        object: file.clone(),
        new_attributes: sattr3 {
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 {
                seconds,
                nseconds: 5,
            }),
            ..Default::default()
        },
        guard: Nfs3Option::None,
    };
    client.setattr(&args).await.unwrap().unwrap().obj_wcc
}

fn has(option: &Nfs3Option<wcc_attr>) -> bool {
    matches!(option, Nfs3Option::Some(_))
}

#[tokio::test]
async fn pre_operation_attributes_are_as_asked_for() {
    let dirs = Dirs::new();
    let mut server = Scripted::start(&dirs, &[]);
    let mut client = connect(&server.responder).await;
    let root = client.root_nfs_fh3();
    let file = create(&mut client, &root, "file", 0o600).await;
    for (mode, of_write, of_others) in [
        ("always", true, true),
        ("not-for-write", false, true),
        ("never", false, false),
        ("not-atomic", true, true),
    ] {
        server.tell(&format!("pre-op {mode}"));
        let wrote = write(&mut client, &file, 0, b"data", UNSTABLE)
            .await
            .unwrap();
        assert_eq!(has(&wrote.file_wcc.before), of_write, "{mode}");
        assert!(
            matches!(wrote.file_wcc.after, Nfs3Option::Some(_)),
            "{mode}"
        );
        let set = set_mtime(&mut client, &file, 1000).await;
        assert_eq!(has(&set.before), of_others, "{mode}");
        let args = RENAME3args {
            from: at(&root, "file"),
            to: at(&root, "file"),
        };
        let renamed = client.rename(&args).await.unwrap().unwrap();
        assert_eq!(has(&renamed.fromdir_wcc.before), of_others, "{mode}");
        assert_eq!(has(&renamed.todir_wcc.before), of_others, "{mode}");
    }
    assert!(server.ask("pre-op sometimes").starts_with("error"));
}

#[tokio::test]
async fn samples_that_are_not_atomic_may_enclose_a_change_of_another() {
    let dirs = Dirs::new();
    let options = ["--pre-op", "not-atomic", "--pre-op-gap", "300"];
    let server = Scripted::start(&dirs, &options);
    let mut a = connect(&server.responder).await;
    let mut b = connect(&server.responder).await;
    let root = a.root_nfs_fh3();
    let file = create(&mut a, &root, "file", 0o600).await;
    // Both replies show the empty file from before either WRITE.
    let (one, two) = tokio::join!(
        write(&mut a, &file, 0, b"1", UNSTABLE),
        write(&mut b, &file, 1, b"2", UNSTABLE),
    );
    let size = |wcc: &wcc_data| match &wcc.before {
        Nfs3Option::Some(before) => before.size,
        Nfs3Option::None => panic!("no pre-operation attributes"),
    };
    let (one, two) = (one.unwrap().file_wcc, two.unwrap().file_wcc);
    assert_eq!((size(&one), size(&two)), (0, 0));
    let after = |wcc: wcc_data| wcc.after.unwrap().size;
    assert_eq!((after(one), after(two)), (2, 2));
}

fn times(attributes: Result<fattr3, nfsstat3>) -> [(u32, u32); 3] {
    let of = attributes.unwrap();
    [of.atime, of.mtime, of.ctime].map(|time| (time.seconds, time.nseconds))
}

#[tokio::test]
async fn the_clock_steps_and_old_times_stay() {
    let dirs = Dirs::new();
    let mut server = Scripted::start(&dirs, &[]);
    let mut client = connect(&server.responder).await;
    let root = client.root_nfs_fh3();
    let old = create(&mut client, &root, "old", 0o600).await;
    let before = getattr(&mut client, &old).await.unwrap();
    assert_eq!(server.ask("clock -1h"), "ok offset_ns=-3600000000000");
    let young = create(&mut client, &root, "young", 0o600).await;
    let now = getattr(&mut client, &young).await.unwrap();
    assert!(now.ctime.seconds <= before.ctime.seconds - 3500);
    assert_eq!(
        times(getattr(&mut client, &old).await),
        times(Ok(before.clone()))
    );
    write(&mut client, &old, 0, b"x", UNSTABLE).await.unwrap();
    let after = getattr(&mut client, &old).await.unwrap();
    assert!(after.mtime.seconds <= before.mtime.seconds - 3500);
    assert!(after.ctime.seconds <= before.ctime.seconds - 3500);
    // A client reads back the time that it has set.
    set_mtime(&mut client, &old, after.ctime.seconds + 7200).await;
    let set = getattr(&mut client, &old).await.unwrap();
    let wanted = after.ctime.seconds + 7200;
    assert_eq!((set.mtime.seconds, set.mtime.nseconds), (wanted, 5));
    assert_eq!(server.ask("clock =0s"), "ok offset_ns=0");
    assert!(server.ask("clock 5s").starts_with("error"));
}

#[tokio::test]
async fn seconds_are_whole() {
    let dirs = Dirs::new();
    let server = Scripted::start(&dirs, &["--one-second-times", "--clock-offset", "1m"]);
    let mut client = connect(&server.responder).await;
    let root = client.root_nfs_fh3();
    let file = create(&mut client, &root, "file", 0o600).await;
    let shown = getattr(&mut client, &file).await.unwrap();
    let local = std::fs::metadata(dirs.export().join("file")).unwrap();
    assert_eq!((shown.ctime.nseconds, shown.mtime.nseconds), (0, 0));
    let ahead = i64::from(shown.ctime.seconds) - local.ctime();
    assert!((59..=60).contains(&ahead), "{ahead}");
}

#[tokio::test]
async fn different_handles_with_equal_fileids() {
    let dirs = Dirs::new();
    let server = Scripted::start(&dirs, &["--equal-fileids"]);
    let mut client = connect(&server.responder).await;
    let root = client.root_nfs_fh3();
    let live = mkdir(&mut client, &root, "live").await;
    let snapshot = mkdir(&mut client, &root, "snapshot").await;
    let one = create(&mut client, &live, "db", 0o600).await;
    let two = create(&mut client, &snapshot, "db", 0o600).await;
    assert_ne!(one, two);
    write(&mut client, &one, 0, b"live", UNSTABLE)
        .await
        .unwrap();
    let (a, b) = (
        getattr(&mut client, &one).await.unwrap(),
        getattr(&mut client, &two).await.unwrap(),
    );
    assert_eq!((a.fsid, a.fileid), (b.fsid, b.fileid));
    assert_eq!((a.size, b.size), (4, 0));
    let of_dir = getattr(&mut client, &live).await.unwrap().fileid;
    assert_eq!(
        getattr(&mut client, &snapshot).await.unwrap().fileid,
        of_dir
    );
    let of_root = getattr(&mut client, &root).await.unwrap().fileid;
    assert_ne!(of_dir, of_root);
    // READDIR shows the same numbers.
    let mut listed = names(&mut client, &live, 4096).await;
    listed.sort();
    let wanted = [(".", of_dir), ("..", of_root), ("db", a.fileid)];
    assert_eq!(listed, wanted.map(|(name, id)| (name.to_string(), id)));
}
