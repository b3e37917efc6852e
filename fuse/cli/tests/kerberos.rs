//! Helpers that make Kerberos contexts: the program itself as a helper, in a real realm, with an
//! acceptor in this process.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma::kerberos::driver::{Helper, Helpers, Progress};
use nfsrdma::kerberos::establish::Kerberos;
use nfsrdma::kerberos::protocol::{Refusal, Request};
use nfsrdma_gss::{Context, Kind, Library};
use nfsrdma_rpcrdma::rpc::{self, Cred};
use nfsrdma_rpcrdma::security::{Establish, NoContext, Service};
use nfsrdma_test_support::{Realm, in_realm};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::record;
use nfsrdma_xdr::rpc::{Accepted, Auth, AuthStat, Call, Denial, Reply, ReplyBody};
use nfsrdma_xdr::rpcsec_gss::{self, Credential, InitArgs, InitRes, Opaque};
use rustix::process::{geteuid, getuid};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How long a helper may take in these tests.
const LIMIT: Duration = Duration::from_secs(60);
/// SIGALRM.
const ALARM: i32 = 14;
/// The user of the tests that root runs.
const USER: u32 = 1001;

/// Whose contexts are made: root makes them for another user, who is no root for himself.
fn user() -> u32 {
    match getuid().as_raw() {
        0 => USER,
        uid => uid,
    }
}

/// The helpers of a mount from the server localhost, in this process's realm.
fn helpers(place: &Path) -> Helpers {
    let mut helpers = Helpers::new("nfs@localhost");
    helpers.program = env!("CARGO_BIN_EXE_nfsrdma").into();
    helpers.keytab = place.join("krb5.keytab").to_str().unwrap().to_owned();
    helpers.directories = vec![place.join("scanned-%U").to_str().unwrap().to_owned()];
    helpers.config = std::env::var_os("KRB5_CONFIG").map(PathBuf::from);
    helpers.limit = LIMIT;
    helpers
}

/// Gets a ticket into a file that belongs to `uid`.
fn ticket(realm: &Realm, principal: &str, life: &str, cache: &Path, uid: u32) {
    realm.kinit(principal, life, cache).unwrap();
    if geteuid().is_root() {
        chown(cache, Some(uid), Some(uid)).unwrap();
    }
}

/// The directory that the helpers of `uid` look through, made for that user.
fn scanned(place: &Path, uid: u32) -> PathBuf {
    let directory = place.join(format!("scanned-{uid}"));
    if !directory.exists() {
        fs::create_dir(&directory).unwrap();
        if geteuid().is_root() {
            chown(&directory, Some(uid), Some(uid)).unwrap();
        }
    }
    directory
}

/// A krb5.conf of this realm with another KDC.
fn with_kdc(place: &Path, kdc: SocketAddr) -> PathBuf {
    let configuration = fs::read_to_string(place.join("krb5.conf")).unwrap();
    let mut lines = configuration.lines();
    let old = lines.find(|line| line.contains("kdc = 127")).unwrap();
    let path = place.join("other-kdc.conf");
    fs::write(&path, configuration.replace(old, &format!("  kdc = {kdc}"))).unwrap();
    path
}

fn mic(context: &Context, message: &[u8]) -> Vec<u8> {
    let mut mic = vec![0; context.mic_len()];
    context.mic(&[message], &mut mic).unwrap();
    mic
}

fn wrap(context: &Context, message: &[u8]) -> Vec<u8> {
    let mut wrapped = vec![0; message.len() + context.wrap_overhead()];
    context.wrap(&[message], &mut wrapped).unwrap();
    wrapped
}

fn first_token(helper: &mut Helper) -> Result<Vec<u8>, Refusal> {
    match helper.step(None)? {
        Progress::Token(token) => Ok(token.0.clone()),
        Progress::Done(_) => panic!("done without the server"),
    }
}

/// The contexts of the helper and of the server, and the principal that the server sees.
fn establish(helpers: &Helpers, uid: u32) -> Result<(Context, Context, String), Refusal> {
    let mut helper = helpers.start(uid, uid).unwrap();
    let token = first_token(&mut helper)?;
    let mut accepting = Library::load().unwrap().acceptor(None).unwrap().accept();
    let reply = accepting.step(&token).unwrap();
    let Progress::Done(context) = helper.step(Some(&reply.token))? else {
        panic!("more tokens than Kerberos has");
    };
    let (server, principal) = accepting.into_context().unwrap();
    Ok((context, server, principal))
}

