//! ONC RPC version 2 call and reply headers (RFC 5531 section 9).
//!
//! Decoding leaves the decoder at the first byte of the arguments or results.

use crate::codec::{self, Decode, DecodeError, Decoder, Encode, Encoder, xdr_enum};
use smallvec::SmallVec;
use thiserror::Error;

/// The RPC version (RFC 5531 section 9).
pub const VERSION: u32 = 2;
/// Longest body of a credential or verifier, in bytes (RFC 5531 section 8.2).
pub const MAX_AUTH_LEN: usize = 400;
/// Longest machine name of AUTH_SYS, in bytes (RFC 5531 appendix A).
pub const MAX_MACHINE_LEN: usize = 255;
/// Largest number of supplementary groups in AUTH_SYS (RFC 5531 appendix A).
pub const MAX_GROUPS: usize = 16;
/// Encoded length of the header of a successful reply with an AUTH_NONE verifier.
pub const REPLY_LEN: usize = 24;
/// Encoded length of the longest reply header: a full verifier, PROG_MISMATCH.
pub const MAX_REPLY_LEN: usize = REPLY_LEN + MAX_AUTH_LEN + 8;
/// Encoded length of the longest call header: full credential and verifier.
pub const MAX_CALL_LEN: usize = CALL_HEAD_LEN + 2 * (8 + MAX_AUTH_LEN);

/// Encoded length of a call's header before its credential.
pub const CALL_HEAD_LEN: usize = 24;

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// auth_flavor numbers (RFC 5531 section 8.2).
pub mod flavor {
    pub const NONE: u32 = 0;
    pub const SYS: u32 = 1;
    pub const SHORT: u32 = 2;
    pub const DH: u32 = 3;
    pub const RPCSEC_GSS: u32 = 6;
}

/// authsys_parms: the identity of the caller, which it claims without proof (RFC 5531 appendix A).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSys<'a> {
    pub stamp: u32,
    /// At most [`MAX_MACHINE_LEN`] bytes are encoded.
    pub machine: &'a [u8],
    pub uid: u32,
    pub gid: u32,
    /// At most [`MAX_GROUPS`] are encoded.
    pub groups: SmallVec<[u32; MAX_GROUPS]>,
}

impl AuthSys<'_> {
    fn wire_parts(&self) -> (&[u8], &[u32]) {
        let machine = &self.machine[..self.machine.len().min(MAX_MACHINE_LEN)];
        let groups = &self.groups[..self.groups.len().min(MAX_GROUPS)];
        (machine, groups)
    }

    fn encoded_len(&self) -> usize {
        let (machine, groups) = self.wire_parts();
        4 + 4 + codec::roundup(machine.len()) + 4 + 4 + 4 + 4 * groups.len()
    }
}

impl Encode for AuthSys<'_> {
    // stamp, machine name, uid, gid, n gid ... gid
    fn encode(&self, to: &mut Encoder) {
        let (machine, groups) = self.wire_parts();
        to.u32(self.stamp);
        to.opaque(machine);
        to.u32(self.uid);
        to.u32(self.gid);
        to.u32(groups.len() as u32);
        for group in groups {
            to.u32(*group);
        }
    }
}

impl<'a> Decode<'a> for AuthSys<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        let stamp = from.u32()?;
        let machine = from.opaque("machine name", MAX_MACHINE_LEN)?;
        let uid = from.u32()?;
        let gid = from.u32()?;
        let groups = from.integers("AUTH_SYS groups", MAX_GROUPS)?;
        Ok(AuthSys {
            stamp,
            machine,
            uid,
            gid,
            groups,
        })
    }
}

/// opaque_auth: a credential or verifier (RFC 5531 section 8.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth<'a> {
    /// AUTH_NONE. Its body, which the RFC leaves undefined, is ignored.
    None,
    Sys(AuthSys<'a>),
    /// Any other flavor, and AUTH_SYS whose body is not authsys_parms: a server answers that with
    /// AUTH_BADCRED, for which it needs the rest of the header.
    Other {
        flavor: u32,
        /// At most [`MAX_AUTH_LEN`] bytes.
        body: &'a [u8],
    },
}

impl Auth<'_> {
    /// The flavor's number.
    pub fn flavor(&self) -> u32 {
        match self {
            Auth::None => flavor::NONE,
            Auth::Sys(_) => flavor::SYS,
            Auth::Other { flavor, .. } => *flavor,
        }
    }

    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        8 + match self {
            Auth::None => 0,
            Auth::Sys(sys) => sys.encoded_len(),
            Auth::Other { body, .. } => codec::roundup(body.len()),
        }
    }
}

