//! Calls under RPCSEC_GSS, with a mechanism that protects from nothing.

use crate::common::data::*;
use crate::common::gss::Gss;
use crate::common::*;
use nfsrdma_nfs3::options::Mechanism;
use nfsrdma_nfs3::{
    ClientOptions, CreateMode, Cred, Credential, Mounted, Nfs3, NfsError, Recovery, Transport,
    TransportOptions, WriteChunk,
};
use nfsrdma_rdma::Pool;
use nfsrdma_rdma_testing::loopback::Options;
use nfsrdma_rpcrdma::security::Service;
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpc::Call;
use nfsrdma_xdr::rpcrdma::Body;
use nfsrdma_xdr::rpcsec_gss;
use nfsrdma_xdr::{codec::Decoder, procedure::Procedure};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

struct Setting {
    server: Server,
    gss: Arc<Gss>,
    mounted: Mounted,
    pool: Pool,
}

/// A mount whose calls of `P` the server handles as `script` says, by their count.
async fn scripted<P: Procedure>(
    gss: Arc<Gss>,
    transport: TransportOptions,
    script: impl Fn(usize) -> Act + Send + Sync + 'static,
) -> Setting {
    let count = AtomicUsize::new(0);
    let script = move |seen: &Seen| match (seen.program, seen.procedure) == (P::PROGRAM, P::NUMBER)
    {
        true => script(count.fetch_add(1, Ordering::Relaxed)),
        false => Act::Answer,
    };
    let manners = Manners {
        security: Some(gss.clone()),
        ..Manners::default()
    };
    let server = Server::start(Options::default(), manners, Arc::new(script));
    server.memory.change_file("", 0, &[], Some(0o777));
    let options = ClientOptions {
        flavors: vec![gss.flavor()],
        mechanism: Some(Mechanism(gss.clone())),
        transport,
        ..options()
    };
    let (mounted, pool) = server.mount(&options).await;
    Setting {
        server,
        gss,
        mounted,
        pool,
    }
}

async fn plain(service: Service) -> Setting {
    let gss = Gss::new(service, 128);
    scripted::<Getattr>(gss, options().transport, |_| Act::Answer).await
}

impl Setting {
    /// Checks that the server had no reason to hang up, and that all contexts are gone.
    async fn leave(self) {
        assert_eq!(self.gss.violations(), 0);
        leaves_nothing(self.mounted, self.pool).await;
        let (made, known, destroyed) = self.gss.counts();
        assert_eq!(known, 0, "{made} made, {destroyed} destroyed");
    }

    /// XID and sequence number of each call of `P`.
    fn numbers<P: Procedure>(&self) -> Vec<(u32, u32)> {
        let seen = self.server.seen.lock();
        let calls = seen.iter();
        let calls = calls.filter(|s| (s.program, s.procedure) == (P::PROGRAM, P::NUMBER));
        let numbers = calls.map(|seen| {
            let call = Call::parse(&mut Decoder::new(&seen.message)).unwrap();
            let credential = rpcsec_gss::Credential::of(&call.credential);
            (call.xid, credential.unwrap().unwrap().sequence)
        });
        numbers.collect()
    }
}

fn user(uid: u32) -> Cred {
    Arc::new(Credential {
        uid,
        gid: 100,
        groups: vec![],
    })
}

fn impatient() -> TransportOptions {
    TransportOptions {
        timeo: Duration::from_secs(2),
        ..options().transport
    }
}

