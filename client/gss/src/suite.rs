//! The encryption types of AES: CBC with ciphertext stealing, and an HMAC of SHA-1 (RFC 3962) or of SHA-2
//! (RFC 8009), with the keys that are derived for each usage.

use aes::cipher::{
    Block, BlockBackend, BlockCipher, BlockClosure, BlockDecrypt, BlockDecryptMut, BlockEncrypt,
    BlockSizeUser, InnerIvInit, KeyInit, consts::U16, inout::InOutBuf,
};
use aes::{Aes128, Aes256};
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha384};

/// Bytes of a block of AES.
pub(crate) const BLOCK: usize = 16;

/// What a key is derived for (RFC 3961 section 5.3).
#[derive(Clone, Copy)]
enum Purpose {
    Checksum = 0x99,
    Encryption = 0xaa,
    Integrity = 0x55,
}

/// An encryption type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suite {
    /// Bytes of a key.
    pub(crate) key: usize,
    /// Bytes of a checksum.
    pub(crate) hash: usize,
    /// Whether it is one of RFC 8009, whose checksum covers the ciphertext.
    newer: bool,
}

impl Suite {
    /// The suite of an encryption type's number, if it is one of these.
    pub(crate) fn of(enctype: u8) -> Option<Suite> {
        let (key, hash, newer) = match enctype {
            17 => (16, 12, false),
            18 => (32, 12, false),
            19 => (16, 16, true),
            20 => (32, 24, true),
            _ => return None,
        };
        Some(Suite { key, hash, newer })
    }

    /// A key that is derived from `base` (RFC 3961 section 5.1, RFC 8009 section 3).
    fn derive(self, base: &[u8], usage: u8, purpose: Purpose) -> Option<Vec<u8>> {
        let constant = [0, 0, 0, usage, purpose as u8];
        let encryption = matches!(purpose, Purpose::Encryption);
        if !self.newer {
            let aes = Aes::new(base)?;
            let mut block = fold(&constant);
            let mut key = Vec::with_capacity(self.key);
            while key.len() < self.key {
                aes.encrypt_block(&mut block);
                key.extend_from_slice(&block);
            }
            return Some(key);
        }
        // The checksum's keys are half as long as the hash.
        let len = match (self.key, encryption) {
            (32, true) => 32,
            (32, false) => 24,
            _ => 16,
        };
        let bits = (len as u32 * 8).to_be_bytes();
        let mut key = [0; 48];
        let of =
            Hash::new(self, base)?.whole(&[&1u32.to_be_bytes(), &constant, &[0], &bits], &mut key);
        key.get(..len.min(of)).map(<[u8]>::to_vec)
    }

    /// The key for checksums.
    pub(crate) fn checksum(self, base: &[u8], usage: u8) -> Option<Hash> {
        Hash::new(self, &self.derive(base, usage, Purpose::Checksum)?)
    }

    /// The keys for encryption.
    pub(crate) fn encryption(self, base: &[u8], usage: u8) -> Option<Sealing> {
        (base.len() == self.key).then_some(())?;
        Some(Sealing {
            suite: self,
            aes: Aes::new(&self.derive(base, usage, Purpose::Encryption)?)?,
            hash: Hash::new(self, &self.derive(base, usage, Purpose::Integrity)?)?,
        })
    }
}

/// Folds a constant of five bytes to a block (RFC 3961 section 5.1, "n-fold").
fn fold(constant: &[u8; 5]) -> [u8; BLOCK] {
    // The constant is repeated up to the common multiple of both lengths, each time rotated to the right by 13
    // bits more; blocks of the result are added with the carry of the highest bit to the lowest.
    const BITS: usize = 40;
    const REPEATED: usize = 80;
    let bit = |at: usize| (constant[at / 8 % 5] >> (7 - at % 8)) & 1;
    let mut repeated = [0u8; REPEATED];
    for at in 0..REPEATED * 8 {
        let (copy, within) = (at / BITS, at % BITS);
        let from = (within + BITS * 13 - copy * 13 % BITS) % BITS;
        repeated[at / 8] |= bit(from) << (7 - at % 8);
    }
    let mut sum = [0u8; BLOCK];
    for part in repeated.chunks_exact(BLOCK) {
        let mut carry = 0u16;
        for (total, byte) in sum.iter_mut().zip(part).rev() {
            carry += u16::from(*total) + u16::from(*byte);
            *total = carry as u8;
            carry >>= 8;
        }
        for total in sum.iter_mut().rev() {
            carry += u16::from(*total);
            *total = carry as u8;
            carry >>= 8;
        }
    }
    sum
}

/// A keyed checksum.
#[derive(Clone)]
pub(crate) struct Hash {
    len: usize,
    keyed: Keyed,
}

#[derive(Clone)]
enum Keyed {
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
}

