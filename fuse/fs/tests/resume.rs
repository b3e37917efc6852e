//! A mount that another process has served before.

use nfsrdma_channel::{Features, Received};
use nfsrdma_fs::adapter::{self, FuseOptions, OwnMount, Session};
use nfsrdma_fs::fs::{Clock, Fs, FsConfig};
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_nfs3::Limits;
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// A mount whose first process has read a request of `caller`, and has not answered it. All is
/// undone at the end of the test, even if it fails.
struct Left {
    caller: Option<Child>,
    devices: Vec<OwnedFd>,
    features: Features,
    server: Arc<MemoryServer>,
    runtime: Runtime,
    session: Option<Session>,
    dir: PathBuf,
    // Unmounts.
    channel: adapter::Channel,
}

impl Left {
    fn new(name: &str) -> Option<Left> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: there is no /dev/fuse");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("nfsrdma-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let channel = adapter::channel(&dir, &FuseOptions::default(), 0).unwrap();
        if !channel.features().resends() {
            eprintln!("skipped: this kernel has no FUSE_NOTIFY_RESEND");
            return None;
        }
        let limits = Limits {
            rtmax: 1 << 20,
            wtmax: 1 << 20,
            dtpref: 64 << 10,
            max_file_size: i64::MAX as u64,
        };
        let mut left = Left {
            caller: None,
            devices: Vec::new(),
            features: *channel.features(),
            server: MemoryServer::with(limits, 1),
            runtime: Runtime::new().unwrap(),
            session: None,
            dir,
            channel,
        };
        left.leave_a_request();
        Some(left)
    }

    fn leave_a_request(&mut self) {
        let clone = self.channel.device().try_clone().unwrap();
        for device in [&**self.channel.device(), &clone] {
            self.devices
                .push(device.as_fd().try_clone_to_owned().unwrap());
        }
        let mut mkdir = Command::new("mkdir");
        let mkdir = mkdir.arg(self.dir.join("made")).stdin(Stdio::null());
        self.caller = Some(mkdir.spawn().unwrap());
        let mut buffer = vec![0; 2 << 20];
        let received = clone.receive(&mut buffer).unwrap();
        assert!(matches!(received, Received::Request(_)));
    }

    /// Goes on with the mount.
    fn serve(&mut self) -> &Session {
        let (config, options) = (FsConfig::default(), FuseOptions::default());
        let pool = Pool::new(config.pool_bytes()).unwrap();
        let (clock, records) = (Clock::default(), Arc::new(Table::anonymous()));
        let fs = Fs::new(
            self.server.clone(),
            self.server.root(),
            pool,
            config,
            clock,
            records,
        );
        let devices = std::mem::take(&mut self.devices);
        let channel = adapter::resume(devices, self.features, &options, None).unwrap();
        let mut kept = Vec::new();
        let mut keep = |name: &str, _: std::os::fd::BorrowedFd<'_>| {
            kept.push(name.to_owned());
            Ok(())
        };
        let (own, tasks) = (OwnMount::on(&self.dir), self.runtime.handle());
        let session = adapter::serve(fs, channel, own, &options, tasks, &mut keep).unwrap();
        assert_eq!(
            kept,
            ["dev1"],
            "one for the second worker: the first has the other's"
        );
        self.session.insert(session)
    }

    /// Whether the caller succeeds.
    fn succeeds(&mut self) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let caller = self.caller.as_mut().unwrap();
            if let Some(status) = caller.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < end, "the caller waits");
            sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        drop(self.session.take());
        if let Some(caller) = &mut self.caller {
            let _ = caller.kill();
        }
        let _ = OwnMount::on(&self.dir).unmount(true);
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn its_unanswered_requests_are_answered_and_the_mount_ends_as_another() {
    let Some(mut left) = Left::new("resumed") else {
        return;
    };
    left.serve();
    assert!(left.succeeds());
    assert_eq!(left.server.names(""), ["made"]);
    let session = left.session.as_ref().unwrap();
    // Nobody else unmounts: what `fuser` has of this mount is in a channel that nothing is done with.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = session.unmount(false) {
        let busy = error.kind() == std::io::ErrorKind::ResourceBusy;
        assert!(busy && Instant::now() < end, "{error}");
        sleep(Duration::from_millis(1));
    }
    session.join().unwrap();
    assert!(session.is_finished());
}

#[test]
fn its_callers_can_be_killed_while_the_server_does_not_answer() {
    let Some(mut left) = Left::new("killed") else {
        return;
    };
    left.server.hold(true);
    left.serve();
    left.caller.as_mut().unwrap().kill().unwrap();
    assert!(!left.succeeds());
    left.server.hold(false);
}
