//! The faults: how each begins, how long it lasts, and how it ends.

use crate::proxy::Way;
use crate::stand::Stand;
use anyhow::Result;
use nfsrdma_test_support::Random;
use std::time::Duration;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    /// The server gets SIGKILL, and is started again.
    Kill,
    /// The server gets SIGSTOP, and continues later.
    Stop,
    /// Connections are closed in order.
    Cut,
    /// Connections are reset.
    Reset,
    /// Bytes to the server are held back.
    StallUp,
    /// Bytes to the client are held back.
    StallDown,
    /// Nothing arrives in either direction, but nothing is lost, and new connections wait, too.
    Partition,
    /// Connections stay, but lose all bytes.
    HalfOpen,
    /// Bytes arrive seven at a time.
    Drip,
    /// Everything arrives late.
    Delay,
    CorruptUp,
    CorruptDown,
    HoleUp,
    HoleDown,
    /// Connections are cut, and new ones refused.
    Refuse,
}

pub(crate) const ALL: &[Fault] = &[
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::Stop,
    Fault::Cut,
    Fault::Cut,
    Fault::Reset,
    Fault::Reset,
    Fault::StallUp,
    Fault::StallDown,
    Fault::Partition,
    Fault::HalfOpen,
    Fault::Drip,
    Fault::Delay,
    Fault::CorruptUp,
    Fault::CorruptDown,
    Fault::HoleUp,
    Fault::HoleDown,
    Fault::Refuse,
];

impl Fault {
    pub(crate) fn any(random: &mut Random) -> Self {
        *random.pick(ALL)
    }

    pub(crate) fn begin(self, stand: &mut Stand) -> Result<()> {
        let proxy = &stand.proxy;
        match self {
            Fault::Kill => stand.server.kill()?,
            Fault::Stop => stand.server.freeze(true)?,
            Fault::Cut => proxy.cut(false),
            Fault::Reset => proxy.cut(true),
            Fault::StallUp => proxy.set(Way::Stall, Way::Pass),
            Fault::StallDown => proxy.set(Way::Pass, Way::Stall),
            Fault::Partition => proxy.set(Way::Stall, Way::Stall),
            Fault::HalfOpen => proxy.set(Way::Swallow, Way::Swallow),
            Fault::Drip => proxy.set(Way::Drip, Way::Drip),
            Fault::Delay => proxy.set(Way::Delay, Way::Delay),
            Fault::CorruptUp => proxy.set(Way::Corrupt, Way::Pass),
            Fault::CorruptDown => proxy.set(Way::Pass, Way::Corrupt),
            Fault::HoleUp => proxy.set(Way::Hole, Way::Pass),
            Fault::HoleDown => proxy.set(Way::Pass, Way::Hole),
            Fault::Refuse => {
                proxy.refuse(true);
                proxy.cut(true);
            }
        }
        Ok(())
    }

    /// The duration of the fault, which may be longer than the `timeo` of the mounts.
    pub(crate) fn lasts(self, random: &mut Random) -> Duration {
        let most = match self {
            Fault::Cut | Fault::Reset => 1,
            Fault::Kill => 300,
            Fault::CorruptUp | Fault::CorruptDown | Fault::HoleUp | Fault::HoleDown => 200,
            Fault::Drip | Fault::Delay | Fault::Refuse => 1000,
            Fault::Stop | Fault::StallUp | Fault::StallDown => 3000,
            Fault::Partition | Fault::HalfOpen => 3500,
        };
        Duration::from_millis(random.below(most) as u64)
    }

    pub(crate) fn end(self, stand: &mut Stand) -> Result<()> {
        match self {
            Fault::Kill => stand.server.start_again()?,
            Fault::Stop => stand.server.freeze(false)?,
            Fault::Refuse => stand.proxy.refuse(false),
            _ => stand.proxy.set(Way::Pass, Way::Pass),
        }
        Ok(())
    }
}
