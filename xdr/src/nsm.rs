//! Network Status Monitor version 1, which reports that a host has restarted (The Open Group,
//! "Protocols for Interworking: XNFS", document C702, chapter on NSM).
//!
//! A host has a state number, which is odd while the host is up and grows with each restart. A lock
//! manager asks its local monitor to watch a peer (MON). After a restart the peer's monitor sends
//! NOTIFY to our monitor, which calls the lock manager back with the peer's name, the new state and
//! the 16 private bytes of MON.

use crate::codec;
use crate::codec::{Decode, Decoder, Encode, Encoder, Text, xdr_enum, xdr_struct};
use crate::nfs3::Void;
use crate::procedure::idempotent_procedures;

/// RPC program number of NSM (status).
pub const PROGRAM: u32 = 100024;
/// The only version.
pub const VERSION: u32 = 1;
/// Longest name of a host in bytes (SM_MAXSTRLEN).
pub const NAME_MAX: usize = 1024;
/// Length of the private data that a call-back returns (SM_PRIV_SIZE).
pub const PRIVATE_LEN: usize = 16;

xdr_enum! {
    /// res: the outcome of STAT and MON.
    Outcome {
        /// The host is monitored.
        Success = 0,
        Failure = 1,
    }
}

/// Data that a monitor keeps for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Private(pub [u8; PRIVATE_LEN]);

impl Encode for Private {
    fn encode(&self, to: &mut Encoder) {
        to.opaque_fixed(&self.0);
    }
}

impl Decode<'_> for Private {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        let mut bytes = [0; PRIVATE_LEN];
        bytes.copy_from_slice(from.opaque_fixed(PRIVATE_LEN)?);
        Ok(Private(bytes))
    }
}

xdr_struct! {
    /// sm_name.
    #[derive(Copy)]
    HostName<'a> { name: Text<'a, NAME_MAX>, }
}

xdr_struct! {
    /// my_id: the procedure to call back when a monitored host restarts.
    #[derive(Copy)]
    Callback<'a> {
        /// The host to call back, which is this one.
        name: Text<'a, NAME_MAX>,
        program: u32,
        version: u32,
        procedure: u32,
    }
}

xdr_struct! {
    /// mon_id.
    #[derive(Copy)]
    MonitorId<'a> { name: Text<'a, NAME_MAX>, callback: Callback<'a>, }
}

xdr_struct! {
    /// mon, the arguments of MON.
    #[derive(Copy)]
    Monitor<'a> { id: MonitorId<'a>, private: Private, }
}

xdr_struct! {
    /// sm_stat_res.
    #[derive(Copy)]
    StatRes { outcome: Outcome, state: u32, }
}

xdr_struct! {
    /// sm_stat.
    #[derive(Copy)]
    State { state: u32, }
}

xdr_struct! {
    /// stat_chge, the arguments of NOTIFY: the new state of a host.
    #[derive(Copy)]
    StateChange<'a> { name: Text<'a, NAME_MAX>, state: u32, }
}

xdr_struct! {
    /// status, the arguments of the procedure that a [`Callback`] names.
    #[derive(Copy)]
    HostStatus<'a> { name: Text<'a, NAME_MAX>, state: u32, private: Private, }
}

idempotent_procedures! {
    Null = 0, "SM_NULL", Void => Void, 0;
    /// Whether a host could be monitored.
    Stat = 1, "SM_STAT", HostName<'a> => StatRes, 8;
    Mon = 2, "SM_MON", Monitor<'a> => StatRes, 8;
    Unmon = 3, "SM_UNMON", MonitorId<'a> => State, 4;
    UnmonAll = 4, "SM_UNMON_ALL", Callback<'a> => State, 4;
    /// Makes the monitor behave as after a restart of this host.
    SimulateCrash = 5, "SM_SIMU_CRASH", Void => Void, 0;
    Notify = 6, "SM_NOTIFY", StateChange<'a> => Void, 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mon_literal() {
        let callback = Callback {
            name: Text(b"me"),
            program: 100_021,
            version: 4,
            procedure: 16,
        };
        let monitor = Monitor {
            id: MonitorId {
                name: Text(b"peer"),
                callback,
            },
            private: Private(*b"0123456789abcdef"),
        };
        let bytes =
            b"\0\0\0\x04peer\0\0\0\x02me\0\0\0\x01\x86\xb5\0\0\0\x04\0\0\0\x100123456789abcdef";
        assert_eq!(monitor.to_xdr(), bytes);
        assert_eq!(Monitor::from_xdr(bytes), Ok(monitor));
        let status = HostStatus {
            name: Text(b"peer"),
            state: 7,
            private: monitor.private,
        };
        assert_eq!(status.to_xdr(), b"\0\0\0\x04peer\0\0\0\x070123456789abcdef");
    }

    #[test]
    fn notify_and_results_literal() {
        let change = StateChange {
            name: Text(b"host"),
            state: 3,
        };
        assert_eq!(change.to_xdr(), b"\0\0\0\x04host\0\0\0\x03");
        let res = StatRes {
            outcome: Outcome::Failure,
            state: 5,
        };
        assert_eq!(res.to_xdr(), [0, 0, 0, 1, 0, 0, 0, 5]);
        assert_eq!(State { state: 9 }.to_xdr(), [0, 0, 0, 9]);
    }
}
