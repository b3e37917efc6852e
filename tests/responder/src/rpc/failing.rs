//! Calls that fail on command, for tests of clients.

use super::turns::Turns;
use nfsrdma_xdr::nfs3::{ProcedureNumber, Status};
use nfsrdma_xdr::rpc::{Accepted, AuthStat, Denial};
use std::str::FromStr;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It is answered with this nfsstat3, and not executed.
    Status(u32),
    /// It is refused by RPC, and not executed.
    Accepted(Accepted),
    Denied(Denial),
    /// It is executed, but not answered.
    Lost,
    /// It is executed, and its connection ends without a reply.
    Hangup,
}

/// Which calls fail, and how: `PROCEDURE=STATUS|REFUSAL|LOST|HANGUP[:COUNT][/EVERY]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failing {
    /// `None` for all procedures but NULL.
    procedure: Option<ProcedureNumber>,
    failure: Failure,
    turns: Turns,
}

/// Parses the name of a procedure; `None` for `ANY`. NULL cannot fail.
pub fn procedure(name: &str) -> Result<Option<ProcedureNumber>, String> {
    if name.eq_ignore_ascii_case("ANY") {
        return Ok(None);
    }
    let found = ProcedureNumber::ALL
        .iter()
        .find(|p| p.label().eq_ignore_ascii_case(name))
        .ok_or_else(|| format!("{name} is no procedure of NFS version 3"))?;
    match found {
        ProcedureNumber::Null => Err("NULL cannot fail or wait".into()),
        found => Ok(Some(*found)),
    }
}

impl FromStr for Failing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, turns) = Turns::parse(text)?;
        let (name, failure) = what
            .split_once('=')
            .ok_or("PROCEDURE=STATUS is wanted, as WRITE=DQUOT")?;
        let failure = match failure {
            "LOST" => Failure::Lost,
            "HANGUP" => Failure::Hangup,
            "PROG_UNAVAIL" => Failure::Accepted(Accepted::ProgUnavail),
            "PROG_MISMATCH" => Failure::Accepted(Accepted::ProgMismatch { low: 4, high: 4 }),
            "PROC_UNAVAIL" => Failure::Accepted(Accepted::ProcUnavail),
            "GARBAGE_ARGS" => Failure::Accepted(Accepted::GarbageArgs),
            "SYSTEM_ERR" => Failure::Accepted(Accepted::SystemErr),
            "RPC_MISMATCH" => Failure::Denied(Denial::RpcMismatch { low: 3, high: 3 }),
            "AUTH_TOOWEAK" => Failure::Denied(Denial::AuthError(AuthStat::TooWeak)),
            "AUTH_BADCRED" => Failure::Denied(Denial::AuthError(AuthStat::BadCred)),
            name => Failure::Status(match name.parse() {
                // A number may be one that NFS does not define.
                Ok(number) if number != Status::Ok as u32 => number,
                _ => *Status::ALL
                    .iter()
                    .find(|status| {
                        status.name().eq_ignore_ascii_case(name) && **status != Status::Ok
                    })
                    .ok_or_else(|| format!("{name} is no error of NFS version 3"))?
                    as u32,
            }),
        };
        Ok(Failing {
            procedure: procedure(name)?,
            failure,
            turns,
        })
    }
}

/// The failures still to come.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<Failing>);

impl Failures {
    pub(super) fn add(&mut self, failing: Failing) {
        self.0.retain(|failing| failing.turns.remain());
        self.0.push(failing);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The failure of the next call of a procedure, if any. Of several, the oldest is used.
    pub(super) fn next(&mut self, procedure: ProcedureNumber) -> Option<Failure> {
        if procedure == ProcedureNumber::Null {
            return None;
        }
        let failing = self.0.iter_mut().find(|failing| {
            failing.turns.remain() && failing.procedure.is_none_or(|of| of == procedure)
        })?;
        failing.turns.come().then_some(failing.failure)
    }
}
