//! For tests of RDMA: [`conformance`] is the suite that every provider of the [`nfsrdma_rdma`]
//! contract has to pass, [`loopback`] a provider in this process, [`fault`] makes any provider fail
//! as told, [`drain`] leaves a pool without memory. Only tests, examples and benchmarks use them.

pub mod conformance;
pub mod fault;
pub mod loopback;

pub use loopback::Loopback;

use nfsrdma_rdma::{BufMut, Pool};

/// All memory that is left in a pool.
pub fn drain(pool: &Pool) -> Vec<BufMut> {
    let most = pool.capacity().next_power_of_two();
    let sizes = std::iter::successors(Some(most), |size| (*size > 1).then_some(size / 2));
    sizes
        .flat_map(|size| std::iter::from_fn(move || pool.alloc(size)))
        .collect()
}
