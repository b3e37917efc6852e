//! For tests of RDMA: [`conformance`] is the suite that every provider of the
//! [`nfsrdma_rdma`] contract has to pass, [`loopback`] a provider in this process, [`fault`]
//! makes any provider fail as told. Only tests, examples and benchmarks use them.

pub mod conformance;
pub mod fault;
pub mod loopback;

pub use loopback::Loopback;
