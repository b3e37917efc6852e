//! Parts that several test programs need: random choices that depend on a seed only,
//! `nfsrdma-responder` as a process, and a Kerberos realm.

mod random;
mod realm;
mod responder;

pub use random::Random;
pub use realm::{REALM, Realm, in_realm};
pub use responder::{Launch, Responder, build_responder};
