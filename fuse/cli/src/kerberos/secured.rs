//! A Kerberos context as the RPC transport uses it, with several threads at once.

use nfsrdma_gss as gss;
use nfsrdma_rpcrdma::security::{Broken, SecurityContext, Service};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::SystemTime;

/// An established context with a server.
pub(super) struct Secured {
    context: Mutex<gss::Context>,
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
            context: Mutex::new(context),
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

/// A message in one piece, as the library needs it.
fn joined<'a>(pieces: &[&'a [u8]]) -> Cow<'a, [u8]> {
    match pieces {
        [only] => Cow::Borrowed(only),
        pieces => Cow::Owned(pieces.concat()),
    }
}

/// Copies what the library made to where it was asked for.
fn put(made: Result<gss::Output, gss::Error>, to: &mut [u8]) -> Result<(), Broken> {
    let made = made.map_err(|error| Broken(error.to_string()))?;
    if made.len() != to.len() {
        let (is, was) = (made.len(), to.len());
        return Err(Broken(format!("it makes {is} B instead of {was}")));
    }
    to.copy_from_slice(&made);
    Ok(())
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
        let message = joined(message);
        put(self.context.lock().mic(&message), mic)
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> bool {
        self.context.lock().verify_mic(message, mic).is_ok()
    }

    fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Result<(), Broken> {
        let message = joined(message);
        put(self.context.lock().wrap(&message), wrapped)
    }

    fn unwrap(&self, wrapped: &mut [u8]) -> Option<Range<usize>> {
        let message = self.context.lock().unwrap(wrapped).ok()?;
        wrapped.get_mut(..message.len())?.copy_from_slice(&message);
        Some(0..message.len())
    }
}
