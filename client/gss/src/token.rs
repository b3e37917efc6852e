//! The tokens of single messages (RFC 4121 section 4.2), made and opened with a context's key, without the library:
//! it takes five times as long for them, and copies each message twice. What it makes of a sample is compared when a
//! context begins, so that no mistake here goes unseen.

use crate::suite::{BLOCK, Hash, Sealing, Suite};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const HEADER: usize = 16;
/// What a text begins with, so that equal texts differ.
const CONFOUNDER: usize = BLOCK;
const MIC_ID: [u8; 2] = [4, 4];
const WRAP_ID: [u8; 2] = [5, 4];
/// Flags of a token: sent by the acceptor, encrypted, with the acceptor's subkey.
const BY_ACCEPTOR: u8 = 1;
const SEALED: u8 = 2;
/// What may be in the flags of a context's tokens.
const OF_CONTEXT: u8 = 5;

/// Usages of keys (RFC 4121 section 2): of the acceptor and of the initiator.
const SEAL_USAGES: [u8; 2] = [22, 24];
const SIGN_USAGES: [u8; 2] = [23, 25];

/// The keys of one side.
struct Side {
    flags: u8,
    sign: Hash,
    seal: Sealing,
}

impl Side {
    fn new(suite: Suite, key: &[u8], flags: u8) -> Option<Side> {
        let which = usize::from(flags & BY_ACCEPTOR == 0);
        Some(Side {
            flags,
            sign: suite.checksum(key, SIGN_USAGES[which])?,
            seal: suite.encryption(key, SEAL_USAGES[which])?,
        })
    }

    /// The header of a MIC with this number.
    fn mic_header(&self, number: u64) -> [u8; HEADER] {
        let mut header = [0xff; HEADER];
        header[..2].copy_from_slice(&MIC_ID);
        header[2] = self.flags;
        header[8..].copy_from_slice(&number.to_be_bytes());
        header
    }

    /// The header of an encrypted message. There are no extra bytes, and nothing is rotated.
    fn wrap_header(&self, number: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&WRAP_ID);
        header[2] = self.flags | SEALED;
        header[3] = 0xff;
        header[8..].copy_from_slice(&number.to_be_bytes());
        header
    }

    fn is_mic(&self, message: &[&[u8]], mic: &[u8]) -> bool {
        let Some((header, hash)) = mic.split_at_checked(HEADER) else {
            return false;
        };
        let pieces: Vec<_> = message.iter().copied().chain([header]).collect();
        header[..8] == self.mic_header(0)[..8] && self.sign.is(&pieces, hash)
    }

    /// Opens a wrapped message in place.
    fn unwrap(&self, hash: usize, wrapped: &mut [u8]) -> Option<Range<usize>> {
        let len = wrapped.len().checked_sub(2 * HEADER + CONFOUNDER + hash)?;
        let (header, rest) = wrapped.split_at_mut(HEADER);
        let (text, checksum) = rest.split_at_mut(CONFOUNDER + len + HEADER);
        let right = header[..8] == self.wrap_header(0)[..8]
            && self.seal.open(text, checksum)
            && text[CONFOUNDER + len..] == *header;
        let begin = HEADER + CONFOUNDER;
        right.then_some(begin..begin + len)
    }
}

