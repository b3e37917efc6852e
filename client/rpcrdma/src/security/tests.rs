use super::fake::Fake;
use super::*;
use crate::exec;
use crate::protocol::Discard;
use crate::rpc::{Cred, Credential};
use nfsrdma_rdma::{Capabilities, Exposure, Invalidation, Memory, QueuePair, WorkId, WorkRequest};
use nfsrdma_xdr::codec::{Encode, Encoder};
use nfsrdma_xdr::rpc::{Accepted, AuthStat, Denial, Reply, ReplyBody};
use nfsrdma_xdr::rpcsec_gss::{integrity_head, verifier};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

const XID: u32 = 77;
const RESULTS: &[u8] = b"twelve bytes";
const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

fn header(server: &Fake, number: u32, status: Accepted, to: &mut Encoder) {
    let mut mic = vec![0; server.mic_len()];
    server.mic(&[&number.to_be_bytes()], &mut mic).unwrap();
    let body = ReplyBody::Accepted(verifier(&mic), status);
    Reply { xid: XID, body }.encode(to);
}

/// The reply of the server, and where its body begins.
fn reply(server: &Fake, number: u32, inner: u32) -> (Vec<u8>, usize) {
    let mut to = Encoder::default();
    header(server, number, Accepted::Success, &mut to);
    let body = to.len();
    let plain = [&inner.to_be_bytes(), RESULTS].concat();
    match server.service {
        Service::None => to.opaque_fixed(RESULTS),
        Service::Integrity => {
            let mut mic = vec![0; server.mic_len()];
            server.mic(&[&plain], &mut mic).unwrap();
            to.opaque_fixed(&integrity_head(inner, RESULTS.len()));
            to.opaque_fixed(RESULTS);
            to.opaque(&mic);
        }
        Service::Privacy => {
            let mut wrapped = vec![0; plain.len() + server.wrap_overhead()];
            server.wrap(&[&plain], &mut wrapped).unwrap();
            to.opaque(&wrapped);
        }
    }
    (to.into_vec(), body)
}

fn opened(client: &Fake, mut bytes: Vec<u8>, numbers: &[u32]) -> Result<Vec<u8>, Discard> {
    let part = open(client, client.service, &mut bytes, XID, numbers)?;
    Ok(bytes[part].to_vec())
}

#[test]
fn a_reply_is_opened_for_any_number_that_its_call_was_sent_with() {
    let plain = Reply::accepted(XID, Accepted::Success).to_xdr();
    for service in SERVICES {
        let client = Fake::new(5, service);
        for number in [3, 9] {
            let (bytes, body) = reply(&client.server(), number, number);
            let size = results_len(&client, service, RESULTS.len());
            assert_eq!(bytes.len() - body, size, "the size is exact");
            let is = opened(&client, bytes.clone(), &[3, 9]).unwrap();
            assert_eq!(is, [&plain, RESULTS].concat());
            let other = opened(&client, bytes, &[4, 8]);
            assert_eq!(other, Err(Discard::Verifier));
        }
    }
}

#[test]
fn what_was_changed_on_the_way_is_not_believed() {
    for service in SERVICES {
        let client = Fake::new(5, service);
        let (bytes, body) = reply(&client.server(), 3, 3);
        // The flavor, the length and the MIC of the verifier.
        for at in 12..body - 4 {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(opened(&client, changed, &[3]).is_err(), "{service:?} {at}");
        }
        if service == Service::None {
            continue;
        }
        for at in body..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            let is = opened(&client, changed, &[3]);
            assert_eq!(is, Err(Discard::Results), "{service:?} {at}");
        }
        for end in body..bytes.len() {
            let is = opened(&client, bytes[..end].to_vec(), &[3]);
            assert_eq!(is, Err(Discard::Results), "{service:?} {end}");
        }
    }
}

#[test]
fn results_of_another_call_and_those_of_oneself_are_not_believed() {
    for service in [Service::Integrity, Service::Privacy] {
        let client = Fake::new(5, service);
        let (bytes, _) = reply(&client.server(), 3, 4);
        assert_eq!(opened(&client, bytes, &[3, 4]), Err(Discard::Results));
    }
    for service in SERVICES {
        let client = Fake::new(5, service);
        let (bytes, _) = reply(&client, 3, 3);
        assert_eq!(opened(&client, bytes, &[3]), Err(Discard::Verifier));
        let (bytes, _) = reply(&Fake::new(6, service).server(), 3, 3);
        assert_eq!(opened(&client, bytes, &[3]), Err(Discard::Verifier));
    }
}