fn finish<M: Mac + Clone>(keyed: &M, pieces: &[&[u8]], into: &mut [u8]) -> usize {
    let mut keyed = keyed.clone();
    pieces.iter().for_each(|piece| keyed.update(piece));
    let all = keyed.finalize().into_bytes();
    let len = all.len().min(into.len());
    into[..len].copy_from_slice(&all[..len]);
    len
}

fn is<M: Mac + Clone>(keyed: &M, pieces: &[&[u8]], hash: &[u8]) -> bool {
    let mut keyed = keyed.clone();
    pieces.iter().for_each(|piece| keyed.update(piece));
    keyed.verify_truncated_left(hash).is_ok()
}

impl Hash {
    fn new(suite: Suite, key: &[u8]) -> Option<Hash> {
        let keyed = match (suite.newer, suite.key) {
            (false, _) => Keyed::Sha1(KeyInit::new_from_slice(key).ok()?),
            (true, 16) => Keyed::Sha256(KeyInit::new_from_slice(key).ok()?),
            (true, _) => Keyed::Sha384(KeyInit::new_from_slice(key).ok()?),
        };
        Some(Hash {
            len: suite.hash,
            keyed,
        })
    }

    /// The whole hash, as far as there is room. Returns how much there is.
    fn whole(&self, pieces: &[&[u8]], into: &mut [u8]) -> usize {
        match &self.keyed {
            Keyed::Sha1(keyed) => finish(keyed, pieces, into),
            Keyed::Sha256(keyed) => finish(keyed, pieces, into),
            Keyed::Sha384(keyed) => finish(keyed, pieces, into),
        }
    }

    /// Puts the checksum of a message in pieces into the first bytes of `into`.
    pub(crate) fn put(&self, pieces: &[&[u8]], into: &mut [u8]) {
        let len = self.len.min(into.len());
        self.whole(pieces, &mut into[..len]);
    }

    /// Whether `hash` is the checksum; takes as long whatever differs.
    pub(crate) fn is(&self, pieces: &[&[u8]], hash: &[u8]) -> bool {
        hash.len() == self.len
            && match &self.keyed {
                Keyed::Sha1(keyed) => is(keyed, pieces, hash),
                Keyed::Sha256(keyed) => is(keyed, pieces, hash),
                Keyed::Sha384(keyed) => is(keyed, pieces, hash),
            }
    }
}

#[derive(Clone)]
enum Aes {
    Short(Box<Aes128>),
    Long(Box<Aes256>),
}

impl Aes {
    fn new(key: &[u8]) -> Option<Aes> {
        match key.len() {
            16 => Some(Aes::Short(Box::new(KeyInit::new_from_slice(key).ok()?))),
            _ => Some(Aes::Long(Box::new(KeyInit::new_from_slice(key).ok()?))),
        }
    }

    fn encrypt_block(&self, block: &mut [u8; BLOCK]) {
        match self {
            Aes::Short(aes) => aes.encrypt_block(block.into()),
            Aes::Long(aes) => aes.encrypt_block(block.into()),
        }
    }

    fn encrypt(&self, text: &mut [u8], mac: &mut impl Mac, covers: Covers) {
        match self {
            Aes::Short(aes) => encrypt(&**aes, text, mac, covers),
            Aes::Long(aes) => encrypt(&**aes, text, mac, covers),
        }
    }

    fn decrypt(&self, text: &mut [u8], mac: &mut impl Mac, covers: Covers) {
        match self {
            Aes::Short(aes) => decrypt(&**aes, text, mac, covers),
            Aes::Long(aes) => decrypt(&**aes, text, mac, covers),
        }
    }
}

/// What a checksum covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Covers {
    Plaintext,
    Ciphertext,
}

impl Covers {
    /// Adds a text that is `what` to the checksum, if that is what it covers.
    fn add(self, mac: &mut impl Mac, what: Covers, text: &[u8]) {
        if self == what {
            mac.update(text);
        }
    }
}

/// How many bytes cipher and checksum take in turns. An instruction of one of them waits for the one before it, but
/// not for those of the other: with turns so short the processor does both at once. Eight blocks are what the cipher
/// decrypts at once.
const TURN: usize = 8 * BLOCK;

/// The initial vector, which checksums of RFC 8009 cover.
const VECTOR: [u8; BLOCK] = [0; BLOCK];

/// Where the last two blocks of a text begin, of which the second may be shorter. The text is longer than a block.
fn last_blocks(text: &[u8]) -> usize {
    (text.len() - 1) / BLOCK * BLOCK - BLOCK
}

/// CBC of whole blocks. The chain stays in a register; that of the crate `cbc` goes through memory, which is waited for
/// with each block.
struct Chain<'a> {
    /// The ciphertext before.
    before: &'a mut Block<Self>,
    text: &'a mut [u8],
}