/// Data of every size come back, and only without integrity and privacy are they in chunks of their own.
async fn every_size(service: Service, write_chunk: WriteChunk) {
    let gss = Gss::new(service, 128);
    let transport = TransportOptions {
        write_chunk,
        ..options().transport
    };
    let setting = scripted::<Getattr>(gss, transport, |_| Act::Answer).await;
    let (mounted, pool) = (&setting.mounted, &setting.pool);
    for (at, len) in [1, 3, 4, 700, 3000, 4096, 5001, 300_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let name = format!("file-{len}");
        let file = setting.server.plant(name.as_bytes(), b"");
        let bytes = pattern(len, at);
        write(mounted, pool, &file, &bytes, 70_000).await;
        assert_eq!(setting.server.contents(&name), bytes);
        assert_eq!(read(mounted, pool, &file, len + 7, 70_000).await, bytes);
    }
    let link = vec![b'x'; 900];
    let new = SetAttributes::default();
    let (who, top) = (&cred(), &mounted.root);
    mounted
        .client
        .symlink(who, top, b"link", &link, &new)
        .await
        .unwrap();
    let found = mounted.client.lookup(who, top, b"link").await.unwrap();
    let (path, _) = mounted.client.readlink(who, &found.object).await.unwrap();
    assert_eq!(path, link);
    for seen in setting.server.calls::<Read>() {
        let chunks = seen.header.chunks().unwrap();
        assert!(service == Service::None || chunks.writes.is_empty());
    }
    let mut forms = setting.server.calls::<Write>().into_iter();
    let large = forms.rfind(|seen| seen.message.len() > 1 << 20).unwrap();
    let whole = write_chunk == WriteChunk::PositionZero || service != Service::None;
    assert_eq!(matches!(large.header.body, Body::NoMsg(_)), whole);
    setting.leave().await;
}

#[tokio::test]
async fn data_of_every_size() {
    for service in SERVICES {
        every_size(service, WriteChunk::PositionZero).await;
        every_size(service, WriteChunk::Reduced).await;
    }
}

/// The largest results fit into a Reply chunk.
#[tokio::test]
async fn the_largest_read_and_write() {
    for service in SERVICES {
        let gss = Gss::new(service, 128);
        let manners = Manners {
            security: Some(gss.clone()),
            rtmax: IO_MAX as u32,
            ..Manners::default()
        };
        let answer = Arc::new(|_: &Seen| Act::Answer);
        let server = Server::start(Options::default(), manners, answer);
        let options = ClientOptions {
            flavors: vec![gss.flavor()],
            mechanism: Some(Mechanism(gss)),
            rsize: Some(IO_MAX as u32),
            wsize: Some(IO_MAX as u32),
            ..options()
        };
        let (mounted, pool) = server.mount(&options).await;
        let limits = mounted.client.limits();
        assert_eq!(limits.rtmax == IO_MAX as u32, service == Service::None);
        let (most, longest) = (limits.rtmax as usize, limits.wtmax as usize);
        let file = server.plant(b"f", b"");
        let bytes = pattern(longest, 1);
        write(&mounted, &pool, &file, &bytes, 1 << 16).await;
        let bytes = pattern(most, 2);
        let file = server.plant(b"g", &bytes);
        assert!(read(&mounted, &pool, &file, most, 1 << 16).await == bytes);
        leaves_nothing(mounted, pool).await;
    }
}

/// A directory comes in a Reply chunk.
#[tokio::test]
async fn long_results() {
    for service in SERVICES {
        let setting = plain(service).await;
        for number in 0..300 {
            setting
                .server
                .plant(format!("a-name-{number}").as_bytes(), b"");
        }
        let (client, top) = (&setting.mounted.client, &setting.mounted.root);
        let verifier = Verifier::default();
        let who = cred();
        let list = client.readdirplus(&who, top, 0, verifier, 30_000, 60_000);
        let list = list.await.unwrap();
        assert!(list.entries.len() > 200);
        let seen = setting.server.calls::<Readdirplus>();
        assert!(seen[0].header.chunks().unwrap().reply.is_some());
        setting.leave().await;
    }
}

