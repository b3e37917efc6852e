use super::ranges::Range;
use super::table::{
    Action, CallbackStyle, CallerAddress, Host, LockMode, LockRequest, LockTable, Owner, Policy,
    TestFailure,
};
use nfsrdma_xdr::nfs3::FileHandle;
use nfsrdma_xdr::nlm4::Status;
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;
const LATER: Duration = Duration::from_secs(6);

fn host(client: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, client])
}

fn file() -> FileHandle {
    FileHandle::new(b"file").unwrap()
}

fn owner(client: u8) -> Owner {
    Owner {
        host: Host::Client(host(client)),
        svid: 7,
    }
}

fn exclusive(client: u8, start: u64, end: u64) -> LockRequest {
    LockRequest {
        file: file(),
        owner: owner(client),
        exclusive: true,
        range: Range { start, end },
    }
}

/// A table and its clock.
struct Server {
    table: LockTable,
    now: Instant,
}

impl Server {
    fn new(style: CallbackStyle) -> Self {
        Self::with(Policy {
            style,
            ..Policy::default()
        })
    }

    fn with(policy: Policy) -> Self {
        let now = Instant::now();
        Server {
            table: LockTable::start(policy, now, 1, Vec::new()),
            now,
        }
    }

    fn lock(&mut self, request: LockRequest, block: bool) -> Status {
        let Host::Client(address) = request.owner.host else {
            panic!("a client's request");
        };
        let caller = CallerAddress {
            source: (address, 700).into(),
            udp: false,
        };
        let mode = LockMode {
            block,
            monitored: true,
            caller: Some((caller, b"oh".to_vec())),
            ..LockMode::default()
        };
        self.table.lock(self.now, &request, mode)
    }

    fn reclaim(&mut self, request: LockRequest) -> Status {
        let mode = LockMode {
            reclaim: true,
            monitored: true,
            ..LockMode::default()
        };
        self.table.lock(self.now, &request, mode)
    }

    fn unlock(&mut self, request: LockRequest) -> Status {
        self.table
            .unlock(self.now, &request.file, request.owner, request.range)
    }

    fn granted(&mut self) -> Vec<(u64, Owner)> {
        let actions = self.table.poll(self.now);
        let granted = actions.into_iter().filter_map(|action| match action {
            Action::Grant { id, request, .. } => Some((id, request.owner)),
            Action::Notify { .. } => None,
        });
        granted.collect()
    }

    fn answer(&mut self, client: u8, id: u64, took: bool) {
        self.table.granted_answer(self.now, host(client), id, took);
    }
}

#[test]
fn waiters_are_granted_in_their_order_and_called_back_until_they_answer() {
    let mut server = Server::new(CallbackStyle::Callback);
    assert_eq!(server.lock(exclusive(A, 0, 9), false), Status::Granted);
    assert_eq!(server.lock(exclusive(B, 0, 9), true), Status::Blocked);
    assert_eq!(server.lock(exclusive(C, 5, 9), true), Status::Blocked);
    assert_eq!(server.lock(exclusive(C, 5, 9), false), Status::Denied);
    assert_eq!(server.granted(), []);
    assert_eq!(server.unlock(exclusive(A, 0, 9)), Status::Granted);
    let [(id, to)] = server.granted()[..] else {
        panic!("one callback");
    };
    assert_eq!(to, owner(B));
    assert_eq!(server.granted(), []);
    server.now += LATER;
    assert_eq!(server.granted(), [(id, owner(B))]);
    // The answer of another host is ignored.
    server.answer(C, id, false);
    assert!(server.table.test(server.now, &exclusive(A, 0, 9)).is_err());
    server.answer(B, id, true);
    server.now += LATER;
    assert_eq!(server.granted(), []);
    assert_eq!(server.unlock(exclusive(B, 0, 4)), Status::Granted);
    assert_eq!(server.granted(), []);
    assert_eq!(server.unlock(exclusive(B, 0, 9)), Status::Granted);
    assert_eq!(server.granted().len(), 1);
}

