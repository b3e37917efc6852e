//! Drives the state machine of [`protocol`](crate::protocol) over a provider.
//!
//! A caller's thread encodes a call, registers the memory of its chunks, marshals and posts it
//! ([`Engine::call`]). The thread of the connection ([`link`]), or an event loop in its place
//! ([`event_loop`]), polls for completions, invalidates the registrations, and wakes the callers,
//! whose futures then continue on that thread. One more thread for each transport ([`timer`])
//! checks time-outs.

mod call;
mod calls;
mod connection;
mod counters;
mod ending;
mod engine;
mod event_loop;
mod held;
mod link;
mod marshal;
mod memory;
mod observe;
mod outcome;
mod paths;
mod polling;
mod receive;
mod record;
mod retransmit;
mod secured;
mod session;
mod shared;
mod suspect;
mod timer;
mod trial;

pub use call::{CallFuture, Payload, Reply};
pub use engine::{Engine, Request, SessionInfo};
pub use event_loop::Driver;
pub use polling::Waker;
pub use session::ConnectError;
pub use timer::Sleep;
