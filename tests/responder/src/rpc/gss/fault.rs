//! Faults of calls under RPCSEC_GSS on command, for tests of clients.

use std::str::FromStr;

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// All contexts are forgotten before the call, as by a restart.
    Forget,
    /// Its header's MIC, or its context, is refused: AUTH_ERROR with this.
    CredProblem,
    CtxProblem,
    /// Its body's MIC or token is refused.
    BadCred,
    /// Its sequence number counts as outside of the window: no reply, and the connection ends.
    Window,
    /// The reply's verifier is wrong.
    Verifier,
    /// The MIC or token of the results is wrong.
    Body,
    /// The token of an INIT is refused: the server says so in its results. Only these calls count.
    Init,
}

const NAMES: [(&str, Fault); 8] = [
    ("FORGET", Fault::Forget),
    ("CREDPROBLEM", Fault::CredProblem),
    ("CTXPROBLEM", Fault::CtxProblem),
    ("BADCRED", Fault::BadCred),
    ("WINDOW", Fault::Window),
    ("VERIFIER", Fault::Verifier),
    ("BODY", Fault::Body),
    ("INIT", Fault::Init),
];

/// Which calls have a fault, and which: `FAULT[:COUNT][/EVERY]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faulty {
    fault: Fault,
    /// The number of calls that still have it.
    count: u64,
    /// Only each call whose number is a multiple of this has it.
    every: u64,
    /// The number of calls since the last one that had it.
    passed: u64,
}

impl FromStr for Faulty {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, every) = match text.split_once('/') {
            Some((what, every)) => match every.parse() {
                Ok(every) if every > 0 => (what, every),
                _ => return Err("EVERY is a number from 1 on".into()),
            },
            None => (text, 1),
        };
        let (name, count) = match what.split_once(':') {
            Some((name, count)) => (name, count.parse().map_err(|_| "COUNT is a number")?),
            None => (what, u64::MAX),
        };
        let (_, fault) = NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
                format!("{name} is none of {}", names.join(", "))
            })?;
        Ok(Faulty {
            fault: *fault,
            count,
            every,
            passed: 0,
        })
    }
}

/// The faults still to come.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Faulty>);

impl Faults {
    pub(super) fn add(&mut self, faulty: Faulty) {
        self.0.retain(|faulty| faulty.count > 0);
        self.0.push(faulty);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The fault of the next call, if any: of an INIT, or of one under a context. Of several, the
    /// oldest is used.
    pub(super) fn next(&mut self, init: bool) -> Option<Fault> {
        let meant =
            |faulty: &&mut Faulty| faulty.count > 0 && (faulty.fault == Fault::Init) == init;
        let faulty = self.0.iter_mut().find(meant)?;
        faulty.passed += 1;
        if faulty.passed < faulty.every {
            return None;
        }
        faulty.passed = 0;
        if faulty.count != u64::MAX {
            faulty.count -= 1;
        }
        Some(faulty.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for wrong in ["", "MIC", "FORGET:x", "FORGET/0", "FORGET:1/x"] {
            assert!(wrong.parse::<Faulty>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_third_call_has_one_and_then_none() {
        let mut faults = Faults::default();
        faults.add("forget:1/3".parse().unwrap());
        faults.add("init:1".parse().unwrap());
        let seen: Vec<_> = (0..6).map(|_| faults.next(false)).collect();
        assert_eq!(seen, [None, None, Some(Fault::Forget), None, None, None]);
        assert_eq!(faults.next(true), Some(Fault::Init));
        assert_eq!(faults.next(true), None);
    }
}
