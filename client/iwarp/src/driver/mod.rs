//! The I/O around the state machines of `proto`. `connect` and `listen` set connections up;
//! `shared` is what posting threads and the completion thread use together; `poller` receives
//! inside `CompletionQueue::poll`; `retransmission` bounds TCP's pauses; `region` alone gives access to memory
//! that the peer may write.

pub(crate) mod connect;
pub(crate) mod listen;
pub(crate) mod poller;
pub(crate) mod region;
mod retransmission;
pub(crate) mod shared;
pub(crate) mod sys;
