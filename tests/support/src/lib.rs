//! Parts that several test programs need: random choices that depend on a seed only, and
//! `nfsrdma-responder` as a process.

mod random;
mod responder;

pub use random::Random;
pub use responder::{Launch, Responder, build_responder};