impl Encode for Auth<'_> {
    // flavor, body length, body
    fn encode(&self, to: &mut Encoder) {
        to.u32(self.flavor());
        match self {
            Auth::None => to.u32(0),
            Auth::Sys(sys) => {
                to.u32(sys.encoded_len() as u32);
                sys.encode(to);
            }
            Auth::Other { body, .. } => to.opaque(body),
        }
    }
}

impl<'a> Decode<'a> for Auth<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        let flavor = from.u32()?;
        let body = from.opaque("credential or verifier", MAX_AUTH_LEN)?;
        Ok(match flavor {
            flavor::NONE => Auth::None,
            flavor::SYS => match AuthSys::from_xdr(body) {
                Ok(sys) => Auth::Sys(sys),
                Err(_) => Auth::Other { flavor, body },
            },
            flavor => Auth::Other { flavor, body },
        })
    }
}

/// Appends the header of a call up to its credential.
pub(crate) fn encode_call_head(
    xid: u32,
    program: u32,
    version: u32,
    procedure: u32,
    to: &mut Encoder,
) {
    for word in [xid, CALL, VERSION, program, version, procedure] {
        to.u32(word);
    }
}

/// The header of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<'a> {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: Auth<'a>,
    pub verifier: Auth<'a>,
}

/// Why bytes are not a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CallError {
    /// The message cannot be answered and must be dropped.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// The message must be answered with [`Denial::RpcMismatch`].
    #[error("RPC version {version} is not spoken here")]
    RpcVersion { xid: u32, version: u32 },
}

impl<'a> Call<'a> {
    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        self.signed_len() + self.verifier.encoded_len()
    }

    /// Encoded length up to the end of the credential: what a verifier of RPCSEC_GSS signs (RFC
    /// 2203 section 5.3.1).
    pub fn signed_len(&self) -> usize {
        CALL_HEAD_LEN + self.credential.encoded_len()
    }

    /// Decodes a call's header. An unknown version, which must be answered, is a different error
    /// from bytes that cannot be answered.
    pub fn parse(from: &mut Decoder<'a>) -> Result<Self, CallError> {
        let xid = from.u32()?;
        expect_kind(from, CALL)?;
        let version = from.u32()?;
        if version != VERSION {
            return Err(CallError::RpcVersion { xid, version });
        }
        Ok(Call {
            xid,
            program: from.u32()?,
            version: from.u32()?,
            procedure: from.u32()?,
            credential: Auth::decode(from)?,
            verifier: Auth::decode(from)?,
        })
    }
}

impl Encode for Call<'_> {
    // xid CALL 2 program version procedure, credential, verifier
    fn encode(&self, to: &mut Encoder) {
        encode_call_head(self.xid, self.program, self.version, self.procedure, to);
        self.credential.encode(to);
        self.verifier.encode(to);
    }
}

impl<'a> Decode<'a> for Call<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        Call::parse(from).map_err(|error| match error {
            CallError::Malformed(error) => error,
            CallError::RpcVersion { version, .. } => DecodeError::Undefined {
                what: "RPC version",
                value: version,
            },
        })
    }
}

/// The encoded header of calls that differ only in XID and procedure; encoded once for each
/// credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTemplate {
    bytes: Box<[u8]>,
}

impl CallTemplate {
    /// The header of calls to this version of a program, with an AUTH_NONE verifier.
    pub fn new(program: u32, version: u32, credential: Auth<'_>) -> Self {
        let call = Call {
            xid: 0,
            program,
            version,
            procedure: 0,
            credential,
            verifier: Auth::None,
        };
        CallTemplate {
            bytes: call.to_xdr().into_boxed_slice(),
        }
    }

    /// Appends the header of one call.
    pub fn encode(&self, xid: u32, procedure: u32, to: &mut Encoder) {
        let at = to.len();
        to.opaque_fixed(&self.bytes);
        to.put_u32(at, xid);
        to.put_u32(at + 20, procedure);
    }

    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        self.bytes.len()
    }
}

xdr_enum! {
    /// auth_stat: why a credential or verifier was refused (RFC 5531 section 9).
    AuthStat {
        Ok = 0,
        BadCred = 1,
        RejectedCred = 2,
        BadVerf = 3,
        RejectedVerf = 4,
        TooWeak = 5,
        InvalidResp = 6,
        Failed = 7,
        KerbGeneric = 8,
        TimeExpire = 9,
        TktFile = 10,
        Decode = 11,
        NetAddr = 12,
        GssCredProblem = 13,
        GssCtxProblem = 14,
    }
}