#[test]
fn cancel_ends_waiting_and_says_when_it_comes_too_late() {
    let mut server = Server::new(CallbackStyle::Callback);
    server.lock(exclusive(A, 0, 9), false);
    server.lock(exclusive(B, 0, 9), true);
    let cancel = |server: &mut Server| server.table.cancel(server.now, &exclusive(B, 0, 9));
    assert_eq!(cancel(&mut server), Status::Granted);
    assert_eq!(cancel(&mut server), Status::Granted);
    server.lock(exclusive(B, 0, 9), true);
    server.unlock(exclusive(A, 0, 9));
    assert_eq!(cancel(&mut server), Status::Denied);
    assert!(server.table.test(server.now, &exclusive(A, 0, 9)).is_err());
    server.unlock(exclusive(B, 0, 9));
    assert!(server.table.test(server.now, &exclusive(A, 0, 9)).is_ok());
    assert_eq!(server.granted(), []);
}

#[test]
fn a_restart_takes_reclaims_only_until_the_grace_period_ends() {
    let grace = Duration::from_secs(10);
    let mut server = Server::with(Policy {
        grace,
        ..Policy::default()
    });
    assert!(server.table.in_grace(server.now));
    server.table.end_grace();
    assert_eq!(server.lock(exclusive(A, 0, 9), false), Status::Granted);
    let before = server.table.state();
    assert_eq!(before % 2, 1);
    assert_eq!(
        server.reclaim(exclusive(A, 0, 9)),
        Status::DeniedGracePeriod
    );
    server.table.restart(server.now);
    assert_eq!(server.table.state(), before + 2);
    assert_eq!(
        server.table.poll(server.now),
        [Action::Notify {
            host: host(A),
            state: before + 2
        }]
    );
    assert_eq!(server.table.hosts().len(), 1);
    let new = exclusive(B, 0, 9);
    assert_eq!(server.lock(new, false), Status::DeniedGracePeriod);
    assert_eq!(server.unlock(new), Status::DeniedGracePeriod);
    let tested = server.table.test(server.now, &new);
    assert_eq!(tested, Err(TestFailure::Grace));
    assert_eq!(server.reclaim(exclusive(A, 0, 9)), Status::Granted);
    assert_eq!(server.reclaim(new), Status::Denied);
    server.now += grace;
    assert_eq!(server.lock(new, false), Status::Denied);
    assert_eq!(
        server.reclaim(exclusive(A, 0, 9)),
        Status::DeniedGracePeriod
    );
    // It is repeated until the host answers, or until the limit.
    assert_eq!(server.table.poll(server.now).len(), 1);
    server.table.notified(host(A));
    server.now += LATER;
    assert_eq!(server.table.poll(server.now), []);
}

#[test]
fn hosts_remembered_over_a_restart_are_told_and_then_given_up() {
    let mut now = Instant::now();
    let mut table = LockTable::start(Policy::default(), now, 5, vec![host(B)]);
    assert_eq!(table.state(), 7);
    let mut sent = 0;
    while let Some(next) = table.next_poll() {
        now = next;
        sent += table.poll(now).len();
        assert!(sent < 100);
    }
    assert!(sent > 5);
    assert!(table.hosts().is_empty());
}

#[test]
fn a_client_that_restarted_has_no_locks() {
    let mut server = Server::new(CallbackStyle::Callback);
    server.lock(exclusive(A, 0, 9), false);
    server.lock(exclusive(B, 0, 9), true);
    server.table.client_restarted(server.now, host(A), 3);
    assert_eq!(server.granted().len(), 1);
    server.table.client_restarted(server.now, host(B), 3);
    assert_eq!(server.lock(exclusive(A, 0, 9), false), Status::Granted);
    // The same state number again is a late message.
    server.table.client_restarted(server.now, host(A), 3);
    assert_eq!(server.lock(exclusive(B, 0, 9), false), Status::Denied);
    server.table.free_all(server.now, Host::Client(host(A)));
    assert_eq!(server.lock(exclusive(B, 0, 9), false), Status::Granted);
}

