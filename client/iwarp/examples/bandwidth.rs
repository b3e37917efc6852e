//! Measures soft-iWARP and plain TCP, over loopback in one process:
//!
//! ```text
//! cargo run --release -p nfsrdma-iwarp --example bandwidth -- [crc] [fpdu=N] [spin=US] [only=NAME]
//! ```
//!
//! The bulk tests send messages of 1 MiB, four at a time. `fetch` does the operations of an NFS
//! READ of 4 KiB (expose, Send; RDMA Write and Send back; invalidate), one at a time.

use nfsrdma_iwarp::{Fpdu, IwarpOptions, IwarpProvider};
use nfsrdma_rdma::*;
use smallvec::smallvec;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const BULK: usize = 1 << 20;
const WINDOW: usize = 4;
const SECONDS: Duration = Duration::from_millis(1500);
const SMALL: usize = 128;

fn main() {
    let mut options = IwarpOptions::default();
    let mut only = String::new();
    for arg in std::env::args().skip(1) {
        if arg == "crc" {
            options.crc = true;
        } else if let Some(n) = arg.strip_prefix("fpdu=") {
            options.fpdu = Fpdu::Bytes(n.parse().expect("a number of bytes"));
        } else if let Some(n) = arg.strip_prefix("spin=") {
            options.spin = Duration::from_micros(n.parse().expect("microseconds"));
        } else if let Some(name) = arg.strip_prefix("only=") {
            only = name.to_owned();
        } else {
            eprintln!("unknown argument {arg}");
            std::process::exit(2);
        }
    }
    type Run = fn(&IwarpOptions) -> String;
    let runs: &[(&str, Run)] = &[
        ("tcp-bulk", |_| tcp_bulk()),
        ("tcp-pingpong", |_| tcp_ping_pong()),
        ("write-bulk", write_bulk),
        ("read-bulk", read_bulk),
        ("pingpong", ping_pong),
        ("fetch", fetch),
    ];
    for (name, run) in runs {
        if name.contains(&only) {
            println!("{name:14} {}", run(&options));
        }
    }
}

fn rate(bytes: u64, began: Instant) -> String {
    format!(
        "{:.2} GB/s",
        bytes as f64 / began.elapsed().as_secs_f64() / 1e9
    )
}

fn trips(count: u32, began: Instant) -> String {
    format!(
        "{:.1} us a round trip",
        began.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    )
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let a = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (b, _) = listener.accept().expect("accepts");
    for s in [&a, &b] {
        s.set_nodelay(true).expect("a TCP socket");
    }
    (a, b)
}

fn tcp_bulk() -> String {
    let (mut a, mut b) = tcp_pair();
    let sender = thread::spawn(move || {
        let data = vec![7; BULK];
        let began = Instant::now();
        while began.elapsed() < SECONDS {
            a.write_all(&data).expect("the peer reads");
        }
    });
    let mut sinks = vec![vec![0; BULK]; WINDOW];
    let (mut total, began) = (0, Instant::now());
    'all: loop {
        for sink in &mut sinks {
            match b.read_exact(sink) {
                Ok(()) => total += BULK as u64,
                Err(_) => break 'all,
            }
        }
    }
    let result = rate(total, began);
    sender.join().expect("the sender");
    result
}

fn tcp_ping_pong() -> String {
    let (mut a, mut b) = tcp_pair();
    let echo = thread::spawn(move || {
        let mut buf = [0; SMALL];
        while b.read_exact(&mut buf).is_ok() && b.write_all(&buf).is_ok() {}
    });
    let mut buf = [0; SMALL];
    let (mut count, began) = (0, Instant::now());
    while began.elapsed() < SECONDS {
        a.write_all(&buf).expect("the peer reads");
        a.read_exact(&mut buf).expect("the peer answers");
        count += 1;
    }
    let result = trips(count, began);
    drop(a);
    echo.join().expect("the echo");
    result
}

fn params(pool: &Pool) -> ConnectParams {
    ConnectParams {
        pool: pool.clone(),
        private_data: Vec::new(),
        send_depth: 256,
        recv_depth: 64,
        reads_out: 16,
        reads_in: 16,
        receive_buffers: 32,
        receive_size: 4096,
        timeout: Duration::from_secs(5),
    }
}

