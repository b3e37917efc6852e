//! The Identity service.

use crate::driver::{Driver, NAME};
use crate::messages::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse, Type,
};
use tonic::Status;

impl Driver {
    pub(crate) fn get_plugin_info(
        &self,
        _: GetPluginInfoRequest,
    ) -> Result<GetPluginInfoResponse, Status> {
        Ok(GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    pub(crate) fn get_plugin_capabilities(
        &self,
        _: GetPluginCapabilitiesRequest,
    ) -> Result<GetPluginCapabilitiesResponse, Status> {
        let number = Type::CONTROLLER_SERVICE;
        let service = Some(Type { number });
        Ok(GetPluginCapabilitiesResponse {
            capabilities: vec![PluginCapability { service }],
        })
    }

    pub(crate) fn probe(&self, _: ProbeRequest) -> Result<ProbeResponse, Status> {
        match self.mounter.works() {
            Ok(()) => Ok(ProbeResponse { ready: Some(true) }),
            Err(status) => Err(Status::failed_precondition(format!(
                "the program nfsrdma does not start on this node: {}",
                status.message()
            ))),
        }
    }
}