#[derive(Debug, Clone)]
enum Step {
    Lock(u8, bool, u64, u64, bool),
    Unlock(u8, u64, u64),
    Cancel(u8, bool, u64, u64),
    Answer(bool),
    Free(u8),
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = A..=C;
    let range = (0u64..6, 0u64..6).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let step = prop_oneof![
        6 => (client.clone(), any::<bool>(), range.clone(), any::<bool>())
            .prop_map(|(c, x, (a, b), block)| Step::Lock(c, x, a, b, block)),
        4 => (client.clone(), range.clone()).prop_map(|(c, (a, b))| Step::Unlock(c, a, b)),
        2 => (client.clone(), any::<bool>(), range).prop_map(|(c, x, (a, b))| Step::Cancel(c, x, a, b)),
        2 => any::<bool>().prop_map(Step::Answer),
        1 => client.prop_map(Step::Free),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Checks after any calls in any order that no two owners hold conflicting locks, and (with
    /// callbacks) that each waiter is blocked by a lock.
    #[test]
    fn locks_exclude_and_nobody_waits_for_nothing(steps in steps(), takes: bool) {
        let style = if takes { CallbackStyle::Takes } else { CallbackStyle::Callback };
        let mut server = Server::new(style);
        let mut callbacks: Vec<(u64, Owner)> = Vec::new();
        for step in steps {
            let request = |c, exclusive_, a, b| LockRequest {
                exclusive: exclusive_,
                ..exclusive(c, a, b)
            };
            match step {
                Step::Lock(c, x, a, b, block) => {
                    let status = server.lock(request(c, x, a, b), block);
                    let held = server.table.test(server.now, &request(c, x, a, b)).is_ok();
                    prop_assert_eq!(held, status == Status::Granted);
                }
                Step::Unlock(c, a, b) => {
                    prop_assert_eq!(server.unlock(request(c, true, a, b)), Status::Granted);
                }
                Step::Cancel(c, x, a, b) => {
                    server.table.cancel(server.now, &request(c, x, a, b));
                }
                Step::Answer(took) => {
                    if let Some((id, owner)) = callbacks.pop()
                        && let Host::Client(from) = owner.host
                    {
                        server.table.granted_answer(server.now, from, id, took);
                    }
                }
                Step::Free(c) => server.table.free_all(server.now, Host::Client(host(c))),
                Step::Wait => server.now += LATER,
            }
            callbacks.extend(server.granted());
            let described = server.table.describe();
            let lines: Vec<_> = described.split_whitespace().map(Line::parse).collect();
            for line in &lines {
                let conflict = lines.iter().any(|other| other.conflicts(line));
                prop_assert!(!line.held || !conflict, "{}", described);
                prop_assert!(!line.waits || conflict, "{}", described);
            }
        }
    }
}

/// A line of [`LockTable::describe`].
#[derive(Debug)]
struct Line {
    waits: bool,
    held: bool,
    owner: String,
    exclusive: bool,
    start: u64,
    end: u64,
}

impl Line {
    fn parse(text: &str) -> Self {
        let [what, owner, kind, range] = text.split(':').collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        let (start, end) = range.split_once('-').unwrap();
        Line {
            waits: what == "waiting",
            held: what == "held",
            owner: owner.to_string(),
            exclusive: kind == "exclusive",
            start: start.parse().unwrap(),
            end: end.parse().unwrap(),
        }
    }

    /// Whether this is a held lock that conflicts with `other`.
    fn conflicts(&self, other: &Line) -> bool {
        self.held
            && self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.start <= other.end
            && other.start <= self.end
    }
}