fn refusal(helpers: &Helpers, uid: u32) -> Kind {
    let refusal = establish(helpers, uid).expect_err("there is no ticket");
    println!("{refusal}");
    assert!(!refusal.sentence.contains("alice"), "{refusal}");
    refusal.kind
}

#[test]
fn a_user_gets_a_context() {
    let prepare = |realm: &mut Realm| {
        ticket(realm, "alice", "1h", &realm.cache(user()), user());
        Vec::new()
    };
    in_realm("a_user_gets_a_context", prepare, |place| {
        let (client, server, principal) = establish(&helpers(place), user()).unwrap();
        assert_eq!(principal, "alice@NFSRDMA.TEST");
        server.verify_mic(b"m", &mic(&client, b"m")).unwrap();
        let mut wrapped = wrap(&server, b"message");
        let place = client.unwrap(&mut wrapped).unwrap();
        assert_eq!(&wrapped[place], b"message");
        let left = client.expires().duration_since(SystemTime::now()).unwrap();
        assert!(left > Duration::from_secs(3000), "{left:?}");
    });
}

/// The newest cache that is the user's, whoever else has put something there.
#[test]
fn caches_are_found_by_their_name() {
    let prepare = |realm: &mut Realm| {
        let directory = scanned(realm.path(), user());
        let at = |name: &str| directory.join(name);
        ticket(realm, "alice", "1h", &at("krb5cc_old"), user());
        ticket(realm, "bob", "1h", &at("krb5cc_new"), user());
        ticket(realm, "alice", "1h", &at("other_name"), user());
        ticket(
            realm,
            "alice",
            "1h",
            &realm.path().join("elsewhere"),
            user(),
        );
        symlink(realm.path().join("elsewhere"), at("krb5cc_link")).unwrap();
        fs::write(at("krb5cc_noise"), b"noise").unwrap();
        if geteuid().is_root() {
            chown(at("krb5cc_noise"), Some(user()), Some(user())).unwrap();
            // Readable for the user, but of somebody else.
            ticket(realm, "alice", "1h", &at("krb5cc_theirs"), 0);
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            fs::set_permissions(at("krb5cc_theirs"), all).unwrap();
        }
        let age = |name: &str, seconds| {
            let file = fs::File::options().write(true).open(at(name)).unwrap();
            let then = SystemTime::now() - Duration::from_secs(seconds);
            file.set_modified(then).unwrap();
        };
        age("krb5cc_old", 20);
        age("krb5cc_new", 10);
        Vec::new()
    };
    in_realm("caches_are_found_by_their_name", prepare, |place| {
        let (.., principal) = establish(&helpers(place), user()).unwrap();
        assert_eq!(principal, "bob@NFSRDMA.TEST");
    });
}

/// Where krb5.conf has the caches of all users in one directory, a user may put one there for another,
/// who must not become somebody else at the server.
#[test]
fn a_cache_of_somebody_else_is_not_used() {
    if !geteuid().is_root() {
        println!("skipped: there is nobody else");
        return;
    }
    let prepare = |realm: &mut Realm| {
        let planted = realm.cache(user());
        ticket(realm, "alice", "1h", &planted, user() + 1);
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(&planted, all).unwrap();
        ticket(realm, "bob", "1h", &realm.path().join("bobs"), 0);
        scanned(realm.path(), user());
        Vec::new()
    };
    in_realm("a_cache_of_somebody_else_is_not_used", prepare, |place| {
        let helpers = helpers(place);
        assert_eq!(refusal(&helpers, user()), Kind::NoCredential);
        // Nor one that never ends.
        let cache = place.join(format!("krb5cc_{}", user()));
        fs::remove_file(&cache).unwrap();
        let made = Command::new("mkfifo").arg(&cache).status().unwrap();
        assert!(made.success());
        chown(&cache, Some(user()), Some(user())).unwrap();
        assert_eq!(refusal(&helpers, user()), Kind::NoCredential);
        // The user's own is found beside it.
        let own = place.join(format!("scanned-{}/krb5cc_own", user()));
        fs::write(&own, fs::read(place.join("bobs")).unwrap()).unwrap();
        chown(&own, Some(user()), Some(user())).unwrap();
        assert_eq!(establish(&helpers, user()).unwrap().2, "bob@NFSRDMA.TEST");
    });
}