fn pair(options: &IwarpOptions, pool: &Pool) -> (Connection, Connection) {
    let provider = IwarpProvider::new(options.clone());
    let listener = provider
        .listen("127.0.0.1:0".parse().expect("an address"))
        .expect("a loopback port");
    let at = listener.local_addr();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let incoming = listener.accept().expect("somebody connects");
            incoming.accept(&params(pool)).expect("accepts")
        });
        let client = provider.connect(at, &params(pool)).expect("connects");
        (client, server.join().expect("the server"))
    })
}

fn pool() -> Pool {
    Pool::new(64 << 20).expect("memory")
}

fn send(id: u64, data: &Buf) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(id),
        data: smallvec![data.clone()],
        invalidate: None,
        signaled: false,
    }
}

/// The server writes 1 MiB and sends a message; the client answers each with a Send.
fn write_bulk(options: &IwarpOptions) -> String {
    let pool = pool();
    let (mut client, mut server) = pair(options, &pool);
    let exposures: Vec<Exposure> = (0..WINDOW)
        .map(|_| {
            let sink = Memory::Sink(smallvec![pool.alloc(BULK).expect("memory")]);
            client.queue_pair.expose(sink).expect("exposes")
        })
        .collect();
    let targets: Vec<RemoteSegment> = exposures.iter().map(|e| e.segments()[0]).collect();
    let source: Vec<Buf> = (0..WINDOW)
        .map(|_| {
            let mut buf = pool.alloc(BULK).expect("memory");
            buf.fill(7);
            buf.freeze()
        })
        .collect();
    let note = pool.alloc(SMALL).expect("memory").freeze();
    let server_note = note.clone();
    let sender = thread::spawn(move || {
        let mut out = Vec::new();
        let mut next = 0;
        let mut credits = WINDOW;
        let began = Instant::now();
        loop {
            while credits > 0 && began.elapsed() < SECONDS {
                let at = next % WINDOW;
                next += 1;
                credits -= 1;
                server
                    .queue_pair
                    .post(&mut vec![
                        WorkRequest::Write {
                            id: WorkId(0),
                            source: smallvec![source[at].clone()],
                            target: targets[at],
                            signaled: false,
                        },
                        send(1, &server_note),
                    ])
                    .expect("posts");
            }
            if credits == WINDOW {
                server.queue_pair.disconnect();
                return;
            }
            server
                .completions
                .poll(&mut out, Wait::Forever)
                .expect("polls");
            for completion in out.drain(..) {
                if let Completion::Received { id, buf, .. } = completion {
                    credits += 1;
                    server.queue_pair.post_receive(id, buf).expect("posts");
                }
            }
        }
    });
    let mut out = Vec::new();
    let (mut total, began) = (0, Instant::now());
    while client.completions.poll(&mut out, Wait::Forever).is_ok() {
        for completion in out.drain(..) {
            if let Completion::Received { id, buf, .. } = completion {
                total += BULK as u64;
                client.queue_pair.post_receive(id, buf).expect("posts");
                client
                    .queue_pair
                    .post(&mut vec![send(0, &note)])
                    .expect("posts");
            }
        }
    }
    let result = rate(total, began);
    sender.join().expect("the sender");
    for exposure in exposures {
        let _ = client.queue_pair.invalidate(WorkId(0), exposure);
    }
    result
}

