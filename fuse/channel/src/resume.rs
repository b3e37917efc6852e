//! Taking a mount over from a process that has ended.
//!
//! The kernel keeps a mount as long as somebody has descriptors of its devices, and asks nobody for INIT
//! again. Requests that nobody has read wait. Those that were read and not answered belong to the device
//! that they were read from: if its last descriptor is closed, they fail with ECONNABORTED; otherwise
//! nobody is given them, and their callers cannot even be killed, until FUSE_NOTIFY_RESEND puts them back
//! in front of the others. Then they have another number ([`Header::resent`](super::Header::resent)).
//! Kernels before Linux 6.9 have no such notification. With them, requests are read into memory that others keep, too
//! ([`Channel::keep_requests`]), and the next process takes from there what the kernel still wants an answer to.
//! FORGET and INTERRUPT have no replies and are not given again; but INTERRUPT follows a request that
//! is given again, if its caller has got a signal.

use super::abi::notify;
use super::device::Device;
use super::journal::{Journal, Slot};
use super::mount::{Channel, Features};
use super::serve::longest_request;
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

impl Channel {
    /// Takes a mount over from a process that has ended, with its devices: first that of the mount, then
    /// those that [`Channel::serve_loops`] gave to be kept, in any order. `features` are those of the
    /// process that answered INIT. Requests that were read and not answered come again, whatever device
    /// they were read from. `requests` is what [`Channel::keep_requests`] gave to be kept.
    ///
    /// `Unsupported`: there are no `requests`, and this kernel needs them ([`Features::resends`]).
    pub fn resume(
        devices: impl IntoIterator<Item = OwnedFd>,
        features: Features,
        requests: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let mut devices = devices.into_iter().map(|fd| Arc::new(Device::from(fd)));
        let device = devices.next().ok_or(Errno::BADF)?;
        if let Some(requests) = requests {
            let mut channel = Channel::of(device, features);
            channel.clones = devices.collect();
            channel.replay(requests)?;
            return Ok(channel);
        }
        device.send(0, notify::RESEND, &[]).map_err(|error| {
            match error {
                Errno::INVAL => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kernel does not give unanswered requests again, as Linux 6.9 and later do",
                ),
                error => error.into(),
            }
        })?;
        let mut channel = Channel::of(device, features);
        channel.clones = devices.collect();
        Ok(channel)
    }

    /// Whether this program can go on with what [`Channel::keep_requests`] of another process gave to be kept, which
    /// may still use it.
    pub fn check_requests(requests: &OwnedFd) -> io::Result<()> {
        Journal::checked(requests.try_clone()?).map(drop)
    }

    /// Where the kernel does not give unanswered requests again, has them kept from now on, and gives the memory that
    /// they are in to `keep`. To be called before any is read.
    pub fn keep_requests(
        &mut self,
        keep: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.features().resends() {
            let journal = Journal::create(longest_request(self.features()))?;
            keep(journal.fd())?;
            self.journal = Some(journal);
        }
        Ok(())
    }

    /// Finds the unanswered requests in the journal of another process, and goes on with it.
    fn replay(&mut self, requests: OwnedFd) -> io::Result<()> {
        let (journal, found) = Journal::open(requests)?;
        let mut unanswered = Vec::new();
        for (unique, number) in found {
            let slot = Slot::of(&journal, number);
            let mut devices = [self.device()].into_iter().chain(&self.clones);
            if let Some(device) = devices.find(|device| device.awaits(unique)) {
                device.set_journal(&journal);
                unanswered.push((device.clone(), slot));
            }
        }
        self.unanswered = unanswered;
        self.journal = Some(journal);
        Ok(())
    }
}
