//! Failures on demand, for tests of clients.

use nfsrdma_xdr::nfs3::{ProcedureNumber, Status};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It is answered so, without being run.
    Status(ProcedureNumber, Status),
    /// It is run, and never answered.
    Lost,
}

/// Which calls fail, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failing {
    procedure: ProcedureNumber,
    failure: Failure,
    /// So many of them.
    count: u64,
}

impl FromStr for Failing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, count) = match text.split_once(':') {
            Some((what, count)) => {
                let count = count.parse().map_err(|_| "COUNT is a number")?;
                (what, count)
            }
            None => (text, u64::MAX),
        };
        let (procedure, failure) = what
            .split_once('=')
            .ok_or("PROCEDURE=STATUS is wanted, as WRITE=DQUOT")?;
        let procedure = *ProcedureNumber::ALL
            .iter()
            .find(|p| p.label().eq_ignore_ascii_case(procedure))
            .ok_or_else(|| format!("{procedure} is no procedure of NFS version 3"))?;
        if procedure == ProcedureNumber::Null {
            return Err("NULL has no status".into());
        }
        let failure = match failure {
            "LOST" => Failure::Lost,
            name => Failure::Status(
                procedure,
                *Status::ALL
                    .iter()
                    .find(|status| {
                        status.name().eq_ignore_ascii_case(name) && **status != Status::Ok
                    })
                    .ok_or_else(|| format!("{name} is no error of NFS version 3"))?,
            ),
        };
        Ok(Failing {
            procedure,
            failure,
            count,
        })
    }
}

/// The failures still to come.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<(Failing, AtomicU64)>);

impl Failures {
    pub(super) fn new(failing: &[Failing]) -> Self {
        let all = failing.iter().map(|f| (*f, AtomicU64::new(f.count)));
        Failures(all.collect())
    }

    /// What happens to the next call of a procedure.
    pub(super) fn next(&self, procedure: u32) -> Option<Failure> {
        let (failing, _) = self.0.iter().find(|(failing, left)| {
            failing.procedure as u32 == procedure
                && left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok()
        })?;
        Some(failing.failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_calls_of_one_procedure_fail() {
        let parse = |text: &str| text.parse::<Failing>();
        for wrong in [
            "WRITE",
            "WRITE=EIO",
            "WROTE=LOST",
            "WRITE=LOST:x",
            "NULL=LOST",
            "WRITE=OK",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let failures = Failures::new(&[
            parse("WRITE=DQUOT:2").unwrap(),
            parse("WRITE=LOST:1").unwrap(),
            parse("mkdir=LOST").unwrap(),
        ]);
        let write = ProcedureNumber::Write as u32;
        let quota = Failure::Status(ProcedureNumber::Write, Status::DQuot);
        let seen: Vec<_> = (0..4).map(|_| failures.next(write)).collect();
        assert_eq!(seen, [Some(quota), Some(quota), Some(Failure::Lost), None]);
        for _ in 0..5 {
            assert_eq!(
                failures.next(ProcedureNumber::Mkdir as u32),
                Some(Failure::Lost)
            );
        }
        assert_eq!(failures.next(ProcedureNumber::Rmdir as u32), None);
    }
}
