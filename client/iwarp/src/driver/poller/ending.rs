//! The end of a connection: at once, or after a Terminate that tells the peer what it violated.
//!
//! In both cases, posted work is flushed, and `poll` returns the error from then on. Before a
//! Terminate (RFC 5040 section 4.8), all STags are removed, so that nothing more is placed. Then
//! the connection lingers for at most 200 ms: the Terminate is sent, the sending direction is shut
//! down, and all data that still arrive are read and dropped, because closing a socket with unread
//! bytes resets the connection, and the peer might lose the Terminate.

use super::IwarpCompletionQueue;
use super::close_reason::{CloseReason, Lingering};
use crate::driver::sys;
use nfsrdma_rdma::{Error, Instant, Wait};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long to wait until the peer has received a Terminate.
const LINGER: Duration = Duration::from_millis(200);
/// Reads for a caller that does not wait: it serves others on the same thread.
const READS: usize = 8;

impl IwarpCompletionQueue {
    //= RFC 5040, Section 7
    //# If an LLP does not support teardown of a Stream independent of other Streams, and an RDMAP
    //# error results in the Termination of a specific Stream, then the LLP MUST label the Stream as
    //# an erroneous Stream and MUST NOT allow any further data transfer on that Stream after RDMAP
    //# requests the Stream to be torn down.
    //= RFC 5040, Section 7.1
    //# If an error occurs at the Local Peer, the RDMAP layer MUST attempt to inform the local ULP
    //# that the error has occurred.
    //# The Local Peer MUST send a Terminate Message for each of the following cases:
    //= RFC 5041, Section 3
    //# If an LLP does not support teardown of an LLP Stream independent of other LLP Streams, and a
    //# DDP error occurs on a specific DDP Stream, then the LLP MUST label the associated LLP Stream
    //# as an erroneous LLP Stream and MUST NOT allow any further data transfer on that LLP Stream
    //# after DDP requests the associated DDP Stream to be torn down.
    //= RFC 5041, Section 6.2.2
    //# Thus, any of the following fatal errors on a DDP Stream MUST cause DDP to indicate to the
    //# ULP that a fatal error has occurred:
    //= RFC 5041, Section 7.1
    //# If the DDP layer detects any of the receive errors listed in this section, it MUST cease
    //# placing the remainder of the DDP Segment and report the error(s) to the ULP.
    //= RFC 5041, Section 8.3
    //# If an STag is not valid on a DDP Stream, DDP MUST pass the invalid access attempt to the
    //# ULP.
    //= RFC 5044, Section 8
    //# The following errors MUST be detected by MPA and the codes SHOULD be provided to DDP or
    //# other Consumer:
    //# Once MPA delivers an error of any type, it MUST NOT pass or deliver any additional FPDUs on
    //# that half connection.
    /// Ends the connection. A peer that violated the protocol is sent a Terminate first. (Requests
    /// that are invalid are refused when they are posted, and never queued, so no Terminate is
    /// needed for them.)
    pub(super) fn finish(&mut self, end: CloseReason) {
        self.over = true;
        let partial = self.rx.take_partial();
        let closing = self.shared.closing.lock().clone();
        let error = match (end, closing) {
            (CloseReason::Error(error), _) => error,
            // The handles became invalid because this side is closing; the peer is not at fault.
            (CloseReason::Fault(_), Some(error)) => error,
            (CloseReason::Fault(fault), None) => {
                tracing::debug!(code = %fault.code, "peer broke a rule");
                self.shared.close_stags();
                let mut state = self.shared.state.lock();
                state.queue.post_terminate(fault.terminate());
                drop(state);
                self.shared.tx_abandon.store(true, Ordering::SeqCst);
                self.lingering = Some(Lingering {
                    until: Instant::now() + LINGER,
                    half_closed: false,
                    error: Error::PeerMisbehaved(fault.code.to_string()),
                    partial,
                });
                return;
            }
        };
        self.shared.end(error, partial);
    }

    //= RFC 5041, Section 6.2.2
    //# After indicating to the ULP a fatal error has occurred, the DDP Stream MUST NOT be
    //# terminated until the Local Peer ULP indicates to the DDP layer that the DDP Stream should be
    //# abortively torn down.
    //= RFC 5041, Section 7.1
    //# DDP MUST silently drop any subsequent incoming DDP Segments.
    //= RFC 5044, Section 8
    //# For Error codes 2 and 3, MPA MUST NOT close the TCP connection following a reported error.
    /// Sends the Terminate, then reads and drops what the peer still sends, because closing with
    /// unread bytes would reset the connection. Returns whether the connection has ended; waits for
    /// that as `wait` allows.
    pub(super) fn linger(&mut self, wait: Wait) -> bool {
        while let Some(lingering) = &mut self.lingering {
            let shared = &*self.shared;
            shared.pump();
            if !lingering.half_closed && shared.tx_terminated.load(Ordering::SeqCst) {
                lingering.half_closed = shared.socket.shutdown(Shutdown::Write).is_ok();
            }
            self.drained = false;
            let mut reads = 0;
            let mut over = loop {
                match (&shared.socket).read(&mut self.stage.bytes) {
                    Ok(0) => break true,
                    Ok(_) => reads += 1,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        self.drained = true;
                        break false;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break true,
                }
                if Instant::now() >= lingering.until {
                    break true;
                }
                if wait == Wait::No && reads >= READS {
                    break false;
                }
            };
            over |= Instant::now() >= lingering.until || shared.is_closing.load(Ordering::SeqCst);
            if !over && wait == Wait::No {
                return false;
            }
            if !over {
                shared.event.clear();
                let (socket, until) = (shared.socket.as_fd(), Some(lingering.until));
                over = sys::wait(socket, !lingering.half_closed, &shared.event, until).is_err();
            }
            if over {
                self.stop_lingering();
            }
        }
        true
    }

    pub(super) fn stop_lingering(&mut self) {
        if let Some(lingering) = self.lingering.take() {
            self.shared.end(lingering.error, lingering.partial);
        }
    }
}
