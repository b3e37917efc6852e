//! Kerberos contexts for the users of a mount.
//!
//! The process that serves a mount never sees a ticket: for each context it starts a [`helper`], this
//! program again, which becomes the user, finds the user's ticket ([`tickets`]; for root a key of the
//! machine's [`keytab`]), exchanges tokens with the server through the serving process, and gives it
//! the established context. [`driver`] is the side of the serving process, and [`protocol`] what they
//! tell each other. [`establish`] makes the contexts that the RPC transport asks for, which [`secured`]
//! adapts to it.

pub mod driver;
pub mod establish;
pub(crate) mod helper;
mod keytab;
pub mod protocol;
mod secured;
mod tickets;
