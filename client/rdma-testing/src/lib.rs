//! Support for tests of RDMA: [`conformance`] has the tests that every provider of the
//! [`nfsrdma_rdma`] contract must pass, [`fault`] gives any provider faults and the properties of
//! other devices, and [`drain`] empties a pool. Only tests, examples and benchmarks use them.

pub mod conformance;
pub mod fault;

use nfsrdma_rdma::{BufMut, Pool};

/// Allocates all memory that is free in a pool.
pub fn drain(pool: &Pool) -> Vec<BufMut> {
    let most = pool.capacity().next_power_of_two();
    let sizes = std::iter::successors(Some(most), |size| (*size > 1).then_some(size / 2));
    sizes
        .flat_map(|size| std::iter::from_fn(move || pool.alloc(size)))
        .collect()
}
