//! Contexts between an initiator and an acceptor in a real realm. The library reads its configuration
//! from the environment of the process, so each test runs again in one that has it.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma_gss::{Acceptor, Context, Credential, Error, Initiator, Kind, Library, MAX_TOKEN_LEN};
use nfsrdma_test_support::{Realm, in_realm};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

fn library() -> Library {
    Library::load().unwrap()
}

fn cache(place: &Path, name: &str) -> String {
    format!("FILE:{}", place.join(name).display())
}

fn tickets(place: &Path, name: &str) -> Credential {
    library().tickets(Some(&cache(place, name))).unwrap()
}

fn initiator(place: &Path, name: &str) -> Initiator {
    let tickets = tickets(place, name);
    library().initiator(tickets, "nfs@localhost").unwrap()
}

/// The keys of krb5.conf's keytab.
fn acceptor() -> Acceptor {
    library().acceptor(None).unwrap()
}

/// Exchanges tokens until both sides have their context; also the initiator's principal.
fn establish(mut initiator: Initiator, acceptor: &Acceptor) -> (Context, Context, String) {
    let first = initiator
        .step(&[])
        .unwrap_or_else(|error| panic!("{}", error.text()));
    assert!(!first.done && !first.token.is_empty());
    let mut accepting = acceptor.accept();
    let reply = accepting
        .step(&first.token)
        .unwrap_or_else(|error| panic!("{}", error.text()));
    assert!(reply.done);
    let last = initiator.step(&reply.token).unwrap();
    assert!(last.done && last.token.is_empty());
    assert!(initiator.step(&reply.token).is_err(), "it is complete");
    let (server, principal) = accepting.into_context().unwrap();
    (initiator.into_context().unwrap(), server, principal)
}

fn kind<T>(result: Result<T, Error>) -> Kind {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => {
            println!("{error}: {}", error.text());
            error.kind()
        }
    }
}

/// A ticket of alice.
fn alice(realm: &mut Realm) -> Vec<PathBuf> {
    realm
        .kinit("alice", "1h", &realm.path().join("alice"))
        .unwrap();
    Vec::new()
}

fn mic(sender: &Context, message: &[u8]) -> Vec<u8> {
    let mut mic = vec![0; sender.mic_len()];
    // The pieces make no difference.
    let (first, second) = message.split_at(message.len() / 3);
    sender.mic(&[first, second], &mut mic).unwrap();
    mic
}

fn wrap(sender: &Context, message: &[u8]) -> Vec<u8> {
    let mut wrapped = vec![0; message.len() + sender.wrap_overhead()];
    let (first, second) = message.split_at(message.len() / 3);
    sender.wrap(&[first, second], &mut wrapped).unwrap();
    wrapped
}

fn unwrap(receiver: &Context, wrapped: &[u8]) -> Result<Vec<u8>, Error> {
    let mut wrapped = wrapped.to_vec();
    let place = receiver.unwrap(&mut wrapped)?;
    Ok(wrapped[place].to_vec())
}

/// What one protects the other accepts, and nothing else.
fn protect(sender: &Context, receiver: &Context) {
    for len in [0, 1, 4, 15, 16, 17, 31, 32, 33, 1000, 1 << 20] {
        let message: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let mic = mic(sender, &message);
        receiver.verify_mic(&message, &mic).unwrap();
        let wrapped = wrap(sender, &message);
        assert_eq!(unwrap(receiver, &wrapped).unwrap(), message, "{len}");
        assert_ne!(wrap(sender, &message)[16..], wrapped[16..], "a confounder");

        // Of another message, by the receiver itself, damaged, cut.
        let other = [&message[..], b"!"].concat();
        assert_eq!(kind(receiver.verify_mic(&other, &mic)), Kind::Defective);
        assert_eq!(kind(sender.verify_mic(&message, &mic)), Kind::Defective);
        for at in [0, 2, 8, 15, 16, wrapped.len() / 2, wrapped.len() - 1] {
            let mut damaged = wrapped.clone();
            damaged[at] ^= 1;
            assert_eq!(
                kind(unwrap(receiver, &damaged)),
                Kind::Defective,
                "{at} of {len}"
            );
            let mut damaged = mic.clone();
            let at = at.min(mic.len() - 1);
            damaged[at] ^= 1;
            assert_eq!(
                kind(receiver.verify_mic(&message, &damaged)),
                Kind::Defective
            );
        }
        for cut in [1, 8, 16, 40, wrapped.len() - 1] {
            assert_eq!(kind(unwrap(receiver, &wrapped[..cut])), Kind::Defective);
        }
        assert_eq!(kind(unwrap(sender, &wrapped)), Kind::Defective);
        assert_eq!(kind(receiver.verify_mic(&message, &[])), Kind::Defective);
        assert_eq!(
            kind(receiver.verify_mic(&message, &mic[..16])),
            Kind::Defective
        );
    }
}