/// The keys of a context.
pub(crate) struct Keys {
    ours: Side,
    theirs: Side,
    hash: usize,
    next: AtomicU64,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// The keys of a context whose base key is `key`. `mic` and `wrapped` are what the library makes of `sample` with
    /// it. `None` if these are not what is made here.
    pub(crate) fn new(
        enctype: u8,
        key: &[u8],
        sample: &[u8],
        mic: &[u8],
        wrapped: &[u8],
    ) -> Option<Keys> {
        let suite = Suite::of(enctype)?;
        let flags = mic.get(2)? & OF_CONTEXT;
        let last = wrapped.get(8..HEADER)?.try_into().ok()?;
        let keys = Keys {
            ours: Side::new(suite, key, flags)?,
            theirs: Side::new(suite, key, flags ^ BY_ACCEPTOR)?,
            hash: suite.hash,
            next: AtomicU64::new(u64::from_be_bytes(last) + 1),
        };
        let mut wrapped = wrapped.to_vec();
        let text = keys.ours.unwrap(keys.hash, &mut wrapped)?;
        (keys.ours.is_mic(&[sample], mic) && wrapped[text] == *sample).then_some(keys)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the MIC of a message in pieces. `mic` is as long as MICs are.
    pub(crate) fn mic(&self, message: &[&[u8]], mic: &mut [u8]) {
        let header = self.ours.mic_header(self.number());
        let pieces: Vec<_> = message.iter().copied().chain([&header[..]]).collect();
        mic[..HEADER].copy_from_slice(&header);
        self.ours.sign.put(&pieces, &mut mic[HEADER..]);
    }

    /// Whether it is the peer's MIC of the message.
    pub(crate) fn is_mic(&self, message: &[u8], mic: &[u8]) -> bool {
        self.theirs.is_mic(&[message], mic)
    }

    /// Encrypts a message in pieces into `wrapped`, which is longer by what wrapping adds. `None` if the system has no
    /// random bytes.
    pub(crate) fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Option<()> {
        let header = self.ours.wrap_header(self.number());
        let (head, rest) = wrapped.split_at_mut_checked(HEADER)?;
        head.copy_from_slice(&header);
        let at = rest
            .len()
            .checked_sub(self.hash)
            .filter(|at| *at > CONFOUNDER)?;
        let (text, hash) = rest.split_at_mut(at);
        let (confounder, mut rest) = text.split_at_mut(CONFOUNDER);
        getrandom::fill(confounder).ok()?;
        for piece in message.iter().copied().chain([&header[..]]) {
            let (to, more) = rest.split_at_mut_checked(piece.len())?;
            to.copy_from_slice(piece);
            rest = more;
        }
        rest.is_empty().then_some(())?;
        self.ours.seal.seal(text, hash);
        Some(())
    }

    /// Whether [`Keys::unwrap`] opens such a message: Windows rotates what it encrypts.
    pub(crate) fn opens(&self, wrapped: &[u8]) -> bool {
        wrapped.get(4..8) == Some(&[0; 4])
    }

    /// Decrypts in place what the peer has wrapped. Returns where the message is.
    pub(crate) fn unwrap(&self, wrapped: &mut [u8]) -> Option<Range<usize>> {
        self.theirs.unwrap(self.hash, wrapped)
    }
}

/// Initiator and acceptor of a context with an acceptor's subkey, without the library; of `key` as much as the
/// encryption type takes.
#[cfg(any(test, feature = "test-support"))]
pub(crate) fn both(enctype: u8, key: &[u8; 32]) -> Option<[Keys; 2]> {
    let suite = Suite::of(enctype)?;
    let key = &key[..suite.key];
    let keys = |ours, theirs| {
        Some(Keys {
            ours: Side::new(suite, key, ours)?,
            theirs: Side::new(suite, key, theirs)?,
            hash: suite.hash,
            next: AtomicU64::new(0),
        })
    };
    Some([keys(4, 5)?, keys(5, 4)?])
}

#[cfg(feature = "test-support")]
impl Keys {
    /// What a MIC has, and what wrapping adds, in bytes.
    pub(crate) fn added(&self) -> [usize; 2] {
        [HEADER + self.hash, 2 * HEADER + CONFOUNDER + self.hash]
    }

    /// Encrypts whatever is after a token's header.
    pub(crate) fn seal(&self, token: &mut [u8]) -> Option<()> {
        let text = token.get_mut(HEADER..)?;
        let at = text.len().checked_sub(self.hash);
        let (text, hash) = text.split_at_mut(at.filter(|at| *at > BLOCK)?);
        self.ours.seal.seal(text, hash);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(enctype: u8) -> (Keys, Keys) {
        let [client, server] = both(enctype, &[7; 32]).unwrap();
        (client, server)
    }

    /// Whatever is cut off or changed is noticed, and nothing is read outside of a token.
    #[test]
    fn damaged_tokens_are_refused() {
        for enctype in 17..=20 {
            let (client, server) = pair(enctype);
            for len in [0, 1, 16, 33] {
                let message = vec![9; len];
                let mut mic = vec![0; HEADER + client.hash];
                client.mic(&[&message], &mut mic);
                assert!(server.is_mic(&message, &mic) && !client.is_mic(&message, &mic));
                let mut wrapped = vec![0; len + 2 * HEADER + CONFOUNDER + client.hash];
                client.wrap(&[&message], &mut wrapped).unwrap();
                let opened = |bytes: &[u8]| {
                    let mut bytes = bytes.to_vec();
                    let place = server.opens(&bytes).then(|| server.unwrap(&mut bytes))??;
                    Some(bytes[place].to_vec())
                };
                assert_eq!(opened(&wrapped), Some(message.clone()));
                for at in 0..wrapped.len() {
                    let mut damaged = wrapped.clone();
                    damaged[at] ^= 1;
                    assert_eq!(opened(&damaged), None, "{at}");
                    assert_eq!(opened(&wrapped[..at]), None, "{at}");
                }
                for at in 0..mic.len() {
                    let mut damaged = mic.clone();
                    damaged[at] ^= 1;
                    assert!(
                        !server.is_mic(&message, &damaged) && !server.is_mic(&message, &mic[..at])
                    );
                }
            }
            assert!(client.wrap(&[b"message"], &mut [0; 40]).is_none());
        }
    }

    /// Only what the library makes as well is made here.
    #[test]
    fn another_key_is_not_used() {
        let (client, _) = pair(18);
        let (mut mic, mut wrapped) = (vec![0; 28], vec![0; 66]);
        client.mic(&[b"sample"], &mut mic);
        client.wrap(&[b"sample"], &mut wrapped).unwrap();
        let keys = |enctype, key| Keys::new(enctype, key, b"sample", &mic, &wrapped);
        assert!(keys(18, &[7; 32]).is_some());
        assert!(keys(18, &[8; 32]).is_none() && keys(20, &[7; 32]).is_none());
        assert!(keys(18, &[7; 16]).is_none() && keys(23, &[7; 16]).is_none());
    }
}
