//! The messages between the serving process and a helper: a length, and as many bytes in XDR. Neither
//! side believes the other's lengths.
//!
//! The serving process sends a [`Request`]. The helper answers each message with an [`Answer`]: with
//! tokens, to which the serving process returns those of the server, and at last with the context, or
//! why there is none.

use nfsrdma_gss::{Kind, MAX_TOKEN_LEN};
use nfsrdma_xdr::codec::{self, Decode, DecodeError, Decoder, Encode, Encoder};
use std::fmt;
use std::io::{self, Read, Write};

/// Longest path, name or sentence in bytes.
const MAX_TEXT: usize = 4096;
/// Most directories.
const MAX_DIRECTORIES: usize = 16;
/// Longest message in bytes.
const MAX_MESSAGE: usize = MAX_TOKEN_LEN + (MAX_DIRECTORIES + 4) * (MAX_TEXT + 8);

/// What a helper is to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// Whose context it will be. Root's is the machine's.
    pub uid: u32,
    pub gid: u32,
    /// The service, like `nfs@server.example.org`.
    pub target: String,
    /// The file with the machine's keys.
    pub keytab: String,
    /// Where ticket caches `krb5cc_*` of the user may be, besides where krb5.conf has them.
    pub directories: Vec<String>,
    /// After how many seconds the helper ends by itself.
    pub limit: u32,
}

impl Encode for Request {
    fn encode(&self, to: &mut Encoder) {
        to.u32(self.uid);
        to.u32(self.gid);
        to.opaque(self.target.as_bytes());
        to.opaque(self.keytab.as_bytes());
        to.u32(self.directories.len() as u32);
        for directory in &self.directories {
            to.opaque(directory.as_bytes());
        }
        to.u32(self.limit);
    }
}

impl Decode<'_> for Request {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        let (uid, gid) = (from.u32()?, from.u32()?);
        let (target, keytab) = (text(from)?, text(from)?);
        let count = from.u32()? as usize;
        if count > MAX_DIRECTORIES {
            return Err(DecodeError::TooLong {
                what: "directories",
                length: count,
                bound: MAX_DIRECTORIES,
            });
        }
        Ok(Request {
            uid,
            gid,
            target,
            keytab,
            directories: (0..count).map(|_| text(from)).collect::<Result<_, _>>()?,
            limit: from.u32()?,
        })
    }
}

fn text(from: &mut Decoder<'_>) -> codec::Result<String> {
    let bytes = from.opaque("text", MAX_TEXT)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Inconsistent("text is not UTF-8"))
}

/// Bytes with keys in them, which are overwritten when they are dropped. `Debug` shows their number.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0.len())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Otherwise the compiler might see that nobody reads these zeros.
        std::hint::black_box(&self.0);
    }
}

/// What a helper answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// For the server.
    Token(Secret),
    /// The exported context.
    Context(Secret),
    /// There is no context.
    Refused(Refusal),
}

/// Why a user has no context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub kind: Kind,
    /// One sentence with the remedy, which names no principal.
    pub sentence: String,
}

impl From<nfsrdma_gss::Error> for Refusal {
    fn from(error: nfsrdma_gss::Error) -> Self {
        Refusal {
            kind: error.kind(),
            sentence: error.to_string(),
        }
    }
}

impl Refusal {
    pub(crate) fn new(kind: Kind, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        Refusal { kind, sentence }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Encode for Answer {
    fn encode(&self, to: &mut Encoder) {
        match self {
            Answer::Token(bytes) => {
                to.u32(0);
                to.opaque(&bytes.0);
            }
            Answer::Context(bytes) => {
                to.u32(1);
                to.opaque(&bytes.0);
            }
            Answer::Refused(refusal) => {
                to.u32(2);
                let number = Kind::ALL.iter().position(|kind| *kind == refusal.kind);
                to.u32(number.unwrap_or(usize::MAX) as u32);
                to.opaque(refusal.sentence.as_bytes());
            }
        }
    }
}

impl Decode<'_> for Answer {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        let bytes = |from: &mut Decoder<'_>| {
            let bytes = from.opaque("token or context", MAX_TOKEN_LEN)?;
            Ok(Secret(bytes.to_vec()))
        };
        match from.u32()? {
            0 => Ok(Answer::Token(bytes(from)?)),
            1 => Ok(Answer::Context(bytes(from)?)),
            2 => {
                let value = from.u32()?;
                let kind = Kind::ALL.get(value as usize).copied();
                let kind = kind.ok_or(DecodeError::Undefined {
                    what: "kind of refusal",
                    value,
                })?;
                let sentence = text(from)?;
                Ok(Answer::Refused(Refusal { kind, sentence }))
            }
            value => Err(DecodeError::Undefined {
                what: "answer",
                value,
            }),
        }
    }
}

/// Sends a message.
pub(crate) fn send(to: &mut impl Write, message: Vec<u8>) -> io::Result<()> {
    let message = Secret(message);
    if message.0.len() > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    to.write_all(&(message.0.len() as u32).to_be_bytes())?;
    to.write_all(&message.0)
}

/// Receives a message.
pub(crate) fn receive(from: &mut impl Read) -> io::Result<Secret> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = Secret(vec![0; length]);
    from.read_exact(&mut message.0)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            uid: 1000,
            gid: 100,
            target: "nfs@server".into(),
            keytab: "/etc/krb5.keytab".into(),
            directories: vec!["/tmp".into(), "/run/user/1000".into()],
            limit: 30,
        }
    }

    #[test]
    fn messages_survive() {
        let mut stream = Vec::new();
        send(&mut stream, request().to_xdr()).unwrap();
        assert_eq!(stream[..4], [0, 0, 0, stream.len() as u8 - 4]);
        let received = receive(&mut &stream[..]).unwrap();
        assert_eq!(Request::from_xdr(&received.0), Ok(request()));
        for kind in Kind::ALL {
            let answers = [
                Answer::Token(Secret(b"token".to_vec())),
                Answer::Context(Secret(vec![7; MAX_TOKEN_LEN])),
                Answer::Refused(Refusal::new(*kind, kind.to_string())),
            ];
            for answer in answers {
                let bytes = answer.to_xdr();
                assert_eq!(Answer::from_xdr(&bytes).as_ref(), Ok(&answer));
                for len in 0..bytes.len().min(200) {
                    assert!(Answer::from_xdr(&bytes[..len]).is_err());
                }
            }
        }
    }

    #[test]
    fn lengths_are_bounded() {
        assert!(receive(&mut &[0xff, 0xff, 0xff, 0xff, 0][..]).is_err());
        assert!(receive(&mut &[0, 0, 0, 2, 0][..]).is_err());
        assert!(send(&mut Vec::new(), vec![0; MAX_MESSAGE + 1]).is_err());
        let long = Answer::Token(Secret(vec![0; MAX_TOKEN_LEN + 1]));
        assert!(Answer::from_xdr(&long.to_xdr()).is_err());
        let mut many = request();
        many.directories = vec![String::new(); MAX_DIRECTORIES + 1];
        assert!(Request::from_xdr(&many.to_xdr()).is_err());
    }

    #[test]
    fn secrets_are_not_shown() {
        let answer = Answer::Context(Secret(b"key".to_vec()));
        assert_eq!(format!("{answer:?}"), "Context(3 B)");
    }
}
