//! A Kerberos context as the RPC transport uses it, with several threads at once.

use nfsrdma_gss as gss;
use nfsrdma_rpcrdma::security::{Broken, SecurityContext, Service};
use std::fmt;
use std::ops::Range;
use std::time::SystemTime;

/// An established context with a server.
pub(super) struct Secured {
    context: gss::Context,
    handle: Vec<u8>,
    service: Service,
    window: u32,
    expires: SystemTime,
    mic_len: usize,
    wrap_overhead: usize,
}

impl Secured {
    /// `handle` and `window` are the server's.
    pub(super) fn new(
        context: gss::Context,
        handle: Vec<u8>,
        service: Service,
        window: u32,
    ) -> Secured {
        Secured {
            expires: context.expires(),
            mic_len: context.mic_len(),
            wrap_overhead: context.wrap_overhead(),
            context,
            handle,
            service,
            window,
        }
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secured")
            .field("service", &self.service)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

fn broken(error: gss::Error) -> Broken {
    Broken(error.to_string())
}

impl SecurityContext for Secured {
    fn handle(&self) -> &[u8] {
        &self.handle
    }

    fn service(&self) -> Service {
        self.service
    }

    fn window(&self) -> u32 {
        self.window
    }

    fn expires(&self) -> Option<SystemTime> {
        Some(self.expires)
    }

    fn mic_len(&self) -> usize {
        self.mic_len
    }

    fn wrap_overhead(&self) -> usize {
        self.wrap_overhead
    }

    fn mic(&self, message: &[&[u8]], mic: &mut [u8]) -> Result<(), Broken> {
        self.context.mic(message, mic).map_err(broken)
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> bool {
        self.context.verify_mic(message, mic).is_ok()
    }

    fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Result<(), Broken> {
        self.context.wrap(message, wrapped).map_err(broken)
    }

    fn unwrap(&self, wrapped: &mut [u8]) -> Option<Range<usize>> {
        self.context.unwrap(wrapped).ok()
    }
}