#[test]
fn contexts_protect_messages() {
    in_realm("contexts_protect_messages", alice, |place| {
        let (client, server, principal) = establish(initiator(place, "alice"), &acceptor());
        assert_eq!(principal, "alice@NFSRDMA.TEST");
        protect(&client, &server);
        protect(&server, &client);
        // Messages may come in any order, and twice: RPC has numbers of its own (RFC 2203 section 5.2.2).
        let mics = [b"a", b"b"].map(|message| mic(&client, message));
        server.verify_mic(b"b", &mics[1]).unwrap();
        server.verify_mic(b"a", &mics[0]).unwrap();
        server.verify_mic(b"a", &mics[0]).unwrap();
    });
}

/// The sizes of a MIC, and of what wrapping adds, where this is the best encryption type.
#[test]
fn sizes_are_those_of_the_encryption_type() {
    const SIZES: [(&str, usize, usize); 4] = [
        ("aes256-cts-hmac-sha384-192", 40, 72),
        ("aes128-cts-hmac-sha256-128", 32, 64),
        ("aes128-cts-hmac-sha1-96", 28, 60),
        ("aes256-cts-hmac-sha1-96", 28, 60),
    ];
    let prepare = |realm: &mut Realm| {
        alice(realm);
        let ticket = SIZES[3].0;
        let one =
            |(name, ..): &(&str, _, _)| realm.configuration(name, &format!("{name} {ticket}"));
        SIZES.iter().map(|size| one(size).unwrap()).collect()
    };
    in_realm("sizes_are_those_of_the_encryption_type", prepare, |place| {
        let configuration = PathBuf::from(std::env::var_os("KRB5_CONFIG").unwrap());
        let name = configuration.file_name().unwrap().to_str().unwrap();
        let (_, mic, wrap) = SIZES.iter().find(|(enctype, ..)| *enctype == name).unwrap();
        // The ticket for the service is got here, and must not be kept for the next process.
        let mine = format!("{name}.cache");
        std::fs::copy(place.join("alice"), place.join(&mine)).unwrap();
        let (client, server, _) = establish(initiator(place, &mine), &acceptor());
        for context in [&client, &server] {
            assert_eq!((context.mic_len(), context.wrap_overhead()), (*mic, *wrap));
            assert!(context.is_fast());
        }
        // What is made here is what the library makes, and the reverse.
        let server = server.by_library();
        protect(&client, &server);
        protect(&server, &client);
    });
}

#[test]
fn a_context_goes_to_another_process() {
    in_realm("a_context_goes_to_another_process", alice, |place| {
        let (client, server, _) = establish(initiator(place, "alice"), &acceptor());
        let (sizes, expires) = ((client.mic_len(), client.wrap_overhead()), client.expires());
        let ahead = expires.duration_since(SystemTime::now()).unwrap();
        assert!(ahead > Duration::from_secs(3000) && ahead <= Duration::from_secs(3660));
        let exported = client.export().unwrap();
        assert_eq!(
            format!("{exported:?}"),
            format!("Exported({} B)", exported.len())
        );
        let client = library().import(&exported).unwrap();
        assert_eq!((client.mic_len(), client.wrap_overhead()), sizes);
        let same = client.expires().duration_since(expires);
        assert!(same.unwrap_or_else(|error| error.duration()) <= Duration::from_secs(2));

        server.verify_mic(b"m", &mic(&client, b"m")).unwrap();
        let wrapped = wrap(&server, b"message");
        assert_eq!(unwrap(&client, &wrapped).unwrap(), b"message");
        // It may be used by another thread.
        let mic = std::thread::spawn(move || mic(&client, b"t"));
        server.verify_mic(b"t", &mic.join().unwrap()).unwrap();

        assert!(library().import(&exported[..20]).is_err());
        assert!(library().import(&[]).is_err());
        assert_eq!(
            kind(library().import(&vec![0; MAX_TOKEN_LEN + 1])),
            Kind::Defective
        );
    });
}