/// accept_stat with its data: the outcome of an accepted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// The results follow.
    Success,
    ProgUnavail,
    /// The server has versions `low` to `high` of the program.
    ProgMismatch {
        low: u32,
        high: u32,
    },
    ProcUnavail,
    GarbageArgs,
    SystemErr,
}

/// rejected_reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The server speaks RPC versions `low` to `high`.
    RpcMismatch {
        low: u32,
        high: u32,
    },
    AuthError(AuthStat),
}

/// reply_body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    Accepted(Auth<'a>, Accepted),
    Denied(Denial),
}

/// The header of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<'a> {
    pub xid: u32,
    pub body: ReplyBody<'a>,
}

impl Reply<'_> {
    /// The reply to an accepted call, with an AUTH_NONE verifier.
    pub fn accepted(xid: u32, status: Accepted) -> Self {
        Reply {
            xid,
            body: ReplyBody::Accepted(Auth::None, status),
        }
    }

    /// The reply to a refused call.
    pub fn denied(xid: u32, denial: Denial) -> Self {
        Reply {
            xid,
            body: ReplyBody::Denied(denial),
        }
    }

    /// Whether results follow.
    pub fn is_success(&self) -> bool {
        matches!(self.body, ReplyBody::Accepted(_, Accepted::Success))
    }

    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        12 + match &self.body {
            ReplyBody::Accepted(verifier, status) => {
                let range = matches!(status, Accepted::ProgMismatch { .. });
                verifier.encoded_len() + 4 + if range { 8 } else { 0 }
            }
            ReplyBody::Denied(Denial::RpcMismatch { .. }) => 12,
            ReplyBody::Denied(Denial::AuthError(_)) => 8,
        }
    }
}

impl Encode for Reply<'_> {
    // xid REPLY 0, verifier, accept_stat [low high]
    // xid REPLY 1, 0 low high | 1 auth_stat
    fn encode(&self, to: &mut Encoder) {
        to.u32(self.xid);
        to.u32(REPLY);
        match &self.body {
            ReplyBody::Accepted(verifier, status) => {
                to.u32(0);
                verifier.encode(to);
                match status {
                    Accepted::Success => to.u32(0),
                    Accepted::ProgUnavail => to.u32(1),
                    Accepted::ProgMismatch { low, high } => {
                        to.u32(2);
                        to.u32(*low);
                        to.u32(*high);
                    }
                    Accepted::ProcUnavail => to.u32(3),
                    Accepted::GarbageArgs => to.u32(4),
                    Accepted::SystemErr => to.u32(5),
                }
            }
            ReplyBody::Denied(denial) => {
                to.u32(1);
                match denial {
                    Denial::RpcMismatch { low, high } => {
                        to.u32(0);
                        to.u32(*low);
                        to.u32(*high);
                    }
                    Denial::AuthError(status) => {
                        to.u32(1);
                        status.encode(to);
                    }
                }
            }
        }
    }
}

impl<'a> Decode<'a> for Reply<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        let xid = from.u32()?;
        expect_kind(from, REPLY)?;
        let body = match from.u32()? {
            0 => {
                let verifier = Auth::decode(from)?;
                ReplyBody::Accepted(verifier, Accepted::decode(from)?)
            }
            1 => ReplyBody::Denied(Denial::decode(from)?),
            value => return undefined("reply_stat", value),
        };
        Ok(Reply { xid, body })
    }
}

impl Accepted {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        Ok(match from.u32()? {
            0 => Accepted::Success,
            1 => Accepted::ProgUnavail,
            2 => Accepted::ProgMismatch {
                low: from.u32()?,
                high: from.u32()?,
            },
            3 => Accepted::ProcUnavail,
            4 => Accepted::GarbageArgs,
            5 => Accepted::SystemErr,
            value => return undefined("accept_stat", value),
        })
    }
}

impl Denial {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        Ok(match from.u32()? {
            0 => Denial::RpcMismatch {
                low: from.u32()?,
                high: from.u32()?,
            },
            1 => Denial::AuthError(AuthStat::decode(from)?),
            value => return undefined("reject_stat", value),
        })
    }
}

fn expect_kind(from: &mut Decoder<'_>, kind: u32) -> codec::Result<()> {
    match from.u32()? {
        value if value == kind => Ok(()),
        value => undefined("msg_type here", value),
    }
}

fn undefined<T>(what: &'static str, value: u32) -> codec::Result<T> {
    Err(DecodeError::Undefined { what, value })
}

#[cfg(test)]
mod tests;