/// Each user has a context, which all calls use; those without a ticket are told so.
#[tokio::test]
async fn users_have_their_own_contexts() {
    let setting = plain(Service::Integrity).await;
    let (client, top) = (&setting.mounted.client, &setting.mounted.root);
    for uid in [1001, 1002, 1001, 1002] {
        let (name, who) = (uid.to_string(), user(uid));
        let new = SetAttributes::default();
        let mode = CreateMode::Unchecked;
        let made = client.create(&who, top, name.as_bytes(), mode, &new);
        let made = made.await.unwrap();
        assert_eq!(made.attributes.unwrap().uid, uid);
    }
    // One more: that of the user who mounts.
    assert_eq!(setting.gss.counts().0, 3);
    let none = client.getattr(&user(5000), top).await;
    assert!(matches!(none, Err(NfsError::NoCredential(_))), "{none:?}");
    let old = client.getattr(&user(6000), top).await;
    assert!(matches!(old, Err(NfsError::Expired(_))), "{old:?}");
    // What does not answer is waited for.
    client.getattr(&user(7000), top).await.unwrap();
    setting.leave().await;
}

/// A call keeps its XID when it is sent again, and takes a new number.
#[tokio::test]
async fn a_retransmission_has_a_number_of_its_own() {
    for service in SERVICES {
        let gss = Gss::new(service, 128);
        let setting = scripted::<Write>(gss, options().transport, |number| match number {
            0 | 1 => Act::RunThenHangup,
            _ => Act::Answer,
        })
        .await;
        let file = setting.server.plant(b"f", b"");
        let bytes = pattern(20_000, 1);
        write(&setting.mounted, &setting.pool, &file, &bytes, 7000).await;
        assert_eq!(setting.server.contents("f"), bytes);
        let numbers = setting.numbers::<Write>();
        assert!(numbers.iter().all(|(xid, _)| *xid == numbers[0].0));
        assert!(numbers[0].1 < numbers[1].1 && numbers[1].1 < numbers[2].1);
        setting.leave().await;
    }
}

/// A reply is not believed if its verifier or its results were changed: the call waits, and is sent again.
#[tokio::test]
async fn a_reply_that_was_changed_is_not_believed() {
    for service in SERVICES {
        let gss = Gss::new(service, 128);
        let setting = scripted::<Lookup>(gss, impatient(), move |number| match number {
            0 => tamper(|_, reply| reply[30] ^= 1),
            // The results under integrity and privacy.
            1 if service != Service::None => tamper(|_, reply| reply[80] ^= 1),
            _ => Act::Answer,
        })
        .await;
        let file = setting.server.plant(b"f", b"");
        let (client, top) = (&setting.mounted.client, &setting.mounted.root);
        let found = client.lookup(&cred(), top, b"f").await.unwrap();
        assert_eq!(found.object, file);
        let sent = 2 + usize::from(service != Service::None);
        assert_eq!(setting.numbers::<Lookup>().len(), sent);
        let discards: u64 = client.stats().connections.iter().map(|c| c.discards).sum();
        assert_eq!(discards as usize, sent - 1);
        setting.leave().await;
    }
}

/// The server forgot the context: the call is made again under a new one, with its data.
#[tokio::test]
async fn a_context_that_the_server_forgot_is_made_anew() {
    for service in SERVICES {
        let setting = plain(service).await;
        let file = setting.server.plant(b"f", b"");
        let bytes = pattern(50_000, 1);
        write(&setting.mounted, &setting.pool, &file, &bytes[..9], 9).await;
        let before = setting.gss.counts().0;
        setting.gss.flush();
        write(&setting.mounted, &setting.pool, &file, &bytes, 7000).await;
        setting.gss.flush();
        let is = read(&setting.mounted, &setting.pool, &file, 50_000, 7000).await;
        assert_eq!(is, bytes);
        assert_eq!(setting.gss.counts().0, before + 2);
        setting.leave().await;
    }
}

/// A server that forgets several contexts in a row, before any call is made under them, loses no call.
#[tokio::test]
async fn contexts_that_the_server_forgets_in_a_row() {
    let setting = plain(Service::Integrity).await;
    let file = setting.server.plant(b"f", b"");
    let bytes = pattern(5000, 1);
    write(&setting.mounted, &setting.pool, &file, &bytes[..9], 9).await;
    let before = setting.gss.counts().0;
    setting.gss.refuse(4);
    write(&setting.mounted, &setting.pool, &file, &bytes, 5000).await;
    assert_eq!(setting.server.contents("f"), bytes);
    assert_eq!(setting.gss.counts().0, before + 4);
    setting.leave().await;
}