impl BlockSizeUser for Chain<'_> {
    type BlockSize = U16;
}

impl BlockClosure for Chain<'_> {
    #[inline(always)]
    fn call<B: BlockBackend<BlockSize = U16>>(self, backend: &mut B) {
        let mut chain = *self.before;
        for block in self.text.chunks_exact_mut(BLOCK) {
            for (byte, plain) in chain.iter_mut().zip(&*block) {
                *byte ^= plain;
            }
            backend.proc_block((&mut chain).into());
            block.copy_from_slice(&chain);
        }
        *self.before = chain;
    }
}

/// CBC with ciphertext stealing (RFC 3962 section 5), and a checksum.
fn encrypt<C>(aes: &C, text: &mut [u8], mac: &mut impl Mac, covers: Covers)
where
    C: BlockEncrypt + BlockCipher<BlockSize = U16>,
{
    let mut before = VECTOR.into();
    let mut chain = |text: &mut [u8]| {
        let before = &mut before;
        aes.encrypt_with_backend(Chain { before, text });
    };
    let (front, rest) = text.split_at_mut(last_blocks(text));
    for turn in front.chunks_mut(TURN) {
        covers.add(mac, Covers::Plaintext, turn);
        chain(turn);
        covers.add(mac, Covers::Ciphertext, turn);
    }
    covers.add(mac, Covers::Plaintext, rest);
    // The last two blocks change places, and the shorter one is cut off.
    let (whole, last) = rest.split_at_mut(BLOCK);
    chain(whole);
    let mut padded = [0; BLOCK];
    padded[..last.len()].copy_from_slice(last);
    chain(&mut padded);
    last.copy_from_slice(&whole[..last.len()]);
    whole.copy_from_slice(&padded);
    covers.add(mac, Covers::Ciphertext, rest);
}

/// The reverse of [`encrypt`].
fn decrypt<C>(aes: &C, text: &mut [u8], mac: &mut impl Mac, covers: Covers)
where
    C: BlockDecrypt + BlockCipher<BlockSize = U16> + Clone,
{
    let mut chain = cbc::Decryptor::inner_iv_init(aes.clone(), &Block::<C>::default());
    let (front, rest) = text.split_at_mut(last_blocks(text));
    for turn in front.chunks_mut(TURN) {
        covers.add(mac, Covers::Ciphertext, turn);
        let (blocks, _) = InOutBuf::from(&mut *turn).into_chunks();
        chain.decrypt_blocks_inout_mut(blocks);
        covers.add(mac, Covers::Plaintext, turn);
    }
    covers.add(mac, Covers::Ciphertext, rest);
    let (whole, last) = rest.split_at_mut(BLOCK);
    let mut before = Block::<C>::clone_from_slice(whole);
    aes.decrypt_block(&mut before);
    for (cipher, byte) in last.iter_mut().zip(before.iter_mut()) {
        let plain = *cipher ^ *byte;
        *byte = *cipher;
        *cipher = plain;
    }
    chain.decrypt_block_mut(&mut before);
    whole.copy_from_slice(&before);
    covers.add(mac, Covers::Plaintext, rest);
}

/// The keys for encryption with integrity.
pub(crate) struct Sealing {
    suite: Suite,
    aes: Aes,
    hash: Hash,
}

impl Sealing {
    fn covers(&self) -> Covers {
        match self.suite.newer {
            true => Covers::Ciphertext,
            false => Covers::Plaintext,
        }
    }

    fn begun<M: Mac + Clone>(&self, keyed: &M) -> M {
        let mut mac = keyed.clone();
        self.covers().add(&mut mac, Covers::Ciphertext, &VECTOR);
        mac
    }

    /// Encrypts `text`, which begins with a confounder, in place, and puts the checksum into `hash`.
    pub(crate) fn seal(&self, text: &mut [u8], hash: &mut [u8]) {
        match &self.hash.keyed {
            Keyed::Sha1(keyed) => self.seal_with(keyed, text, hash),
            Keyed::Sha256(keyed) => self.seal_with(keyed, text, hash),
            Keyed::Sha384(keyed) => self.seal_with(keyed, text, hash),
        }
    }

    fn seal_with<M: Mac + Clone>(&self, keyed: &M, text: &mut [u8], hash: &mut [u8]) {
        let mut mac = self.begun(keyed);
        self.aes.encrypt(text, &mut mac, self.covers());
        for (byte, made) in hash.iter_mut().zip(mac.finalize().into_bytes()) {
            *byte = made;
        }
    }

    /// Decrypts in place. Returns whether the checksum is right; if not, the text must not be used.
    pub(crate) fn open(&self, text: &mut [u8], hash: &[u8]) -> bool {
        match &self.hash.keyed {
            Keyed::Sha1(keyed) => self.open_with(keyed, text, hash),
            Keyed::Sha256(keyed) => self.open_with(keyed, text, hash),
            Keyed::Sha384(keyed) => self.open_with(keyed, text, hash),
        }
    }

