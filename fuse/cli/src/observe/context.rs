//! What a trace adds to the transport's events: paths of handles, and processes of threads.

use nfsrdma_xdr::nfs3::FileHandle;
use std::fmt;

pub(crate) type FindPath = Box<dyn FnMut(&FileHandle) -> Option<String> + Send>;

/// The context of one listener.
pub(super) struct Context {
    find: FindPath,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(find: FindPath) -> Self {
        Context { find }
    }

    pub(super) fn path(&mut self, handle: &FileHandle) -> Option<String> {
        (self.find)(handle)
    }

    /// The process of the thread `tid`, since FUSE reports threads; `tid` itself if the thread has
    /// ended. It is not cached, because thread numbers are reused.
    pub(super) fn process(&self, tid: u32) -> u32 {
        let look = || {
            let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
            line.trim().parse().ok()
        };
        look().unwrap_or(tid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_belong_to_their_process() {
        let context = Context::new(Box::new(|_| None));
        let own = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        assert_eq!(context.process(own), std::process::id());
        assert_eq!(context.process(u32::MAX), u32::MAX);
    }
}