/// Where krb5.conf has them: collections in a directory, and in the kernel's keyrings.
#[test]
fn caches_need_not_be_files() {
    let prepare = |realm: &mut Realm| {
        let configuration = fs::read_to_string(realm.config()).unwrap();
        let file = format!("FILE:{}/krb5cc_%{{uid}}", realm.path().display());
        let directory = scanned(realm.path(), user()).join("collection");
        [
            format!("DIR:{}", directory.display()),
            "KEYRING:persistent:%{uid}".to_owned(),
        ]
        .map(|name| {
            let path = realm.path().join(format!("{}.conf", &name[..3]));
            fs::write(&path, configuration.replace(&file, &name)).unwrap();
            path
        })
        .to_vec()
    };
    in_realm("caches_need_not_be_files", prepare, |place| {
        let run = |program: &str, words: &[&str]| {
            let mut command = Command::new(program);
            command
                .args(words)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if geteuid().is_root() {
                command.uid(user()).gid(user());
            }
            let mut child = command.spawn().unwrap();
            let _ = child.stdin.take().unwrap().write_all(b"alice\n");
            child.wait().unwrap().success()
        };
        if !run("kinit", &["alice"]) {
            println!("skipped: no tickets in keyrings here");
            return;
        }
        let made = establish(&helpers(place), user());
        run("kdestroy", &["-q"]);
        assert_eq!(made.unwrap().2, "alice@NFSRDMA.TEST");
    });
}

#[test]
fn what_is_missing_is_told() {
    let prepare = |realm: &mut Realm| {
        let short = scanned(realm.path(), user() + 1).join("krb5cc_short");
        ticket(realm, "alice", "1s", &short, user());
        ticket(realm, "alice", "1h", &realm.path().join("good"), user());
        Vec::new()
    };
    in_realm("what_is_missing_is_told", prepare, |place| {
        let helpers = helpers(place);
        assert_eq!(refusal(&helpers, user()), Kind::NoCredential);

        let mut of_short = helpers.clone();
        let short = place.join(format!("scanned-{}", user() + 1));
        of_short.directories = vec![short.to_str().unwrap().to_owned()];
        let until = Instant::now() + LIMIT;
        while establish(&of_short, user()).is_ok() {
            assert!(Instant::now() < until);
        }
        assert_eq!(refusal(&of_short, user()), Kind::Expired);

        // A good ticket, and a server that the realm does not know.
        let cache = place.join(format!("krb5cc_{}", user()));
        fs::rename(place.join("good"), cache).unwrap();
        assert!(establish(&helpers, user()).is_ok());
        let mut elsewhere = helpers.clone();
        elsewhere.target = "nfs@elsewhere".into();
        assert_eq!(refusal(&elsewhere, user()), Kind::NoServerKey);

        // A server whose token is not the one that was expected.
        let mut helper = helpers.start(user(), user()).unwrap();
        first_token(&mut helper).unwrap();
        let why = helper.step(Some(b"noise")).unwrap_err();
        assert_eq!(why.kind, Kind::Defective);

        let mut broken = helpers.clone();
        broken.program = "/bin/true".into();
        // Whether it has ended when the request is sent is not known.
        if let Ok(mut helper) = broken.start(user(), user()) {
            assert_eq!(helper.step(None).unwrap_err().kind, Kind::Other);
        }
    });
}

#[test]
fn root_has_the_keys_of_the_machine() {
    if !geteuid().is_root() {
        println!("skipped: only root makes contexts of root");
        return;
    }
    let prepare = |realm: &mut Realm| {
        // Root's own tickets are not those of the machine.
        ticket(realm, "alice", "1h", &realm.cache(0), 0);
        Vec::new()
    };
    in_realm("root_has_the_keys_of_the_machine", prepare, |place| {
        let helpers = helpers(place);
        let (.., principal) = establish(&helpers, 0).unwrap();
        assert_eq!(principal, "nfs/localhost@NFSRDMA.TEST");

        let mut none = helpers.clone();
        none.keytab = place.join("none").to_str().unwrap().into();
        let why = establish(&none, 0).unwrap_err();
        assert_eq!(why.kind, Kind::NoCredential);
        assert!(why.sentence.contains("/none cannot be read"), "{why}");
        // Users do not get the machine's rights.
        assert_eq!(refusal(&helpers, USER), Kind::NoCredential);
    });
}