/// One that forgets all of them counts as silent, and is not asked without end by the calls that wait.
#[tokio::test]
async fn a_server_that_refuses_every_context_is_waited_for() {
    let gss = Gss::new(Service::None, 128);
    let transport = TransportOptions {
        recovery: Recovery::Soft,
        ..impatient()
    };
    let setting = scripted::<Getattr>(gss, transport, |_| Act::Answer).await;
    let (client, top) = (&setting.mounted.client, &setting.mounted.root);
    client.getattr(&cred(), top).await.unwrap();
    let before = setting.gss.counts().0;
    let begin = Instant::now();
    setting.gss.refuse(u32::MAX);
    let calls = setting.server.calls::<Getattr>().len();
    let all: Vec<_> = (0..20)
        .map(|_| {
            let (client, top) = (client.clone(), *top);
            tokio::spawn(async move { client.getattr(&cred(), &top).await })
        })
        .collect();
    for denied in all {
        let denied = denied.await.unwrap();
        assert!(matches!(denied, Err(NfsError::Local(_))), "{denied:?}");
    }
    let seconds = begin.elapsed().as_secs() + 1;
    let made = setting.gss.counts().0 - before;
    assert!((5..=5 + seconds).contains(&made), "{made} in {seconds} s");
    let calls = setting.server.calls::<Getattr>().len() - calls;
    assert!(calls as u64 <= 20 * (made + 1), "{calls}");
    setting.gss.refuse(0);
    client.getattr(&cred(), top).await.unwrap();
    leaves_nothing(setting.mounted, setting.pool).await;
}

/// One user alone is not waited for without end, if others have contexts meanwhile. The server keeps no context of the trial.
#[tokio::test]
async fn an_odd_ticket_is_refused_at_last() {
    let setting = plain(Service::None).await;
    let (client, top) = (&setting.mounted.client, &setting.mounted.root);
    let odd = client.getattr(&user(8000), top).await;
    assert!(matches!(odd, Err(NfsError::NoCredential(_))), "{odd:?}");
    let made = setting.gss.counts().0;
    for _ in 0..5 {
        let odd = client.getattr(&user(8000), top).await;
        assert!(matches!(odd, Err(NfsError::NoCredential(_))), "{odd:?}");
    }
    assert_eq!(setting.gss.counts().0, made);
    client.getattr(&cred(), top).await.unwrap();
    setting.leave().await;
}

/// The ticket has expired for the server, whose clock is ahead: then its data is kept.
#[tokio::test]
async fn a_context_expires_by_the_clock_of_the_server() {
    let setting = plain(Service::None).await;
    let (client, top) = (&setting.mounted.client, &setting.mounted.root);
    setting
        .gss
        .expire_at(SystemTime::now() + Duration::from_secs(100));
    setting.gss.refuse(u32::MAX);
    let old = client.getattr(&user(1001), top).await;
    assert!(matches!(old, Err(NfsError::Expired(_))), "{old:?}");
    leaves_nothing(setting.mounted, setting.pool).await;
}

/// A context that has expired is not used any more, even if the server would take it.
#[tokio::test]
async fn an_expired_context_is_replaced() {
    let setting = plain(Service::None).await;
    let (client, top) = (&setting.mounted.client, &setting.mounted.root);
    setting
        .gss
        .expire_at(SystemTime::now() - Duration::from_secs(1));
    for made in 2..4 {
        client.getattr(&user(1001), top).await.unwrap();
        assert_eq!(setting.gss.counts().0, made);
    }
    setting.mounted.unmount().await;
}

