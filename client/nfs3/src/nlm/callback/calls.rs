//! Decodes calls to this machine, by the server's lock manager, its status monitor and this
//! machine's own rpc.statd, and encodes their replies. No I/O.

use nfsrdma_xdr::codec::{Decode, DecodeError, Decoder, Encode};
use nfsrdma_xdr::nlm4::{self, Res, Status, TestArgs};
use nfsrdma_xdr::nsm::{self, HostStatus, StateChange};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{self, Accepted, Call, CallError, Denial, Reply};

/// The procedure of NLM's program that rpc.statd calls back.
pub(super) const STATUS_PROCEDURE: u32 = 16;

/// A decoded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// NULL of any of the programs.
    Null,
    /// GRANTED, or with `message` GRANTED_MSG, whose result is a call of its own.
    Granted { args: TestArgs<'a>, message: bool },
    /// SM_NOTIFY: the sender restarted.
    Notify(StateChange<'a>),
    /// The call-back of this machine's rpc.statd: a host that it monitors for us restarted.
    Status(HostStatus<'a>),
    /// A program, version or procedure that is not implemented here.
    Refused(Accepted),
}

/// A call with the XID that its reply needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received<'a> {
    pub(super) xid: u32,
    pub(super) request: Request<'a>,
}

impl From<DecodeError> for Request<'_> {
    fn from(_: DecodeError) -> Self {
        Request::Refused(Accepted::GarbageArgs)
    }
}

fn of_nlm<'a>(procedure: u32, from: &mut Decoder<'a>) -> Result<Request<'a>, DecodeError> {
    let message = procedure == nlm4::GrantedMsg::NUMBER;
    Ok(match procedure {
        nlm4::Null::NUMBER => Request::Null,
        nlm4::Granted::NUMBER | nlm4::GrantedMsg::NUMBER => Request::Granted {
            args: TestArgs::decode(from)?,
            message,
        },
        _ => Request::Refused(Accepted::ProcUnavail),
    })
}

fn of_statd<'a>(procedure: u32, from: &mut Decoder<'a>) -> Result<Request<'a>, DecodeError> {
    Ok(match procedure {
        0 => Request::Null,
        STATUS_PROCEDURE => Request::Status(HostStatus::decode(from)?),
        _ => Request::Refused(Accepted::ProcUnavail),
    })
}

/// A monitor for this mount alone. For other programs of this machine (`local`) it is none, and does not even answer
/// NULL, or mount.nfs(8) would not start the rpc.statd that the kernel's own mounts need.
fn of_nsm<'a>(
    procedure: u32,
    local: bool,
    from: &mut Decoder<'a>,
) -> Result<Request<'a>, DecodeError> {
    Ok(match procedure {
        nsm::Null::NUMBER if !local => Request::Null,
        nsm::Notify::NUMBER => Request::Notify(StateChange::decode(from)?),
        _ => Request::Refused(Accepted::ProcUnavail),
    })
}

/// Decodes a call. The error is its reply, or `None` for bytes that cannot be answered.
/// `statd_version` is the version of NLM's program that our rpc.statd calls back; `local` a call of this machine.
pub(super) fn parse(
    message: &[u8],
    statd_version: u32,
    local: bool,
) -> Result<Received<'_>, Option<Vec<u8>>> {
    let mut from = Decoder::new(message);
    let call = Call::parse(&mut from).map_err(|error| match error {
        CallError::Malformed(_) => None,
        CallError::RpcVersion { xid, .. } => {
            let (low, high) = (rpc::VERSION, rpc::VERSION);
            Some(Reply::denied(xid, Denial::RpcMismatch { low, high }).to_xdr())
        }
    })?;
    let mismatch = |version| {
        let (low, high) = (version, version);
        Ok(Request::Refused(Accepted::ProgMismatch { low, high }))
    };
    let request = match (call.program, call.version) {
        (nlm4::PROGRAM, nlm4::VERSION) => of_nlm(call.procedure, &mut from),
        (nlm4::PROGRAM, version) if version == statd_version => of_statd(call.procedure, &mut from),
        (nlm4::PROGRAM, _) => mismatch(nlm4::VERSION),
        (nsm::PROGRAM, nsm::VERSION) => of_nsm(call.procedure, local, &mut from),
        (nsm::PROGRAM, _) => mismatch(nsm::VERSION),
        _ => Ok(Request::Refused(Accepted::ProgUnavail)),
    };
    Ok(Received {
        xid: call.xid,
        request: request.unwrap_or_else(Request::from),
    })
}

