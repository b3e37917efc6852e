//! An RPC-over-RDMA server over soft-iWARP that misbehaves on demand: it loses
//! connections, tampers with headers and chunks, or does not answer. The effect and the results of
//! a call are those of the server in memory (`tests/memory-server`).
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each crate of tests uses a part of it"
)]
#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "a failure here is a failed test, and nobody calls it but tests"
)]

pub mod data;
mod peer;
mod script;

pub use nfsrdma_rdma_testing::fault::Device;
pub use script::*;

use nfsrdma_iwarp::IwarpProvider;
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_nfs3::{
    ClientOptions, Cred, Credential, Limits, MountProtocol, MountTarget, Mounted, Nfs3,
    TransportOptions,
};
use nfsrdma_rdma::{Listener, Pool, Provider};
use nfsrdma_rdma_testing::fault::{Faulty, Plan};
use nfsrdma_rpcrdma::exec;
use nfsrdma_xdr::nfs3::{self, *};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub struct Server {
    /// The device that its clients seem to have.
    device: Device,
    /// The server in memory that it serves.
    pub memory: Arc<MemoryServer>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    listener: Arc<dyn Listener>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn start(
        device: Device,
        manners: Manners,
        script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let script: Arc<Script> = Arc::new(script);
        let provider = IwarpProvider::default();
        let listener = provider.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let listener: Arc<dyn Listener> = listener.into();
        let limits = Limits {
            rtmax: 1 << 20,
            wtmax: 1 << 20,
            dtpref: 32_768,
            max_file_size: 1 << 40,
        };
        let memory = MemoryServer::with(limits, 0);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let accepting = listener.clone();
        let (memory2, seen2) = (memory.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            let mut workers = Vec::new();
            let connections = AtomicU32::new(0);
            while let Ok(incoming) = accepting.accept() {
                let connection = connections.fetch_add(1, Ordering::Relaxed);
                let (memory, seen) = (memory2.clone(), seen2.clone());
                let (manners, script) = (manners.clone(), script.clone());
                workers.push(std::thread::spawn(move || {
                    peer::serve(incoming, connection, manners, &memory, seen, &*script)
                }));
            }
            for worker in workers {
                worker.join().unwrap();
            }
        });
        Server {
            device,
            memory,
            seen,
            listener,
            thread: Some(thread),
        }
    }

    /// A server on soft-iWARP's own device, with the usual manners.
    pub fn acting(script: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        Server::start(Device::default(), Manners::default(), script)
    }

    pub fn plain() -> Self {
        Server::acting(|_| Act::Answer)
    }

    /// `script` gets NFS calls only; its number counts the calls of `P`.
    pub fn scripted<P: nfs3::Procedure>(
        script: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        let count = std::sync::atomic::AtomicUsize::new(0);
        Server::acting(move |seen| {
            if (seen.program, seen.procedure) != (P::PROGRAM, P::NUMBER) {
                return Act::Answer;
            }
            script(seen, count.fetch_add(1, Ordering::Relaxed))
        })
    }

    /// It does `acts` with the first calls of `P`.
    pub fn at_first<P: nfs3::Procedure, const N: usize>(acts: [Act; N]) -> Self {
        let acts = Mutex::new(acts.into_iter());
        Server::scripted::<P>(move |_, _| acts.lock().next().unwrap_or(Act::Answer))
    }

    /// Creates a file in the root that everybody may write, with these bytes. Returns its handle.
    pub fn plant(&self, name: &[u8], bytes: &[u8]) -> FileHandle {
        let text = std::str::from_utf8(name).unwrap();
        self.memory.plant(text, bytes);
        self.memory.change_file(text, 0, &[], Some(0o666));
        let (who, top) = (root(), self.memory.root());
        let found = exec::block_on(self.memory.lookup(&who, &top, name));
        found.unwrap().object
    }

    /// Removes a file of the root, if it exists.
    pub fn uproot(&self, name: &[u8]) {
        let (who, top) = (root(), self.memory.root());
        let _ = exec::block_on(self.memory.remove(&who, &top, name));
    }

    /// The contents of a file in the root.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        self.memory.contents(name).unwrap()
    }

    pub async fn mount(&self, options: &ClientOptions) -> (Mounted, Pool) {
        let provider = IwarpProvider::default();
        let provider: Arc<dyn Provider> = match self.device == Device::default() {
            true => Arc::new(provider),
            false => Arc::new(Faulty::new(provider, self.of_device(Plan::default()))),
        };
        self.connect(options, provider).await
    }

    fn of_device(&self, plan: Plan) -> Plan {
        let device = self.device.clone();
        Plan { device, ..plan }
    }

    async fn connect(
        &self,
        options: &ClientOptions,
        provider: Arc<dyn Provider>,
    ) -> (Mounted, Pool) {
        let options = ClientOptions {
            port: self.listener.local_addr().port(),
            ..options.clone()
        };
        let target = MountTarget::parse("127.0.0.1:/export").unwrap();
        let pool = Pool::new(64 << 20).unwrap();
        let mounted = nfsrdma_nfs3::connect(&target, &options, provider, pool.clone());
        (mounted.await.unwrap(), pool)
    }

    /// A mount whose own side of the connections fails as `plan` says.
    pub async fn mount_faulty(&self, plan: Plan) -> (Mounted, Pool) {
        let provider = Faulty::new(IwarpProvider::default(), self.of_device(plan));
        self.connect(&options(), Arc::new(provider)).await
    }

    /// The calls of one procedure.
    pub fn calls<P: nfs3::Procedure>(&self) -> Vec<Seen> {
        let seen = self.seen.lock();
        let calls = seen.iter();
        calls
            .filter(|s| (s.program, s.procedure) == (P::PROGRAM, P::NUMBER))
            .cloned()
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listener.close();
        // Not joined: the connection threads end with their peers, which the test owns.
        drop(self.thread.take());
    }
}

/// The credential of root.
pub fn root() -> Cred {
    Arc::new(Credential {
        uid: 0,
        gid: 0,
        groups: vec![],
    })
}

pub fn options() -> ClientOptions {
    ClientOptions {
        mountproto: MountProtocol::Rdma,
        transport: TransportOptions {
            connect_timeout: Duration::from_secs(20),
            ..TransportOptions::default()
        },
        ..ClientOptions::default()
    }
}

pub fn options_with(change: impl FnOnce(&mut TransportOptions)) -> ClientOptions {
    let mut options = options();
    change(&mut options.transport);
    options
}
