//! INIT and CONTINUE_INIT of RPCSEC_GSS over TCP (RFC 2203 section 5.2), as Linux's client makes them: a
//! context is not bound to a connection, and with large tickets the token does not fit inline.

use super::plain::{self, PlainError, Protocol, Target};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::rpc::{Auth, CallTemplate, Reply, ReplyBody, flavor};
use nfsrdma_xdr::rpcsec_gss::{
    Credential, InitArgs, InitRes, MAX_TOKEN_LEN, Opaque, Procedure, mic_of,
};
use std::fmt;

/// Largest answer in bytes: a token, and what surrounds it.
const MAX_ANSWER: usize = MAX_TOKEN_LEN + (4 << 10);

/// What the server answers to a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Initiated {
    /// The server's name for the context.
    pub handle: Vec<u8>,
    /// The status of the mechanism there:
    /// [`GSS_S_COMPLETE`](nfsrdma_xdr::rpcsec_gss::GSS_S_COMPLETE),
    /// [`GSS_S_CONTINUE_NEEDED`](nfsrdma_xdr::rpcsec_gss::GSS_S_CONTINUE_NEEDED), or an error.
    pub major: u32,
    pub minor: u32,
    pub window: u32,
    /// The next token for the mechanism here; empty if there is none.
    pub token: Vec<u8>,
    /// The MIC of [`Initiated::window`] in four bytes, which has to be checked when the context is
    /// complete (RFC 2203 section 5.2.3.1); `None` if the server sent none.
    pub mic: Option<Vec<u8>>,
}

impl fmt::Debug for Initiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiated")
            .field("major", &self.major)
            .field("minor", &self.minor)
            .field("window", &self.window)
            .field("token", &self.token.len())
            .finish_non_exhaustive()
    }
}

/// Sends a token of the mechanism to the server of a program. `handle` is that of the answer before, and
/// empty for the first token. Runs in tokio.
pub async fn initiate(
    target: &Target,
    (program, version): (u32, u32),
    handle: &[u8],
    token: &[u8],
) -> Result<Initiated, PlainError> {
    let credential = match handle {
        [] => Credential::INIT,
        handle => Credential {
            procedure: Procedure::ContinueInit,
            handle: Opaque(handle),
            ..Credential::INIT
        },
    };
    let body = credential.to_xdr();
    let credential = Auth::Other {
        flavor: flavor::RPCSEC_GSS,
        body: &body,
    };
    let xid = plain::fresh_xid()?;
    let mut to = Encoder::with_capacity(token.len() + 128);
    CallTemplate::new(program, version, credential).encode(xid, 0, &mut to);
    let token = Opaque(token);
    InitArgs { token }.encode(&mut to);
    let target = Target {
        protocol: Protocol::Tcp,
        ..*target
    };
    let reply = plain::answer_to(&target, xid, to.as_slice(), MAX_ANSWER).await?;
    let mut from = Decoder::new(&reply);
    let wrong = |error| PlainError::Misbehaved(format!("RPCSEC_GSS INIT: {error}"));
    let header = Reply::decode(&mut from).map_err(wrong)?;
    super::accepted(&header.body).map_err(|error| PlainError::Refused(error.to_string()))?;
    let results = InitRes::decode(&mut from).map_err(wrong)?;
    let mic = match &header.body {
        ReplyBody::Accepted(verifier, _) => mic_of(verifier).map(<[u8]>::to_vec),
        ReplyBody::Denied(_) => None,
    };
    Ok(Initiated {
        handle: results.handle.0.to_vec(),
        major: results.major,
        minor: results.minor,
        window: results.window,
        token: results.token.0.to_vec(),
        mic,
    })
}

#[cfg(test)]
mod tests {
    use super::super::stream::tests::{receive, send, server};
    use super::*;
    use nfsrdma_xdr::record;
    use nfsrdma_xdr::rpc::{Accepted, AuthStat, Call, Denial};
    use nfsrdma_xdr::rpcsec_gss::{GSS_S_COMPLETE, GSS_S_CONTINUE_NEEDED, verifier};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    /// Receives one call and passes it to `answer`, which has the bytes behind the header as well.
    async fn serve(listener: &TcpListener, answer: impl FnOnce(&Call<'_>, &[u8]) -> Vec<u8>) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let message = receive(&mut stream).await;
        let mut from = Decoder::new(&message);
        let call = Call::parse(&mut from).unwrap();
        send(&mut stream, &answer(&call, from.rest())).await;
    }

    /// Two tokens, the first of which is as long as those with the groups of a large domain.
    #[tokio::test]
    async fn tokens_go_to_the_server_until_it_is_content() {
        let (listener, target) = server().await;
        let target = Target {
            protocol: Protocol::Udp,
            ..target
        };
        let long = vec![7; 60_000];
        for (handle, token, procedure) in [
            (&b""[..], &long[..], Procedure::Init),
            (b"name", b"next", Procedure::ContinueInit),
        ] {
            let complete = procedure == Procedure::ContinueInit;
            let server = serve(&listener, |call, rest| {
                assert_eq!(
                    (call.program, call.version, call.procedure),
                    (100_003, 3, 0)
                );
                let credential = Credential::of(&call.credential).unwrap().unwrap();
                assert_eq!(credential.procedure, procedure);
                assert_eq!(credential.handle.0, handle);
                assert_eq!(call.verifier, Auth::None);
                assert_eq!(InitArgs::from_xdr(rest).unwrap().token.0, token);
                let with = if complete {
                    verifier(b"mic.")
                } else {
                    Auth::None
                };
                let body = ReplyBody::Accepted(with, Accepted::Success);
                let (xid, mut to) = (call.xid, Encoder::default());
                Reply { xid, body }.encode(&mut to);
                InitRes {
                    handle: Opaque(b"name"),
                    major: [GSS_S_CONTINUE_NEEDED, GSS_S_COMPLETE][usize::from(complete)],
                    minor: 0,
                    window: 128,
                    token: Opaque(b"answer"),
                }
                .encode(&mut to);
                to.into_vec()
            });
            let initiated = initiate(&target, (100_003, 3), handle, token);
            let (initiated, ()) = tokio::join!(initiated, server);
            let is = initiated.unwrap();
            assert_eq!((is.handle.as_slice(), is.window), (&b"name"[..], 128));
            assert_eq!(is.token, b"answer");
            assert_eq!(is.major == GSS_S_COMPLETE, complete);
            assert_eq!(is.mic, complete.then(|| b"mic.".to_vec()));
            assert!(!format!("{is:?}").contains("97"), "a token is not shown");
        }
        let refused = serve(&listener, |call, _| {
            Reply::denied(call.xid, Denial::AuthError(AuthStat::GssCredProblem)).to_xdr()
        });
        let (refused, ()) = tokio::join!(initiate(&target, (100_003, 3), b"", b"t"), refused);
        assert!(
            matches!(refused, Err(PlainError::Refused(_))),
            "{refused:?}"
        );
    }

    /// Many users' contexts are made at a time: each answer takes no more memory than a token needs.
    #[tokio::test]
    async fn an_answer_longer_than_any_token_is_not_read() {
        let (listener, target) = server().await;
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mark = record::mark(1 << 17, true);
            stream.write_all(&mark).await.unwrap();
            stream
        };
        let (refused, _stream) = tokio::join!(initiate(&target, (100_003, 3), b"", b"t"), server);
        let is = matches!(refused, Err(PlainError::Misbehaved(_)));
        assert!(is, "{refused:?}");
    }
}