/// A refusal has no verifier. That the call was not run is proved.
#[test]
fn replies_without_results() {
    let client = Fake::new(5, Service::Privacy);
    let denied = Reply::denied(XID, Denial::AuthError(AuthStat::GssCredProblem)).to_xdr();
    assert_eq!(opened(&client, denied.clone(), &[3]), Ok(denied));
    let mut to = Encoder::default();
    header(&client.server(), 3, Accepted::SystemErr, &mut to);
    let failed = to.into_vec();
    assert_eq!(opened(&client, failed.clone(), &[3]), Ok(failed.clone()));
    assert_eq!(opened(&client, failed, &[4]), Err(Discard::Verifier));
    let plain = Reply::accepted(XID, Accepted::SystemErr).to_xdr();
    assert_eq!(opened(&client, plain, &[3]), Err(Discard::Verifier));
    assert_eq!(opened(&client, vec![0; 7], &[3]), Err(Discard::NotAReply));
}

/// A connection that only counts how often it is woken.
#[derive(Debug, Default)]
struct Woken(AtomicUsize);

impl QueuePair for Woken {
    fn capabilities(&self) -> &Capabilities {
        unreachable!()
    }
    fn local_addr(&self) -> std::net::SocketAddr {
        unreachable!()
    }
    fn peer_addr(&self) -> std::net::SocketAddr {
        unreachable!()
    }
    fn post_receive(&self, _: WorkId, _: nfsrdma_rdma::BufMut) -> nfsrdma_rdma::Result<()> {
        unreachable!()
    }
    fn post(&self, _: &mut Vec<WorkRequest>) -> nfsrdma_rdma::Result<()> {
        unreachable!()
    }
    fn expose(&self, _: Memory) -> Result<Exposure, (nfsrdma_rdma::Error, Memory)> {
        unreachable!()
    }
    fn invalidate(&self, _: WorkId, _: Exposure) -> Invalidation {
        unreachable!()
    }
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn disconnect(&self) {}
}

#[test]
fn no_number_leaves_the_window_behind_and_those_who_wait_are_woken() {
    let mut fake = Fake::new(5, Service::None);
    fake.window = 4;
    let context = Context::new(Box::new(fake));
    let woken = Arc::new(Woken::default());
    let connection: Arc<dyn QueuePair> = woken.clone();
    let take = || context.take(&connection);
    let all: Vec<_> = (0..4).map(|_| take().unwrap()).collect();
    assert_eq!(all, [1, 2, 3, 4]);
    // 5 would leave 1 out.
    assert_eq!(take(), None);
    assert!(!context.has_room(&connection));
    context.give(3);
    context.give(2);
    assert_eq!(take(), None);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    context.give(1);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let more: Vec<_> = std::iter::from_fn(take).collect();
    assert_eq!(more, [5, 6, 7], "4 is the oldest");
    for number in [4, 5, 6, 7] {
        context.give(number);
    }
    assert_eq!(take(), Some(8));
}

/// A slow call without data holds nobody back once others, half a window later, are answered.
#[test]
fn the_server_has_seen_what_others_have_overtaken() {
    let mut fake = Fake::new(5, Service::None);
    fake.window = 8;
    let context = Context::new(Box::new(fake));
    let connection: Arc<dyn QueuePair> = Arc::new(Woken::default());
    let take = |data: bool| {
        let number = context.take(&connection)?;
        if !data {
            context.posted(number, &connection);
        }
        Some(number)
    };
    assert_eq!((take(false), take(false)), (Some(1), Some(2)));
    for number in 3..100 {
        assert_eq!(take(false), Some(number));
        context.give(number);
    }
    assert_eq!(take(true), Some(100));
    for number in 101..108 {
        assert_eq!(take(false), Some(number));
        context.give(number);
    }
    assert_eq!(take(false), None, "the data may be under way");
    // The slow calls are answered at last.
    context.give(1);
    context.give(2);
    assert_eq!(take(false), None);
    context.give(100);
    assert_eq!(take(false), Some(108));
}

#[test]
fn a_context_is_over_when_it_expires() {
    let mut fake = Fake::new(5, Service::None);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
    fake.expires = Some(now);
    let context = Context::new(Box::new(fake));
    assert!(!context.is_over(now - Duration::from_secs(1)));
    assert!(context.is_over(now) && context.is_over(now + Duration::from_secs(1)));
    assert!(!Context::new(Box::new(Fake::new(5, Service::None))).is_over(now));
}

/// How long it takes for user 4.
const HANGS: Duration = Duration::from_millis(50);

/// Makes a context for each permit, and none for users 1 to 4. It takes a while for user 4.
struct Slow {
    permits: Semaphore,
    attempts: AtomicUsize,
}