impl Received<'_> {
    /// Encodes the reply. `granted` is the answer to GRANTED.
    pub(super) fn reply(&self, granted: Status) -> Vec<u8> {
        let (status, results) = match self.request {
            Request::Refused(status) => (status, Vec::new()),
            Request::Granted {
                args,
                message: false,
            } => {
                let res = Res {
                    cookie: args.cookie,
                    status: granted,
                };
                (Accepted::Success, res.to_xdr())
            }
            Request::Null
            | Request::Granted { message: true, .. }
            | Request::Notify(_)
            | Request::Status(_) => (Accepted::Success, Vec::new()),
        };
        [Reply::accepted(self.xid, status).to_xdr(), results].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::codec::Text;
    use nfsrdma_xdr::nfs3::FileHandle;
    use nfsrdma_xdr::nlm4::Lock;
    use nfsrdma_xdr::rpc::Auth;
    use proptest::prelude::*;

    const STATD: u32 = 77;

    fn call(program: u32, version: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
        let call = Call {
            xid: 5,
            program,
            version,
            procedure,
            credential: Auth::None,
            verifier: Auth::None,
        };
        [&call.to_xdr()[..], args].concat()
    }

    fn granted() -> TestArgs<'static> {
        TestArgs {
            cookie: Text(b"cook"),
            exclusive: true,
            lock: Lock {
                caller_name: Text(b"server"),
                file: FileHandle::new(&[1, 2, 3]).unwrap(),
                owner: Text(b"oh"),
                svid: 9,
                offset: 1,
                length: 2,
            },
        }
    }

    #[test]
    fn what_is_not_here_is_refused_as_rpc_says() {
        let status = |program, version, procedure| {
            let bytes = call(program, version, procedure, b"");
            match parse(&bytes, STATD, true).unwrap().request {
                Request::Refused(status) => status,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(status(100_003, 3, 0), Accepted::ProgUnavail);
        assert_eq!(
            status(100_021, 3, 0),
            Accepted::ProgMismatch { low: 4, high: 4 }
        );
        assert_eq!(
            status(100_024, 2, 0),
            Accepted::ProgMismatch { low: 1, high: 1 }
        );
        // The lock manager of a client grants no locks.
        assert_eq!(status(100_021, 4, 2), Accepted::ProcUnavail);
        assert_eq!(status(100_021, STATD, 5), Accepted::ProcUnavail);
        assert_eq!(status(100_021, 4, 10), Accepted::GarbageArgs);
        // The monitor is one for this mount, and none for others.
        assert_eq!(status(100_024, 1, 0), Accepted::ProcUnavail);
        assert_eq!(status(100_024, 1, 2), Accepted::ProcUnavail);
        assert_eq!(parse(b"", STATD, true), Err(None));
        let mut other = call(100_021, 4, 0, b"");
        other[11] = 3;
        assert!(parse(&other, STATD, true).unwrap_err().is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_or_dropped(
            head in proptest::bool::ANY,
            procedure in 0u32..24,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let message = match head {
                true => call(100_021, 4, procedure, &bytes),
                false => bytes,
            };
            if let Ok(received) = parse(&message, STATD, false) {
                prop_assert!(received.reply(Status::Granted).len() >= 24);
            }
        }

        #[test]
        fn a_granted_that_is_cut_is_garbage(cut in 0usize..60) {
            let args = granted().to_xdr();
            prop_assume!(cut < args.len());
            let bytes = call(100_021, 4, 5, &args[..cut]);
            let request = parse(&bytes, STATD, true).unwrap().request;
            prop_assert_eq!(request, Request::Refused(Accepted::GarbageArgs));
        }
    }
}
