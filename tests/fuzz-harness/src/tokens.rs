//! The tokens of Kerberos contexts, from a peer that has the key, and from somebody who has not.

use nfsrdma_gss::support::{Peer, pair};
use std::sync::OnceLock;

/// Initiators and acceptors of contexts with a key, of each encryption type.
fn of_key(key: u8) -> Vec<[Peer; 2]> {
    (17..=20)
        .filter_map(|type_| pair(type_, &[key; 32]))
        .collect()
}

/// Initiator and acceptor of an encryption type.
pub(crate) fn peers(which: u8) -> &'static [Peer; 2] {
    static PEERS: OnceLock<Vec<[Peer; 2]>> = OnceLock::new();
    &PEERS.get_or_init(|| of_key(7))[usize::from(which % 4)]
}

/// Those for whom nobody makes anything.
fn strangers() -> &'static [[Peer; 2]] {
    static PEERS: OnceLock<Vec<[Peer; 2]>> = OnceLock::new();
    PEERS.get_or_init(|| of_key(8))
}

/// Changes a message by the first bytes of the input: bits turned at places, or the end cut off. Returns the changed
/// one, and the rest of the input.
pub(crate) fn changed<'a>(
    input: &'a [u8],
    make: impl FnOnce(&'a [u8]) -> Vec<u8>,
) -> (Vec<u8>, &'a [u8]) {
    let Some((&count, rest)) = input.split_first() else {
        return (make(input), input);
    };
    let len = (usize::from(count % 4) * 3).min(rest.len());
    let (changes, rest) = rest.split_at(len);
    let mut message = make(rest);
    for change in changes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]]));
        match (change[2], message.get_mut(at)) {
            (0, _) => message.truncate(at),
            (bits, Some(byte)) => *byte ^= bits,
            (_, None) => {}
        }
    }
    (message, rest)
}

/// Opens tokens. The first byte says of which encryption type, and whether the others are a token, a text that the peer
/// encrypts, or changes to a genuine token and its message.
pub fn tokens(bytes: &[u8]) {
    let Some((&kind, input)) = bytes.split_first() else {
        return;
    };
    let [client, server] = peers(kind);
    match kind >> 2 & 3 {
        0 => {
            // Of a key of its own: the fuzzer sees genuine tokens where they are compared below, and tries them here.
            let [client, _] = &strangers()[usize::from(kind % 4)];
            assert!(client.unwrap(&mut input.to_vec()).is_none(), "forged");
            let (mic, message) = input.split_at(client.mic_len().min(input.len()));
            assert!(!client.is_mic(message, mic), "forged");
        }
        1 => {
            let mut token = input.to_vec();
            if server.seal(&mut token).is_some()
                && let Some(place) = client.unwrap(&mut token)
            {
                assert_eq!(place.len() + client.wrap_overhead(), token.len());
                assert!(place.start <= place.end && place.end <= token.len());
            }
        }
        2 => {
            let mut genuine = Vec::new();
            let (mut token, message) = changed(input, |message| {
                genuine = vec![0; message.len() + server.wrap_overhead()];
                let wrapped = server.wrap(&[message], &mut genuine);
                assert!(wrapped.is_some(), "there is room");
                genuine.clone()
            });
            let same = token == genuine;
            match client.unwrap(&mut token) {
                Some(place) => assert!(same && token[place] == *message, "opened another one"),
                None => assert!(!same, "refuses a genuine one"),
            }
        }
        _ => {
            let mut genuine = vec![0; server.mic_len()];
            let (mic, message) = changed(input, |message| {
                server.mic(&[message], &mut genuine);
                genuine.clone()
            });
            assert_eq!(client.is_mic(message, &mic), mic == genuine);
        }
    }
}
