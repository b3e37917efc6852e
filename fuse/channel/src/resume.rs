//! Taking a mount over from a process that has ended.
//!
//! The kernel keeps a mount as long as somebody has descriptors of its devices, and asks nobody for INIT
//! again. Requests that nobody has read wait. Those that were read and not answered belong to the device
//! that they were read from: if its last descriptor is closed, they fail with ECONNABORTED; otherwise
//! nobody is given them, and their callers cannot even be killed, until FUSE_NOTIFY_RESEND puts them back
//! in front of the others. Then they have another number ([`Header::resent`](super::Header::resent)).
//! FORGET and INTERRUPT have no replies and are not given again; but INTERRUPT follows a request that
//! is given again, if its caller has got a signal.

use super::abi::notify;
use super::device::Device;
use super::mount::{Channel, Features, Users};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Channel {
    /// Takes a mount over from a process that has ended, with its devices: first that of the mount, then
    /// those that [`Channel::serve_loops`] gave to be kept, in any order. `features` are those of the
    /// process that answered INIT. Requests that were read and not answered come again, whatever device
    /// they were read from. Dropping the channel does not unmount.
    ///
    /// `Unsupported`: this kernel cannot do that ([`Features::resends`]).
    pub fn resume(
        devices: impl IntoIterator<Item = OwnedFd>,
        users: Users,
        features: Features,
    ) -> io::Result<Self> {
        let mut devices = devices.into_iter().map(|fd| Arc::new(Device::from(fd)));
        let device = devices.next().ok_or(Errno::BADF)?;
        device.send(0, notify::RESEND, &[]).map_err(|error| {
            match error {
                Errno::INVAL => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kernel does not give unanswered requests again, as Linux 6.9 and later do",
                ),
                error => error.into(),
            }
        })?;
        let mut channel = Channel::of(device, users, features);
        channel.clones = devices.collect();
        Ok(channel)
    }
}
