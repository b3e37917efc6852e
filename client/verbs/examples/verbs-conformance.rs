//! Runs the conformance suite over an RDMA device of this machine.
//!
//!     verbs-conformance ADDRESS [best|window|registration] [FILTER]
//!     verbs-conformance ADDRESS removal
//!
//! The second form moves data until the connection ends because the device is removed, and checks
//! that all memory is returned.
//!
//! ADDRESS is an address of the device itself: both ends are on this machine.

use nfsrdma_rdma::{
    Completion, ConnectParams, Connection, Instant, Invalidation, Memory, Pool, Provider,
    RemoteSegment, Wait, WorkId, WorkRequest,
};
use nfsrdma_rdma_testing::conformance;
use nfsrdma_verbs::{Choice, Verbs};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(Ok(ip)) = args.next().map(|arg| arg.parse::<IpAddr>()) else {
        eprintln!("usage: verbs-conformance ADDRESS [best|window|registration] [FILTER]");
        return ExitCode::from(2);
    };
    let mode = args.next();
    let removal = mode.as_deref() == Some("removal");
    let choice = match mode.as_deref() {
        Some("removal") => Choice::Best,
        None | Some("best") => Choice::Best,
        Some("window") => Choice::Window,
        Some("registration") => Choice::Registration,
        Some(other) => {
            eprintln!("verbs-conformance: no such protection: {other}");
            return ExitCode::from(2);
        }
    };
    let filter = args.next().unwrap_or_default();
    let provider = Verbs::with_protection(choice);
    let device = match provider.reaches(SocketAddr::new(ip, 1), conformance::PATIENCE) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("verbs-conformance: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("device {device}");
    if removal {
        return until_removed(&provider, SocketAddr::new(ip, 0));
    }
    let failed = conformance::run_all(&provider, SocketAddr::new(ip, 0), &filter);
    // Checks that the kernel's own devices are known to lack; nothing else may fail.
    let gaps: &[&str] = match (device.trim_end_matches(char::is_numeric), choice) {
        ("rxe", Choice::Window) => &["bounds_are_checked"],
        ("siw", _) => &["a_sink_is_not_read"],
        _ => &[],
    };
    let (known, unknown): (Vec<_>, Vec<_>) =
        failed.into_iter().partition(|name| gaps.contains(name));
    if !known.is_empty() {
        println!("failed as {device} does: {}", known.join(" "));
    }
    if unknown.is_empty() {
        println!("all others passed");
        ExitCode::SUCCESS
    } else {
        println!("failed: {}", unknown.join(" "));
        ExitCode::FAILURE
    }
}

/// One end of the connection that moves data.
struct End {
    connection: Connection,
    pool: Pool,
}

fn params(pool: &Pool) -> ConnectParams {
    ConnectParams {
        pool: pool.clone(),
        private_data: b"removal".to_vec(),
        send_depth: 16,
        recv_depth: 16,
        reads_out: 4,
        reads_in: 4,
        receive_buffers: 16,
        receive_size: 4096,
        timeout: conformance::PATIENCE,
        local: None,
    }
}

fn until_removed(provider: &Verbs, at: SocketAddr) -> ExitCode {
    let pools = [Pool::new(16 << 20), Pool::new(16 << 20)].map(|pool| pool.expect("memory"));
    let listener = provider.listen(at).expect("an address to listen on");
    let addr = listener.local_addr();
    let (a, b) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| provider.connect(addr, &params(&pools[0])));
        let accepted = listener
            .accept()
            .expect("a request")
            .accept(&params(&pools[1]));
        let connected = connecting.join().expect("no panic").expect("a connection");
        (connected, accepted.expect("a connection"))
    });
    let [first, second] = pools.clone();
    let (mut a, b) = (
        End {
            connection: a,
            pool: first,
        },
        End {
            connection: b,
            pool: second,
        },
    );
    let sink = b.pool.alloc(1 << 20).expect("room");
    let exposed = b
        .connection
        .queue_pair
        .expose(Memory::Sink([sink].into_iter().collect()));
    let exposed = exposed.map_err(|(error, _)| error).expect("an exposure");
    let target = exposed.segments()[0];
    let b = std::thread::spawn(move || {
        let mut b = b;
        let mut out = Vec::new();
        loop {
            let outcome = b.connection.completions.poll(&mut out, Wait::Forever);
            for completion in out.drain(..) {
                if let Completion::Received { id, buf, .. } = completion {
                    // After the end it is flushed.
                    let _ = b.connection.queue_pair.post_receive(id, buf);
                }
            }
            if let Err(error) = outcome {
                println!("accepting side: {error}");
                let qp = &b.connection.queue_pair;
                match qp.invalidate(WorkId(0), exposed) {
                    Invalidation::Done(memory) => drop(memory),
                    Invalidation::Posted => {
                        let _ = b.connection.completions.poll(&mut out, Wait::Forever);
                    }
                }
                return;
            }
        }
    });
    println!("moving");
    let (rounds, error) = load(&mut a, target);
    println!("connecting side, after {rounds} rounds: {error}");
    b.join().expect("no panic");
    drop(a);
    match listener.accept() {
        Ok(_) => {
            println!("the listener goes on without its device");
            return ExitCode::FAILURE;
        }
        Err(error) => println!("listener: {error}"),
    }
    let until = Instant::now() + conformance::PATIENCE;
    while pools
        .iter()
        .any(|pool| pool.free_bytes() != pool.capacity())
    {
        if Instant::now() > until {
            println!("memory did not come back: {pools:?}");
            return ExitCode::FAILURE;
        }
        std::thread::yield_now();
    }
    println!("all memory came back");
    ExitCode::SUCCESS
}

/// Writes and sends until the connection ends. Returns how often, and why it ended.
fn load(a: &mut End, target: RemoteSegment) -> (u64, nfsrdma_rdma::Error) {
    let mut rounds = 0;
    loop {
        let data = a.pool.alloc(1 << 20).expect("room").freeze();
        let note = data.slice(..100);
        let mut batch = vec![
            WorkRequest::Write {
                id: WorkId(1),
                source: [data].into_iter().collect(),
                target,
                signaled: false,
            },
            WorkRequest::Send {
                id: WorkId(2),
                data: [note].into_iter().collect(),
                invalidate: None,
                signaled: true,
            },
        ];
        if let Err(error) = a.connection.queue_pair.post(&mut batch) {
            return (rounds, error);
        }
        let mut out = Vec::new();
        while out.is_empty() {
            if let Err(error) = a.connection.completions.poll(&mut out, Wait::Forever) {
                return (rounds, error);
            }
        }
        rounds += 1;
    }
}
