//! Faults of calls under RPCSEC_GSS on command, for tests of clients.

use crate::rpc::turns::Turns;
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
    /// The MIC of the window in the answer to an INIT is wrong. Only these calls count.
    Proof,
}

const NAMES: [(&str, Fault); 9] = [
    ("FORGET", Fault::Forget),
    ("CREDPROBLEM", Fault::CredProblem),
    ("CTXPROBLEM", Fault::CtxProblem),
    ("BADCRED", Fault::BadCred),
    ("WINDOW", Fault::Window),
    ("VERIFIER", Fault::Verifier),
    ("BODY", Fault::Body),
    ("INIT", Fault::Init),
    ("PROOF", Fault::Proof),
];

/// Which calls have a fault, and which: `FAULT[:COUNT][/EVERY]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faulty {
    fault: Fault,
    turns: Turns,
}

impl FromStr for Faulty {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, turns) = Turns::parse(text)?;
        let (_, fault) = NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
                format!("{name} is none of {}", names.join(", "))
            })?;
        Ok(Faulty {
            fault: *fault,
            turns,
        })
    }
}

/// The faults still to come.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Faulty>);

impl Faults {
    pub(super) fn add(&mut self, faulty: Faulty) {
        self.0.retain(|faulty| faulty.turns.remain());
        self.0.push(faulty);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The fault of the next call, if any: of an INIT, or of one under a context. Of several, the
    /// oldest is used.
    pub(super) fn next(&mut self, init: bool) -> Option<Fault> {
        let meant = |faulty: &&mut Faulty| {
            faulty.turns.remain() && matches!(faulty.fault, Fault::Init | Fault::Proof) == init
        };
        let faulty = self.0.iter_mut().find(meant)?;
        faulty.turns.come().then_some(faulty.fault)
    }
}