/// The server reads messages of 1 MiB from the client, as for NFS WRITE.
fn read_bulk(options: &IwarpOptions) -> String {
    let pool = pool();
    let (mut client, mut server) = pair(options, &pool);
    let exposures: Vec<Exposure> = (0..WINDOW)
        .map(|_| {
            let mut buf = pool.alloc(BULK).expect("memory");
            buf.fill(7);
            let source = Memory::Source(smallvec![buf.freeze()]);
            client.queue_pair.expose(source).expect("exposes")
        })
        .collect();
    let sources: Vec<RemoteSegment> = exposures.iter().map(|e| e.segments()[0]).collect();
    let server_pool = pool.clone();
    let reader = thread::spawn(move || {
        let read = |at: usize, sink| WorkRequest::Read {
            id: WorkId(at as u64),
            sink,
            source: sources[at],
        };
        let mut batch = (0..WINDOW)
            .map(|at| read(at, smallvec![server_pool.alloc(BULK).expect("memory")]))
            .collect();
        server.queue_pair.post(&mut batch).expect("posts");
        let (mut out, mut total, mut open) = (Vec::new(), 0, WINDOW);
        let began = Instant::now();
        while open > 0 {
            server
                .completions
                .poll(&mut out, Wait::Forever)
                .expect("polls");
            for completion in out.drain(..) {
                if let Completion::Read { id, sink } = completion {
                    total += BULK as u64;
                    if began.elapsed() < SECONDS {
                        let again = read(id.0 as usize, sink);
                        server.queue_pair.post(&mut vec![again]).expect("posts");
                    } else {
                        open -= 1;
                    }
                }
            }
        }
        rate(total, began)
    });
    let mut out = Vec::new();
    while client.completions.poll(&mut out, Wait::Forever).is_ok() {}
    let result = reader.join().expect("the reader");
    for exposure in exposures {
        let _ = client.queue_pair.invalidate(WorkId(0), exposure);
    }
    result
}

fn receive(connection: &mut Connection, out: &mut Vec<Completion>) -> Option<()> {
    loop {
        connection.completions.poll(out, Wait::Forever).ok()?;
        let mut got = None;
        for completion in out.drain(..) {
            if let Completion::Received { id, buf, .. } = completion {
                connection.queue_pair.post_receive(id, buf).ok()?;
                got = Some(());
            }
        }
        if got.is_some() {
            return got;
        }
    }
}

fn ping_pong(options: &IwarpOptions) -> String {
    let pool = pool();
    let (mut client, mut server) = pair(options, &pool);
    let note = pool.alloc(SMALL).expect("memory").freeze();
    let server_note = note.clone();
    let echo = thread::spawn(move || {
        let mut out = Vec::new();
        while receive(&mut server, &mut out).is_some() {
            let _ = server.queue_pair.post(&mut vec![send(0, &server_note)]);
        }
    });
    let (mut out, mut count, began) = (Vec::new(), 0, Instant::now());
    while began.elapsed() < SECONDS {
        let _ = client.queue_pair.post(&mut vec![send(0, &note)]);
        receive(&mut client, &mut out).expect("the answer");
        count += 1;
    }
    let result = trips(count, began);
    client.queue_pair.disconnect();
    echo.join().expect("the echo");
    result
}

fn fetch(options: &IwarpOptions) -> String {
    const LEN: usize = 4096;
    let pool = pool();
    let (mut client, mut server) = pair(options, &pool);
    let note = pool.alloc(SMALL).expect("memory").freeze();
    let page = pool.alloc(LEN).expect("memory").freeze();
    let server_note = note.clone();
    let (tell, told) = std::sync::mpsc::channel::<RemoteSegment>();
    let server_thread = thread::spawn(move || {
        let mut out = Vec::new();
        while receive(&mut server, &mut out).is_some() {
            let Ok(target) = told.recv() else { return };
            let _ = server.queue_pair.post(&mut vec![
                WorkRequest::Write {
                    id: WorkId(0),
                    source: smallvec![page.clone()],
                    target,
                    signaled: false,
                },
                send(0, &server_note),
            ]);
        }
    });
    let mut sink: Segs<BufMut> = smallvec![pool.alloc(LEN).expect("memory")];
    let (mut out, mut count, began) = (Vec::new(), 0, Instant::now());
    while began.elapsed() < SECONDS {
        let exposure = client
            .queue_pair
            .expose(Memory::Sink(sink))
            .expect("exposes");
        let _ = tell.send(exposure.segments()[0]);
        let _ = client.queue_pair.post(&mut vec![send(0, &note)]);
        receive(&mut client, &mut out).expect("the answer");
        let Invalidation::Done(Memory::Sink(back)) =
            client.queue_pair.invalidate(WorkId(0), exposure)
        else {
            panic!("the sink comes back");
        };
        sink = back;
        count += 1;
    }
    let result = trips(count, began);
    client.queue_pair.disconnect();
    server_thread.join().expect("the server");
    result
}
