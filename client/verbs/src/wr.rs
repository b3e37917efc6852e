//! Work requests in the form of libibverbs.
//!
//! Requests are encoded, linked and posted by one ibv_post_send(3). If the device refuses one,
//! those before it are accepted. The window of an accepted binding gets its new key here, because
//! providers read a window's current key from `ibv_mw::rkey`.

use crate::sys::{Pair, Remote, Window};
use rdma_sys as ib;
use rdma_sys::ibv_wr_opcode as opcode;
use smallvec::SmallVec;
use std::io;

/// A gather or scatter list in the device's terms.
pub(crate) type Sges = SmallVec<[Sge; 4]>;

/// One piece of local memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sge {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// An operation, with the peer's address and key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wr {
    Send {
        invalidate: Option<u32>,
    },
    Write {
        at: u64,
        rkey: u32,
    },
    Read {
        at: u64,
        rkey: u32,
    },
    /// Binds a window to a part of a region, under a new key.
    Bind(Bind),
    /// Unbinds a window.
    Invalidate {
        rkey: u32,
    },
}

/// The binding of a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bind {
    window: *mut ib::ibv_mw,
    region: *mut ib::ibv_mr,
    rkey: u32,
    at: u64,
    len: u64,
    remote: Remote,
}

// SAFETY: the pointers are used only when the request is posted, under the conditions of `post`.
unsafe impl Send for Bind {}

impl Bind {
    pub(crate) fn new(
        window: &Window,
        region: &crate::sys::Region,
        rkey: u32,
        (at, len): (u64, u64),
        remote: Remote,
    ) -> Self {
        Bind {
            window: window.as_ptr(),
            region: region.as_ptr(),
            rkey,
            at,
            len,
            remote,
        }
    }
}

/// Encodes a request, without its list of `sges` elements.
fn encode(id: u64, wr: &Wr, sges: usize, signaled: bool) -> ib::ibv_send_wr {
    // SAFETY: plain data for which all zeros are a value.
    let mut raw: ib::ibv_send_wr = unsafe { std::mem::zeroed() };
    raw.wr_id = id;
    raw.num_sge = sges as i32;
    if signaled {
        raw.send_flags = ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    match *wr {
        Wr::Send { invalidate: None } => raw.opcode = opcode::IBV_WR_SEND,
        Wr::Send {
            invalidate: Some(rkey),
        } => {
            raw.opcode = opcode::IBV_WR_SEND_WITH_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
        }
        Wr::Write { at, rkey } => {
            raw.opcode = opcode::IBV_WR_RDMA_WRITE;
            raw.wr.rdma = ib::rdma_t {
                remote_addr: at,
                rkey,
            };
        }
        Wr::Read { at, rkey } => {
            raw.opcode = opcode::IBV_WR_RDMA_READ;
            raw.wr.rdma = ib::rdma_t {
                remote_addr: at,
                rkey,
            };
        }
        Wr::Bind(bind) => {
            raw.opcode = opcode::IBV_WR_BIND_MW;
            raw.bind_mw_tso_union.bind_mw = ib::bind_mw_t {
                mw: bind.window,
                rkey: bind.rkey,
                bind_info: ib::ibv_mw_bind_info {
                    mr: bind.region,
                    addr: bind.at,
                    length: bind.len,
                    mw_access_flags: bind.remote.flags(),
                },
            };
        }
        Wr::Invalidate { rkey } => {
            raw.opcode = opcode::IBV_WR_LOCAL_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
        }
    }
    raw
}

/// Posts requests, each with its number and whether it is signaled. Returns how many were accepted,
/// and why not more.
///
/// # Safety
/// The memory of each gather and scatter list is in a region that stays registered, and is not used
/// in a conflicting way, until the request has completed or the queue pair is gone. The windows and
/// regions of bindings exist, and nobody else uses the windows now.
pub(crate) unsafe fn post<'a>(
    pair: &Pair,
    requests: impl Iterator<Item = (u64, &'a Wr, &'a Sges, bool)>,
) -> (usize, io::Result<()>) {
    let mut lists: SmallVec<[SmallVec<[ib::ibv_sge; 4]>; 8]> = SmallVec::new();
    let mut wrs: SmallVec<[ib::ibv_send_wr; 8]> = SmallVec::new();
    let mut bound: SmallVec<[(*mut ib::ibv_mw, u32, usize); 8]> = SmallVec::new();
    for (n, (id, wr, sges, signaled)) in requests.enumerate() {
        if let Wr::Bind(bind) = wr {
            bound.push((bind.window, bind.rkey, n));
        }
        wrs.push(encode(id, wr, sges.len(), signaled));
        lists.push(
            sges.iter()
                .map(|sge| ib::ibv_sge {
                    addr: sge.at,
                    length: sge.len,
                    lkey: sge.lkey,
                })
                .collect(),
        );
    }
    let Some(last) = wrs.len().checked_sub(1) else {
        return (0, Ok(()));
    };
    let first = wrs.as_mut_ptr();
    for (n, list) in lists.iter_mut().enumerate() {
        wrs[n].sg_list = list.as_mut_ptr();
        if n < last {
            // SAFETY: n + 1 is inside; the vector does not grow any more.
            wrs[n].next = unsafe { first.add(n + 1) };
        }
    }
    let mut bad = std::ptr::null_mut();
    // SAFETY: the chain and its lists live during the call, which copies them; the caller vouches
    // for the memory they name.
    let status = unsafe { ib::ibv_post_send(pair.as_ptr(), first, &mut bad) };
    let outcome = match status {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    };
    let accepted = if status == 0 {
        wrs.len()
    } else {
        // The first one that was refused; if the provider names none, all were.
        (bad as usize)
            .checked_sub(first as usize)
            .map_or(0, |bytes| bytes / size_of::<ib::ibv_send_wr>())
            .min(wrs.len())
    };
    for (window, rkey, n) in bound {
        if n < accepted {
            // SAFETY: the window exists and is used only here. Providers read its current key from
            // this field.
            unsafe { (*window).rkey = rkey };
        }
    }
    (accepted, outcome)
}

/// Posts a Receive.
///
/// # Safety
/// As for [`post`]: the memory is registered, and nobody else uses it until the Receive has
/// completed or the queue pair is gone.
pub(crate) unsafe fn post_receive(pair: &Pair, id: u64, sge: Sge) -> io::Result<()> {
    let mut list = ib::ibv_sge {
        addr: sge.at,
        length: sge.len,
        lkey: sge.lkey,
    };
    let mut wr = ib::ibv_recv_wr {
        wr_id: id,
        next: std::ptr::null_mut(),
        sg_list: &mut list,
        num_sge: 1,
    };
    let mut bad = std::ptr::null_mut();
    // SAFETY: the request and its list live during the call, which copies them.
    match unsafe { ib::ibv_post_recv(pair.as_ptr(), &mut wr, &mut bad) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}
