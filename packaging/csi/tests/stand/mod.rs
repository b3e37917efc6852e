//! A responder, the driver as a process, and a gRPC client.
#![allow(dead_code, reason = "each program of tests uses a part of it")]

use http::uri::PathAndQuery;
use nfsrdma_csi::messages::{
    AccessMode, Mode, MountVolume, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, VolumeCapability,
};
use nfsrdma_test_support::{Launch, Responder, build_responder};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Stand {
    pub(crate) responder: Responder,
    /// What the responder exports.
    pub(crate) export: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) work: PathBuf,
    socket: PathBuf,
    nfsrdma: PathBuf,
    driver: Option<Child>,
    dir: TempDir,
}

impl Stand {
    /// None, with the reason on the output, where nobody can mount.
    pub(crate) fn new() -> Option<Stand> {
        if !geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            println!("skipped: mounting needs root and /dev/fuse");
            return None;
        }
        let dir = TempDir::new().expect("a directory");
        let export = dir.path().join("export");
        for name in ["export", "state", "pods", "work"] {
            fs::create_dir(dir.path().join(name)).expect(name);
        }
        let program = build_responder().expect("a responder");
        let nfsrdma = program.with_file_name("nfsrdma");
        if std::env::var_os("NFSRDMA_BIN").is_none() {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let built = Command::new(cargo)
                .args(["build", "--quiet", "-p", "nfsrdma"])
                .status();
            assert!(
                built.is_ok_and(|status| status.success()),
                "nfsrdma does not build"
            );
        }
        let exported = format!("/srv={}", export.display());
        let responder = Launch::new(&program, exported, &dir.path().join("state"));
        let mut stand = Stand {
            responder: responder.start().expect("the responder starts"),
            target: dir.path().join("pods/a/mount"),
            work: dir.path().join("work"),
            socket: dir.path().join("csi.sock"),
            nfsrdma,
            driver: None,
            export,
            dir,
        };
        stand.start_driver();
        Some(stand)
    }

    pub(crate) fn start_driver(&mut self) {
        let (rdma, nfs) = (self.responder.rdma, self.responder.nfs);
        let options = format!("port={rdma},mountport={nfs},mountproto=tcp,noresvport,timeo=20");
        let driver = Command::new(env!("CARGO_BIN_EXE_nfsrdma-csi"))
            .args(["--node-id", "node-1", "--options", &options])
            .arg(format!("--endpoint=unix://{}", self.socket.display()))
            .arg(format!("--program={}", self.nfsrdma.display()))
            .arg(format!("--work-dir={}", self.work.display()))
            .spawn();
        self.driver = Some(driver.expect("the driver starts"));
        until("the driver answers", || self.client().is_some());
    }

    /// Sends a signal to the driver, and returns when it has ended: whether with status 0.
    pub(crate) fn end_driver(&mut self, signal: Signal) -> bool {
        let mut driver = self.driver.take().expect("it runs");
        kill_process(Pid::from_child(&driver), signal).expect("a signal");
        driver.wait().expect("its end").success()
    }

    pub(crate) fn has_socket(&self) -> bool {
        self.socket.exists()
    }

    /// A client with a connection of its own.
    pub(crate) fn client(&self) -> Option<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket.display()));
        let channel = runtime
            .block_on(endpoint.expect("an address").connect())
            .ok()?;
        Some(Client { runtime, channel })
    }

    pub(crate) fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        self.client()
            .expect("the driver answers")
            .call(method, request)
    }

    /// A request to mount the whole export on the target.
    pub(crate) fn request(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: "volume".into(),
            target_path: self.target.display().to_string(),
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
            readonly: false,
            volume_context: strings([("server", "127.0.0.1"), ("share", "/srv")]),
        }
    }

    pub(crate) fn publish(&self, request: &NodePublishVolumeRequest) -> Result<(), Status> {
        let answer = self.call("Node/NodePublishVolume", request.clone());
        answer.map(|NodePublishVolumeResponse {}| ())
    }

    pub(crate) fn unpublish(&self) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: "volume".into(),
            target_path: self.target.display().to_string(),
        };
        let answer = self.call("Node/NodeUnpublishVolume", request);
        answer.map(|NodeUnpublishVolumeResponse {}| ())
    }

    pub(crate) fn stats(&self) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: "volume".into(),
            volume_path: self.target.display().to_string(),
        };
        self.call("Node/NodeGetVolumeStats", request)
    }

    /// Lines of the table of mounts below this stand.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
        let ours = self.dir.path().display().to_string();
        table
            .lines()
            .filter(|line| line.contains(&ours))
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn nfsrdma(&self, words: &[&str]) -> Vec<u8> {
        let output = Command::new(&self.nfsrdma).args(words).output();
        output.expect("nfsrdma runs").stdout
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill().and_then(|()| driver.wait());
        }
        for line in self.mounts() {
            let dir = line.split(' ').nth(4).unwrap_or_default();
            let _ = Command::new(&self.nfsrdma)
                .args(["umount", "--force", dir])
                .status();
        }
    }
}

pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Client {
    pub(crate) fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path = PathAndQuery::try_from(format!("/csi.v1.{method}")).expect("a path");
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        self.runtime
            .block_on(async {
                grpc.ready().await.expect("a connection");
                let codec = ProstCodec::<Q, A>::default();
                grpc.unary(Request::new(request), path, codec).await
            })
            .map(tonic::Response::into_inner)
    }
}

pub(crate) fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        block: None,
        mount: Some(MountVolume::default()),
        access_mode: Some(AccessMode { mode: mode as i32 }),
    }
}

pub(crate) fn strings<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

pub(crate) fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