#[test]
fn a_helper_is_the_user_and_nothing_else() {
    let prepare = |realm: &mut Realm| {
        ticket(realm, "alice", "1h", &realm.cache(user()), user());
        Vec::new()
    };
    in_realm("a_helper_is_the_user_and_nothing_else", prepare, |place| {
        let open = fs::File::create(place.join("left-open")).unwrap();
        let _without_cloexec = rustix::io::dup(&open).unwrap();
        let mut helper = helpers(place).start(user(), user()).unwrap();
        first_token(&mut helper).unwrap();
        let process = PathBuf::from(format!("/proc/{}", helper.id()));
        let status = fs::read_to_string(process.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().split_whitespace().collect::<Vec<_>>()
        };
        let number = user().to_string();
        assert_eq!(field("Uid:"), vec![&number; 4]);
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        let limits = fs::read_to_string(process.join("limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core"));
        let core = core.unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(core[core.len() - 3..], ["0", "0", "bytes"]);
        if geteuid().is_root() {
            assert_eq!(field("Gid:"), vec![&number; 4]);
            assert!(field("Groups:").is_empty());
            assert_eq!(field("CapPrm:"), ["0000000000000000"]);
            let environment = fs::read(process.join("environ")).unwrap();
            let configuration = std::env::var("KRB5_CONFIG").unwrap();
            assert_eq!(
                environment,
                format!("KRB5_CONFIG={configuration}\0").into_bytes()
            );
        }
        let soft = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!(soft("Max address space"), (512u64 << 20).to_string());
        assert_eq!(soft("Max cpu time"), "10");
        for descriptor in fs::read_dir(process.join("fd")).unwrap() {
            let what = fs::read_link(descriptor.unwrap().path()).unwrap();
            assert!(!what.ends_with("left-open"), "{what:?}");
        }
        // It ends with whoever asked for the context.
        drop(helper);
        let until = Instant::now() + LIMIT;
        while process.exists() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Users whose KDC is silent, more of them than contexts are begun at a time, hold back nobody.
#[test]
fn slow_users_are_not_waited_for_by_others() {
    const SLOW: u32 = 9;
    if !geteuid().is_root() {
        println!("skipped: only root makes contexts of several users");
        return;
    }
    let prepare = |realm: &mut Realm| {
        // With a ticket for the server no KDC is needed.
        let cache = realm.cache(USER);
        realm.kinit("alice", "1h", &cache).unwrap();
        let mut kvno = Command::new("kvno");
        kvno.arg("nfs/localhost").stdout(Stdio::null());
        kvno.env("KRB5_CONFIG", realm.config());
        assert!(kvno.env("KRB5CCNAME", &cache).status().unwrap().success());
        chown(&cache, Some(USER), Some(USER)).unwrap();
        for uid in USER + 1..=USER + SLOW {
            ticket(realm, "bob", "1h", &realm.cache(uid), uid);
        }
        realm.stop();
        Vec::new()
    };
    in_realm(
        "slow_users_are_not_waited_for_by_others",
        prepare,
        |place| {
            let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let mut helpers = helpers(place);
            helpers.config = Some(with_kdc(place, silent.local_addr().unwrap()));
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .unwrap();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let kerberos = Kerberos::new(helpers, address.port(), runtime.handle().clone());
            let kerberos = Arc::new(kerberos);
            let establish = |uid| {
                let kerberos = kerberos.clone();
                runtime.spawn(async move {
                    let cred: Cred = Arc::new(rpc::Credential {
                        uid,
                        gid: uid,
                        groups: Default::default(),
                    });
                    let made = kerberos.establish(address.ip(), Service::None, &cred);
                    made.await.map(drop)
                })
            };
            let slow: Vec<_> = (USER + 1..=USER + SLOW).map(establish).collect();
            // Each of them asks the KDC, so none waits for another one.
            let asked: Vec<_> = (0..SLOW).map(|_| silent.accept().unwrap()).collect();
            let quick = establish(USER);
            let (mut stream, _) = listener.accept().unwrap();
            answer_init(&mut stream, Fault::None).unwrap();
            runtime.block_on(quick).unwrap().unwrap();
            assert!(slow.iter().all(|one| !one.is_finished()));
            drop(asked);
            slow.iter().for_each(|one| one.abort());
            runtime.shutdown_background();
        },
    );
}

/// A KDC that takes calls and never answers.
#[test]
fn a_helper_ends_in_time() {
    in_realm(
        "a_helper_ends_in_time",
        |realm| {
            ticket(realm, "alice", "1h", &realm.cache(user()), user());
            realm.stop();
            Vec::new()
        },
        |place| {
            let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let silent = silent.local_addr().unwrap();
            let mut helpers = helpers(place);
            helpers.config = Some(with_kdc(place, silent));
            helpers.limit = Duration::from_millis(500);
            let began = Instant::now();
            // Nor does a cache that hangs.
            assert_eq!(refusal(&helpers, user()), Kind::NoCredential);
            assert!(began.elapsed() < Duration::from_secs(20));
        },
    );
}

/// Only the realm of this host, or of the server, is everybody's.
#[test]
fn a_realm_of_the_users_own_is_no_reason_to_wait() {
    const TEST: &str = "a_realm_of_the_users_own_is_no_reason_to_wait";
    let prepare = |realm: &mut Realm| {
        ticket(realm, "alice", "1h", &realm.cache(user()), user());
        realm.stop();
        // The same ticket, by a krb5.conf in which this host and the server are in another realm.
        let own = fs::read_to_string(realm.config()).unwrap();
        let other = own
            .replace("default_realm = NFSRDMA.TEST", "default_realm = OTHER.TEST")
            .replace("localhost = NFSRDMA.TEST", "localhost = OTHER.TEST");
        let unknown = other.replace(" NFSRDMA.TEST = {", " OTHER.TEST = {");
        let the_servers = own.replace("default_realm = NFSRDMA.TEST", "default_realm = OTHER.TEST");
        let mut written = vec![realm.config()];
        for (name, text) in [
            ("other", other),
            ("unknown", unknown),
            ("servers", the_servers),
        ] {
            let path = realm.path().join(format!("{name}.conf"));
            fs::write(&path, text).unwrap();
            written.push(path);
        }
        written
    };
    in_realm(TEST, prepare, |place| {
        let configuration = PathBuf::from(std::env::var_os("KRB5_CONFIG").unwrap());
        let waits = match configuration.file_stem().unwrap().to_str().unwrap() {
            "other" | "unknown" => Kind::NoCredential,
            _ => Kind::Realm,
        };
        assert_eq!(refusal(&helpers(place), user()), waits, "{configuration:?}");
    });
}

/// Of one cache that is no cache others are not refused, and its user is.
#[test]
fn a_malformed_cache_is_its_users_own() {
    let prepare = |realm: &mut Realm| {
        let cache = realm.cache(user());
        ticket(realm, "alice", "1h", &cache, user());
        Vec::new()
    };
    in_realm("a_malformed_cache_is_its_users_own", prepare, |place| {
        let cache = place.join(format!("krb5cc_{}", user()));
        let good = fs::read(&cache).unwrap();
        let helpers = helpers(place);
        let mut noise = good.clone();
        let middle = noise.len() / 2;
        noise[8..middle].fill(0xff);
        for bad in [&b"noise"[..], &[], &good[..good.len() / 2], &noise] {
            fs::write(&cache, bad).unwrap();
            let why = establish(&helpers, user()).expect_err("a bad cache");
            println!("{why}");
            let why = NoContext::from(why);
            assert!(matches!(why, NoContext::NoCredential(_)), "{why:?}");
        }
        let other = scanned(place, user()).join("krb5cc_good");
        fs::write(&other, &good).unwrap();
        if geteuid().is_root() {
            chown(&other, Some(user()), Some(user())).unwrap();
        }
        establish(&helpers, user()).unwrap();
    });
}

/// What a server does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The proof is of another window.
    Window,
    /// There is no proof.
    NoProof,
    /// The mechanism there fails.
    Mechanism,
    /// The call is denied.
    Denied,
}

/// Answers one INIT. Returns the server's context.
fn answer_init(stream: &mut TcpStream, fault: Fault) -> Option<Context> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut message = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut message).unwrap();
    let mut from = Decoder::new(&message);
    let call = Call::parse(&mut from).unwrap();
    let credential = Credential::of(&call.credential).unwrap();
    assert_eq!(credential, Ok(Credential::INIT));
    let args = InitArgs::from_xdr(from.rest()).unwrap();
    let mut accepting = Library::load().unwrap().acceptor(None).unwrap().accept();
    let step = accepting.step(args.token.0).unwrap();
    let (context, _) = accepting.into_context().unwrap();

    let proven: u32 = if fault == Fault::Window { 127 } else { 128 };
    let mic = mic(&context, &proven.to_be_bytes());
    let verifier = match fault {
        Fault::NoProof => Auth::None,
        _ => rpcsec_gss::verifier(&mic),
    };
    let reply = match fault {
        Fault::Denied => Reply::denied(call.xid, Denial::AuthError(AuthStat::GssCredProblem)),
        _ => Reply {
            xid: call.xid,
            body: ReplyBody::Accepted(verifier, Accepted::Success),
        },
    };
    let mut to = Encoder::default();
    reply.encode(&mut to);
    if fault != Fault::Denied {
        let results = InitRes {
            handle: Opaque(b"handle"),
            major: if fault == Fault::Mechanism {
                13 << 16
            } else {
                0
            },
            minor: 0,
            window: 128,
            token: Opaque(&step.token),
        };
        results.encode(&mut to);
    }
    let mark = record::mark(to.len(), true);
    stream.write_all(&mark).unwrap();
    stream.write_all(to.as_slice()).unwrap();
    Some(context)
}