impl Establish for Slow {
    fn establish<'a>(&'a self, _: &'a [IpAddr], _: Service, cred: &'a Cred) -> Establishing<'a> {
        Box::pin(async move {
            self.permits.acquire().await.unwrap().forget();
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            match cred.uid {
                1 => Err(NoContext::Expired("old ticket".to_owned())),
                2 => Err(NoContext::NoCredential("no ticket".to_owned())),
                3 => Err(NoContext::Unavailable("no KDC".to_owned())),
                4 => {
                    std::thread::sleep(HANGS);
                    Err(NoContext::NoCredential("its cache hangs".to_owned()))
                }
                _ => Ok(Box::new(Fake::new(attempt as u64, Service::None)) as _),
            }
        })
    }
}

fn user(uid: u32) -> Cred {
    Arc::new(Credential {
        uid,
        gid: 1,
        groups: vec![uid],
    })
}

fn contexts() -> (Arc<Slow>, Contexts) {
    let slow = Arc::new(Slow {
        permits: Semaphore::new(0),
        attempts: AtomicUsize::new(0),
    });
    let security = Security {
        service: Service::None,
        establish: slow.clone(),
    };
    (
        slow,
        Contexts::new(security, vec![[127, 0, 0, 1].into()], user(7)),
    )
}

#[test]
fn calls_that_wait_for_a_context_share_it_or_its_failure() {
    let (slow, contexts) = contexts();
    for (uid, attempts) in [(7, 1), (2, 2), (2, 3), (1, 4)] {
        let cred = user(uid);
        let both = async {
            tokio::join!(
                contexts.get(&cred, Of::Program),
                contexts.get(&cred, Of::Program),
                async {
                    slow.permits.add_permits(1);
                }
            )
        };
        let (one, two, ()) = exec::block_on(both);
        assert_eq!(slow.attempts.load(Ordering::Relaxed), attempts);
        match (one, two) {
            (Ok(one), Ok(two)) => assert!(uid == 7 && Arc::ptr_eq(&one, &two)),
            (Err(_), Err(_)) => assert!(uid < 7),
            other => panic!("{other:?}"),
        }
    }
}

/// A tree full of files is no reason for as many attempts, nor is data that is kept.
#[test]
fn who_had_no_ticket_a_moment_ago_has_none() {
    let (slow, contexts) = contexts();
    slow.permits.add_permits(10_000);
    let (expired, none, no_kdc) = (user(1), user(2), user(3));
    let attempts = |cred: &Cred, of| {
        let before = slow.attempts.load(Ordering::Relaxed);
        for _ in 0..1000 {
            assert!(exec::block_on(contexts.get(cred, of)).is_err());
        }
        slow.attempts.load(Ordering::Relaxed) - before
    };
    assert!(
        attempts(&none, Of::Program) > 10,
        "kinit is noticed at once"
    );
    assert!(attempts(&none, Of::Data) < 100);
    for cred in [&expired, &no_kdc] {
        assert!(attempts(cred, Of::Program) < 100);
        while attempts(cred, Of::Data) == 0 {}
    }
}

/// Also where users whose contexts fail make calls in turns.
#[test]
fn nobodys_failure_is_forgotten_for_those_of_others() {
    let (slow, contexts) = contexts();
    slow.permits.add_permits(10_000);
    for _ in 0..1000 {
        for uid in [1, 3] {
            assert!(exec::block_on(contexts.get(&user(uid), Of::Program)).is_err());
        }
    }
    let attempts = slow.attempts.load(Ordering::Relaxed);
    assert!(attempts < 100, "{attempts}");
}

/// Nor are the calls of a user whose look hangs a reason for the next look.
#[test]
fn who_takes_long_to_have_no_ticket_is_refused_as_long() {
    let (slow, contexts) = contexts();
    slow.permits.add_permits(10_000);
    let hangs = user(4);
    let begin = Instant::now();
    let mut refused = 0;
    while slow.attempts.load(Ordering::Relaxed) < 4 {
        assert!(exec::block_on(contexts.get(&hangs, Of::Program)).is_err());
        refused += 1;
    }
    assert!(refused > 4, "{refused}");
    assert!(begin.elapsed() >= 7 * HANGS, "{:?}", begin.elapsed());
}

#[test]
fn a_refused_context_is_replaced_once() {
    let (slow, contexts) = contexts();
    slow.permits.add_permits(9);
    let get = |uid| exec::block_on(contexts.get(&user(uid), Of::Program)).unwrap();
    let (first, other) = (get(7), get(8));
    assert!(Arc::ptr_eq(&first, &get(7)) && !Arc::ptr_eq(&first, &other));
    contexts.refused(&user(7), &first);
    let second = get(7);
    assert!(!Arc::ptr_eq(&first, &second));
    // Another call under the first one is refused later.
    contexts.refused(&user(7), &first);
    assert!(Arc::ptr_eq(&second, &get(7)) && Arc::ptr_eq(&other, &get(8)));
    assert_eq!(contexts.in_use(), (2, None));
    assert_eq!(contexts.take().len(), 2);
    assert!(contexts.take().is_empty());
}