#[test]
fn tickets_by_a_key() {
    in_realm("tickets_by_a_key", alice, |place| {
        let keytab = place.join("krb5.keytab");
        let by = |name| library().tickets_by_key(name, Some(keytab.to_str().unwrap()));
        let initiator = library().initiator(by("host/localhost").unwrap(), "nfs@localhost");
        let (.., principal) = establish(initiator.unwrap(), &acceptor());
        assert_eq!(principal, "host/localhost@NFSRDMA.TEST");
        assert_eq!(kind(by("root/localhost")), Kind::NoCredential);
        assert_eq!(
            kind(library().tickets_by_key("spare", Some("/nowhere"))),
            Kind::NoCredential
        );
    });
}

/// A context outlives its ticket: whoever uses it looks at the time.
#[test]
fn a_context_tells_when_it_expires() {
    let prepare = |realm: &mut Realm| {
        realm
            .kinit("alice", "2s", &realm.path().join("short"))
            .unwrap();
        Vec::new()
    };
    in_realm("a_context_tells_when_it_expires", prepare, |place| {
        let (client, server, _) = establish(initiator(place, "short"), &acceptor());
        let expires = client.expires();
        assert!(expires <= SystemTime::now() + Duration::from_secs(3));
        let mic = mic(&client, b"m");
        while SystemTime::now() < expires + Duration::from_secs(1) {
            std::thread::yield_now();
        }
        server.verify_mic(b"m", &mic).unwrap();
        let client = library().import(&client.export().unwrap()).unwrap();
        assert!(client.expires() <= SystemTime::now());
        assert_eq!(
            first_step(
                library().tickets(Some(&cache(place, "short"))),
                "nfs@localhost"
            ),
            Kind::Expired
        );
    });
}

/// The error of the first step.
fn first_step(tickets: Result<Credential, Error>, target: &str) -> Kind {
    kind(tickets.and_then(|tickets| library().initiator(tickets, target)?.step(&[])))
}

#[test]
fn what_is_missing_is_named() {
    let prepare = |realm: &mut Realm| {
        alice(realm);
        realm
            .kinit("alice", "1s", &realm.path().join("short"))
            .unwrap();
        Vec::new()
    };
    in_realm("what_is_missing_is_named", prepare, |place| {
        let tickets = |name: &str| library().tickets(Some(&cache(place, name)));
        assert_eq!(
            first_step(tickets("none"), "nfs@localhost"),
            Kind::NoCredential
        );
        assert_eq!(
            first_step(library().tickets(None), "nfs@localhost"),
            Kind::NoCredential
        );
        assert_eq!(
            first_step(tickets("alice"), "afs@localhost"),
            Kind::NoServerKey
        );
        assert_eq!(
            first_step(tickets("alice"), "nfs@elsewhere.invalid"),
            Kind::NoServerKey
        );

        // A ticket that expires.
        let until = Instant::now() + Duration::from_secs(20);
        let step = || {
            library()
                .initiator(tickets("short")?, "nfs@localhost")?
                .step(&[])
        };
        while step().is_ok() {
            assert!(Instant::now() < until);
        }
        assert_eq!(kind(step()), Kind::Expired);

        // An acceptor without a key, and tokens that are none.
        let none = library().acceptor(Some("/nowhere"));
        assert!(none.is_err() || none.unwrap().accept().step(&[1, 2, 3]).is_err());
        for token in [&b"noise"[..], &[0x60; 300]] {
            assert!(acceptor().accept().step(token).is_err());
        }
        assert_eq!(kind(acceptor().accept().step(&[])), Kind::Defective);
        let long = vec![0; MAX_TOKEN_LEN + 1];
        assert_eq!(kind(acceptor().accept().step(&long)), Kind::Defective);
        let mut began = initiator(place, "alice");
        let first = began.step(&[]).unwrap();
        assert_eq!(kind(began.step(b"noise")), Kind::Defective);
        assert!(began.into_context().is_err());
        let mut damaged = first.token.to_vec();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        assert!(acceptor().accept().step(&damaged).is_err());
    });
}

#[test]
fn a_realm_without_a_kdc() {
    let prepare = |realm: &mut Realm| {
        alice(realm);
        realm.stop();
        Vec::new()
    };
    in_realm("a_realm_without_a_kdc", prepare, |place| {
        let tickets = library().tickets(Some(&cache(place, "alice")));
        assert_eq!(first_step(tickets, "nfs@localhost"), Kind::Realm);
    });
}
