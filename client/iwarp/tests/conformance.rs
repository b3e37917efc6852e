//! The tests of the provider contract, with all options of the provider.

use nfsrdma_iwarp::{Fpdu, IwarpOptions, IwarpProvider};
use nfsrdma_rdma_testing::fault::{Device, Faulty, Plan};
use std::net::SocketAddr;
use std::time::Duration;

fn v4() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn v6() -> SocketAddr {
    "[::1]:0".parse().unwrap()
}

fn provider(change: impl FnOnce(&mut IwarpOptions)) -> IwarpProvider {
    let mut options = IwarpOptions::default();
    change(&mut options);
    IwarpProvider::new(options)
}

mod by_default {
    nfsrdma_rdma_testing::conformance_tests!(super::provider(|_| ()), super::v4());
}

mod ipv6 {
    nfsrdma_rdma_testing::conformance_tests!(super::provider(|_| ()), super::v6());
}

mod crc {
    nfsrdma_rdma_testing::conformance_tests!(super::provider(|o| o.crc = true), super::v4());
}

mod one_segment {
    use super::*;
    nfsrdma_rdma_testing::conformance_tests!(provider(|o| o.fpdu = Fpdu::Bytes(1448)), v4());
}

mod one_segment_with_crc {
    use super::*;
    nfsrdma_rdma_testing::conformance_tests!(
        provider(|o| {
            o.fpdu = Fpdu::Bytes(1448);
            o.crc = true;
        }),
        v4()
    );
}

mod smallest_fpdus {
    use super::*;
    nfsrdma_rdma_testing::conformance_tests!(
        provider(|o| {
            o.fpdu = Fpdu::Bytes(128);
            o.crc = true;
        }),
        v6()
    );
}

mod jumbo {
    use super::*;
    nfsrdma_rdma_testing::conformance_tests!(provider(|o| o.fpdu = Fpdu::Bytes(9000)), v6());
}

mod peer_to_peer {
    nfsrdma_rdma_testing::conformance_tests!(
        super::provider(|o| o.peer_to_peer = true),
        super::v4()
    );
}

mod small_socket_buffers {
    nfsrdma_rdma_testing::conformance_tests!(
        super::provider(|o| o.socket_buffer = Some(8192)),
        super::v4()
    );
}

/// What the tests of the users of providers take for other devices keeps the contract as well.
fn like(plan: Plan) -> Faulty<IwarpProvider> {
    Faulty::new(IwarpProvider::default(), plan)
}

mod with_late_completions {
    use super::*;
    nfsrdma_rdma_testing::conformance_tests!(
        like(Plan {
            delay: Duration::from_micros(300),
            ..Plan::default()
        }),
        v4()
    );
}

mod like_a_device_with_windows {
    use super::*;
    nfsrdma_rdma_testing::conformance_tests!(
        like(Plan {
            device: Device {
                scatter_handle: false,
                posted_invalidation: true,
                ..Device::default()
            },
            ..Plan::default()
        }),
        v4()
    );
}
