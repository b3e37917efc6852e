//! Kerberos V5 by the system's library.

use super::mechanism::{Accepted, Mechanism, Protection, Refused};
use nfsrdma_gss::{Acceptor, Context, Error, Library};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How much longer than its ticket the library lets an acceptor's context be valid: the difference
/// of clocks that it allows unless krb5.conf says otherwise. Linux's server does not add it.
const SKEW: Duration = Duration::from_secs(300);

/// The server's keys.
#[derive(Debug)]
pub struct Kerberos(Acceptor);

impl Kerberos {
    /// Takes the keys of a keytab, or of the one that krb5.conf names.
    pub fn new(keytab: Option<&Path>) -> Result<Self, Error> {
        let keytab = keytab.map(|path| path.to_string_lossy().into_owned());
        Ok(Kerberos(Library::load()?.acceptor(keytab.as_deref())?))
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused {
            major: error.major(),
            minor: error.minor(),
            why: error.to_string(),
        }
    }
}

impl Mechanism for Kerberos {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused> {
        let mut accepting = self.0.accept();
        let step = accepting.step(token)?;
        let (context, principal) = accepting.into_context()?;
        // What has expired meanwhile is at its end now.
        let left = context.expires().duration_since(SystemTime::now() + SKEW);
        Ok(Accepted {
            lifetime: Some(left.unwrap_or_default()),
            context: Box::new(context),
            token: step.token.to_vec(),
            principal,
        })
    }
}

impl Protection for Context {
    fn mic(&self, message: &[&[u8]]) -> Option<Vec<u8>> {
        let mut mic = vec![0; self.mic_len()];
        Context::mic(self, message, &mut mic).ok()?;
        Some(mic)
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> Option<()> {
        self.verify_mic(message, mic).ok()
    }

    fn wrap_overhead(&self) -> usize {
        Context::wrap_overhead(self)
    }

    fn wrap(&self, message: &[&[u8]], token: &mut [u8]) -> Option<()> {
        Context::wrap(self, message, token).ok()
    }

    fn unwrap(&self, token: &mut [u8]) -> Option<Range<usize>> {
        Context::unwrap(self, token).ok()
    }
}
