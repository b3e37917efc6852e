use super::listener::Service;
use super::others::Names;
use super::*;
use std::sync::atomic::AtomicU64;
use tokio::task::JoinSet;

#[derive(Debug)]
struct Nowhere;

impl LockManager for Nowhere {
    fn place(&self) -> Option<(SocketAddr, Protocol)> {
        None
    }

    fn is_privileged(&self) -> bool {
        false
    }
}

/// Each program of this machine can connect from an address of the machine that is not known.
#[tokio::test]
async fn strangers_who_connect_often_cost_few_looks_at_the_sockets() {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    fn counted(uid: u32) -> Names {
        LOOKS.fetch_add(1, Ordering::SeqCst);
        Names::look(uid)
    }
    let (server, nowhere) = ("192.0.2.1".parse().unwrap(), Arc::new(Nowhere));
    let manager: Arc<dyn LockManager> = nowhere;
    let options = CallbackOptions::default();
    let callbacks = Callbacks::new(server, Arc::downgrade(&manager), options, 0);
    let (mut others, _socket) = Others::join(0).unwrap();
    others.look = counted;
    callbacks.others.set(others).unwrap();
    let since = Instant::now();
    let mut connecting = JoinSet::new();
    for port in 1..500 {
        let callbacks = callbacks.clone();
        let from = Caller {
            address: SocketAddr::from(([192, 0, 2, 2], port)),
            protocol: Protocol::Tcp,
        };
        connecting.spawn(async move { callbacks.may_connect(from).await });
    }
    connecting.join_all().await;
    let looks = LOOKS.load(Ordering::SeqCst);
    assert!(
        (1..=1 + since.elapsed().as_secs()).contains(&looks),
        "{looks}"
    );
    let known = Caller {
        address: SocketAddr::new(server, 1),
        protocol: Protocol::Tcp,
    };
    assert!(callbacks.may_connect(known).await);
    assert_eq!(LOOKS.load(Ordering::SeqCst), looks, "the server needs none");
}