#[test]
fn contexts_are_made_with_a_server() {
    let prepare = |realm: &mut Realm| {
        ticket(realm, "alice", "1h", &realm.cache(user()), user());
        Vec::new()
    };
    in_realm("contexts_are_made_with_a_server", prepare, |place| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let kerberos = Kerberos::new(helpers(place), address.port(), runtime.handle().clone());
        let cred = |uid| -> Cred {
            Arc::new(rpc::Credential {
                uid,
                gid: uid,
                groups: Default::default(),
            })
        };
        let establish = |cred: &Cred| {
            runtime.block_on(kerberos.establish(address.ip(), Service::Privacy, cred))
        };
        let with = |fault| {
            std::thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    answer_init(&mut stream, fault)
                });
                (establish(&cred(user())), server.join().unwrap())
            })
        };

        let (client, server) = with(Fault::None);
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!((client.handle(), client.window()), (&b"handle"[..], 128));
        assert_eq!(client.service(), Service::Privacy);
        assert!(client.expires().unwrap() > SystemTime::now());
        let mut own = vec![0; client.mic_len()];
        client.mic(&[b"mess", b"age"], &mut own).unwrap();
        server.verify_mic(b"message", &own).unwrap();
        assert!(client.verify(b"message", &mic(&server, b"message")));
        assert!(!client.verify(b"message", &own), "its own");
        let mut wrapped = vec![0; 7 + client.wrap_overhead()];
        client.wrap(&[b"message"], &mut wrapped).unwrap();
        let place = server.unwrap(&mut wrapped).unwrap();
        assert_eq!(&wrapped[place], b"message");
        assert!(client.wrap(&[b"longer message"], &mut wrapped).is_err());
        let mut wrapped = wrap(&server, b"results");
        let at = client.unwrap(&mut wrapped).unwrap();
        assert_eq!(&wrapped[at], b"results");
        assert_eq!(client.unwrap(&mut wrapped), None);

        for (fault, refused) in [
            (Fault::Window, true),
            (Fault::NoProof, true),
            (Fault::Mechanism, true),
            (Fault::Denied, false),
        ] {
            let why = with(fault).0.expect_err("a faulty server");
            println!("{why}");
            assert_eq!(matches!(why, NoContext::NoCredential(_)), refused, "{why}");
        }
        drop(listener);
        let why = establish(&cred(user())).expect_err("no server");
        assert!(matches!(why, NoContext::Unavailable(_)), "{why}");
        let why = establish(&cred(user() + 1)).expect_err("no ticket");
        assert!(matches!(why, NoContext::NoCredential(_)), "{why}");
    });
}

