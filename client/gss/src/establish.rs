//! How two peers establish a context: the initiator with a ticket, the acceptor with a key.

use crate::bounds::{bounded, not_empty};
use crate::context::Context;
use crate::error::{Error, Kind};
use crate::raw::{self, Output, Raw};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The encryption types of a context, best first, as rpc.gssd asks for them: AES-256 and AES-128 with
/// SHA-2 (RFC 8009), then with SHA-1 (RFC 3962). With others sizes would not be exact.
const ENCTYPES: [i32; 4] = [20, 19, 18, 17];

/// Tickets, or keys to get them with.
pub struct Credential(raw::Credential);

impl Credential {
    pub(crate) fn of_initiator(raw: raw::Credential) -> Result<Credential, Error> {
        raw.set_enctypes(&ENCTYPES)?;
        Ok(Credential(raw))
    }

    /// How long the tickets are still valid; zero if the library does not know yet.
    pub fn lifetime(&self) -> Duration {
        self.0.lifetime
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

/// What a step has made.
#[derive(Debug)]
pub struct Step {
    /// For the peer. The last step of one side has none, so it may be empty.
    pub token: Output,
    /// Whether the context is complete on this side.
    pub done: bool,
}

/// The side that begins a context, and asks the other side to authenticate itself as well.
pub struct Initiator {
    context: raw::Context,
    tickets: Credential,
    target: raw::Name,
    done: bool,
}

impl Initiator {
    pub(crate) fn new(context: raw::Context, tickets: Credential, target: raw::Name) -> Self {
        Initiator {
            context,
            tickets,
            target,
            done: false,
        }
    }

    /// Takes the acceptor's token (at first none: an empty one). The first step may wait for the KDC.
    ///
    /// # Errors
    /// [`Kind::Expired`], [`Kind::NoCredential`], [`Kind::NoServerKey`], [`Kind::ClockSkew`] and
    /// [`Kind::Realm`] in the first step, [`Kind::Defective`] in later ones. The context cannot be
    /// completed then.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, Error> {
        bounded(token)?;
        not_twice(self.done)?;
        let stepped = self
            .context
            .initiate(&self.tickets.0, &self.target, token)?;
        if stepped.done && !stepped.mutual {
            return Err(Error::new(
                Kind::Defective,
                "the acceptor has not authenticated itself",
            ));
        }
        self.done = stepped.done;
        Ok(Step {
            token: stepped.token,
            done: stepped.done,
        })
    }

    /// The context.
    ///
    /// # Errors
    /// It is incomplete until a step was the last.
    pub fn into_context(self) -> Result<Context, Error> {
        complete(self.done, self.context)
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator")
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

/// The side with the keys of a service.
#[derive(Clone)]
pub struct Acceptor {
    raw: Raw,
    keys: Arc<raw::Credential>,
}

impl Acceptor {
    pub(crate) fn new(raw: Raw, keys: raw::Credential) -> Self {
        let keys = Arc::new(keys);
        Acceptor { raw, keys }
    }

    /// Begins to accept one context.
    pub fn accept(&self) -> Accepting {
        Accepting {
            context: self.raw.no_context(),
            keys: Arc::clone(&self.keys),
            client: None,
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// A context that is being accepted.
pub struct Accepting {
    context: raw::Context,
    keys: Arc<raw::Credential>,
    client: Option<String>,
}

impl Accepting {
    /// Takes the initiator's token.
    ///
    /// # Errors
    /// [`Kind::NoServerKey`], [`Kind::Expired`], [`Kind::ClockSkew`] and [`Kind::Defective`].
    pub fn step(&mut self, token: &[u8]) -> Result<Step, Error> {
        bounded(token)?;
        not_empty(token)?;
        not_twice(self.client.is_some())?;
        let (stepped, name) = self.context.accept(&self.keys, token)?;
        if stepped.done {
            self.client = Some(name.show()?);
        }
        Ok(Step {
            token: stepped.token,
            done: stepped.done,
        })
    }

    /// The context, and the principal of the initiator, like `alice@REALM`.
    ///
    /// # Errors
    /// It is incomplete until a step was the last.
    pub fn into_context(self) -> Result<(Context, String), Error> {
        let context = complete(self.client.is_some(), self.context)?;
        Ok((context, self.client.unwrap_or_default()))
    }
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepting")
            .field("done", &self.client.is_some())
            .finish_non_exhaustive()
    }
}

fn complete(done: bool, context: raw::Context) -> Result<Context, Error> {
    match done {
        true => Context::new(context),
        false => Err(Error::new(Kind::Other, "the context is incomplete")),
    }
}

fn not_twice(done: bool) -> Result<(), Error> {
    match done {
        true => Err(Error::new(Kind::Other, "the context is complete already")),
        false => Ok(()),
    }
}
