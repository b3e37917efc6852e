//! NSM version 1, by which clients announce their restarts. It does not monitor hosts for others,
//! since only this server's own lock manager would ask for that.

use super::{Context, Done, Service, Stop};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::nsm::{
    Callback, HostName, Mon, Monitor, MonitorId, Notify, Null, Outcome, SimulateCrash, Stat,
    StatRes, State, StateChange, Unmon, UnmonAll,
};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::Accepted;

impl Service {
    pub(super) fn nsm(
        &self,
        context: &Context<'_>,
        mut from: Decoder<'_>,
        out: &mut Encoder,
    ) -> Done {
        let state = self.locks.with(|table, _| table.state());
        self.locks.monitor_call(context.procedure);
        match context.procedure {
            Null::NUMBER => {}
            Stat::NUMBER => {
                HostName::decode(&mut from)?;
                StatRes {
                    outcome: Outcome::Failure,
                    state,
                }
                .encode(out);
            }
            Mon::NUMBER => {
                Monitor::decode(&mut from)?;
                StatRes {
                    outcome: Outcome::Failure,
                    state,
                }
                .encode(out);
            }
            Unmon::NUMBER => {
                MonitorId::decode(&mut from)?;
                State { state }.encode(out);
            }
            UnmonAll::NUMBER => {
                Callback::decode(&mut from)?;
                State { state }.encode(out);
            }
            // Only permitted from this machine, because it drops everybody's locks.
            SimulateCrash::NUMBER => {
                if context.peer.remote.ip().to_canonical().is_loopback() {
                    self.locks.restart();
                }
            }
            Notify::NUMBER => {
                let change = StateChange::decode(&mut from)?;
                let client = context.peer.remote.ip().to_canonical();
                self.locks
                    .with(|table, now| table.client_restarted(now, client, change.state));
            }
            _ => return Err(Stop::Accepted(Accepted::ProcUnavail)),
        }
        Ok(None)
    }
}