    fn open_with<M: Mac + Clone>(&self, keyed: &M, text: &mut [u8], hash: &[u8]) -> bool {
        let mut mac = self.begun(keyed);
        self.aes.decrypt(text, &mut mac, self.covers());
        hash.len() == self.suite.hash && mac.verify_truncated_left(hash).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    }

    /// RFC 3962 appendix B, "chicken teriyaki" as the key and a zero initial vector.
    #[test]
    fn ciphertext_is_stolen_as_in_the_rfc() {
        let aes = Aes::new(b"chicken teriyaki").unwrap();
        let plain = b"I would like the General Gau's Chicken, please, and wonton soup.";
        for (len, expected) in [
            (17, "c6353568f2bf8cb4d8a580362da7ff7f 97"),
            (
                31,
                "fc00783e0efdb2c1d445d4c8eff7ed22 97687268d6ecccc0c07b25e25ecfe5",
            ),
            (
                32,
                "39312523a78662d5be7fcbcc98ebf5a8 97687268d6ecccc0c07b25e25ecfe584",
            ),
            (
                47,
                "97687268d6ecccc0c07b25e25ecfe584 b3fffd940c16a18c1b5549d2f838029e 39312523a78662d5be7fcbcc98ebf5",
            ),
            (
                48,
                "97687268d6ecccc0c07b25e25ecfe584 9dad8bbb96c4cdc03bc103e1a194bbd8 39312523a78662d5be7fcbcc98ebf5a8",
            ),
            (
                64,
                "97687268d6ecccc0c07b25e25ecfe584 39312523a78662d5be7fcbcc98ebf5a8 4807efe836ee89a526730dbc2f7bc840 \
                 9dad8bbb96c4cdc03bc103e1a194bbd8",
            ),
        ] {
            let mut text = plain[..len].to_vec();
            let mut mac = <Hmac<Sha1> as KeyInit>::new_from_slice(b"any").unwrap();
            aes.encrypt(&mut text, &mut mac, Covers::Plaintext);
            assert_eq!(text, bytes(expected), "{len}");
            aes.decrypt(&mut text, &mut mac, Covers::Plaintext);
            assert_eq!(text, plain[..len], "{len}");
        }
    }

    /// The checksum is that of the whole text, and the chain goes on from turn to turn.
    #[test]
    fn turns_make_what_one_pass_makes() {
        for enctype in 17..=20 {
            let suite = Suite::of(enctype).unwrap();
            let sealing = suite.encryption(&[7; 32][..suite.key], 22).unwrap();
            for len in (17..300).chain([4 * TURN + 31, 4 * TURN + 32, 4 * TURN + 33]) {
                let plain: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
                let (mut text, mut hash) = (plain.clone(), vec![0; suite.hash]);
                sealing.seal(&mut text, &mut hash);
                match suite.newer {
                    true => assert!(sealing.hash.is(&[&VECTOR, &text], &hash)),
                    false => assert!(sealing.hash.is(&[&plain], &hash)),
                }
                let mut chain = [0; BLOCK];
                let full = last_blocks(&text);
                for (plain, cipher) in plain[..full].chunks(BLOCK).zip(text.chunks(BLOCK)) {
                    chain
                        .iter_mut()
                        .zip(plain)
                        .for_each(|(to, byte)| *to ^= byte);
                    sealing.aes.encrypt_block(&mut chain);
                    assert_eq!(chain, *cipher);
                }
                assert!(sealing.open(&mut text, &hash));
                assert_eq!(text, plain, "{enctype} {len}");
            }
        }
    }

    /// RFC 8009 appendix A: keys for the usage 2, and what they make.
    #[test]
    fn keys_are_derived_as_in_the_rfc() {
        for (enctype, base, checksum, encryption, integrity) in [
            (
                19,
                "3705d96080c17728a0e800eab6e0d23c",
                "b31a018a48f54776f403e9a396325dc3",
                "9b197dd1e8c5609d6e67c3e37c62c72e",
                "9fda0e56ab2d85e1569a688696c26a6c",
            ),
            (
                20,
                "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52",
                "ef5718be86cc84963d8bbb5031e9f5c4ba41f28faf69e73d",
                "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49",
                "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f",
            ),
        ] {
            let suite = Suite::of(enctype).unwrap();
            for (purpose, expected) in [
                (Purpose::Checksum, checksum),
                (Purpose::Encryption, encryption),
                (Purpose::Integrity, integrity),
            ] {
                let key = suite.derive(&bytes(base), 2, purpose).unwrap();
                assert_eq!(key, bytes(expected), "{enctype}");
            }
        }
    }
}