/// By itself, if whoever asked neither goes on nor ends.
#[test]
fn a_helper_ends_by_itself() {
    let prepare = |realm: &mut Realm| {
        ticket(realm, "alice", "1h", &realm.cache(user()), user());
        Vec::new()
    };
    in_realm("a_helper_ends_by_itself", prepare, |_| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut child = bare(OwnedFd::from(theirs));
        let request = Request {
            uid: user(),
            gid: user(),
            target: "nfs@localhost".into(),
            limit: 1,
            ..Request::default()
        };
        let message = request.to_xdr();
        ours.write_all(&(message.len() as u32).to_be_bytes())
            .unwrap();
        ours.write_all(&message).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(ALARM));
        let mut token = Vec::new();
        ours.read_to_end(&mut token).unwrap();
        assert!(token.len() > 100, "it waited for the server's");
    });
}

#[test]
fn a_helper_needs_a_request() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut child = bare(OwnedFd::from(theirs));
    (&ours).write_all(&[0, 0, 0, 4, 1, 2, 3, 4]).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(bare(Stdio::null()).wait().unwrap().code(), Some(1));
}

/// A helper that is started by hand.
fn bare(stdin: impl Into<Stdio>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nfsrdma"));
    command
        .arg("gss-helper")
        .stdin(stdin.into())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}