/// Many calls with a narrow window, over several connections that the server ends: no number is behind
/// the window, and each call has its reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_call_leaves_the_window() {
    let gss = Gss::new(Service::None, 3);
    let transport = TransportOptions {
        nconnect: 2,
        ..options().transport
    };
    let setting = scripted::<Lookup>(gss, transport, |number| match number % 40 {
        39 => Act::Hangup,
        _ => Act::Answer,
    })
    .await;
    let file = setting.server.plant(b"f", b"");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (client, top) = (setting.mounted.client.clone(), setting.mounted.root);
            tokio::spawn(async move {
                for _ in 0..30 {
                    let found = client.lookup(&cred(), &top, b"f").await.unwrap();
                    assert_eq!(found.object, file);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    setting.leave().await;
}

/// A WRITE without an answer holds back others of its user, and only those.
#[tokio::test]
async fn data_without_an_answer_hold_back_their_user_only() {
    let gss = Gss::new(Service::Privacy, 2);
    let setting = scripted::<Write>(gss, impatient(), |number| match number {
        0 => Act::Silence,
        _ => Act::Answer,
    })
    .await;
    let file = setting.server.plant(b"f", b"");
    let (client, top) = (&setting.mounted.client, &setting.mounted.root);
    let (one, two) = (user(1001), user(1002));
    let data = source(&setting.pool, b"data", 4);
    let silent = client.write(&one, &file, 0, data, Stable::FileSync);
    let connects = || client.stats().connections[0].connects;
    let held = async {
        client.getattr(&one, top).await.unwrap();
        client.getattr(&one, top).await.unwrap();
        connects()
    };
    let others = async {
        for _ in 0..9 {
            client.getattr(&two, top).await.unwrap();
        }
        connects()
    };
    let (silent, held, others) = tokio::join!(silent, held, others);
    assert!(silent.is_ok());
    assert_eq!(held, 2, "there was no number before its time-out");
    assert_eq!(others, 1, "others did not wait for that");
    setting.leave().await;
}

/// A call that takes its time holds back nobody.
#[tokio::test]
async fn a_slow_call_holds_back_nobody() {
    let gss = Gss::new(Service::Integrity, 8);
    let setting = scripted::<Lookup>(gss, impatient(), |number| match number {
        0 => Act::Silence,
        _ => Act::Answer,
    })
    .await;
    setting.server.plant(b"f", b"");
    let (client, top, who) = (&setting.mounted.client, &setting.mounted.root, &cred());
    let others = async {
        for _ in 0..50 {
            client.getattr(who, top).await.unwrap();
        }
        setting.server.calls::<Lookup>().len()
    };
    let (slow, lookups) = tokio::join!(client.lookup(who, top, b"f"), others);
    assert!(slow.is_ok());
    assert_eq!(lookups, 1, "the slow call was not yet sent again");
    setting.leave().await;
}

/// A call that is put off is made again under the same context.
#[tokio::test]
async fn a_call_that_is_put_off_is_made_again() {
    for service in SERVICES {
        let gss = Gss::new(service, 128);
        let setting = scripted::<Read>(gss, options().transport, |number| match number {
            0 => Act::JukeBox,
            _ => Act::Answer,
        })
        .await;
        let file = setting.server.plant(b"f", b"some bytes");
        let is = read(&setting.mounted, &setting.pool, &file, 10, 10).await;
        assert_eq!(is, b"some bytes");
        setting.leave().await;
    }
}

/// Dirty data that fill the pool can be written.
#[tokio::test]
async fn data_are_written_although_there_is_no_memory() {
    for service in SERVICES {
        let setting = plain(service).await;
        let (client, pool, who) = (&setting.mounted.client, &setting.pool, &cred());
        let file = setting.server.plant(b"f", b"");
        let bytes = pattern(1 << 20, 1);
        let data = source(pool, &bytes, 1 << 16);
        let sizes = (12..=22).rev().map(|log| 1 << log);
        let all = sizes.flat_map(|size| std::iter::from_fn(move || pool.alloc(size)));
        let all: Vec<_> = all.collect();
        for _ in 0..3 {
            let write = client.write(who, &file, 0, data.clone(), Stable::FileSync);
            let done = write.await.unwrap();
            assert_eq!(done.count, 1 << 20);
        }
        drop((all, data));
        assert_eq!(setting.server.contents("f"), bytes);
        setting.leave().await;
    }
}
