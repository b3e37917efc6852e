//! libibverbs' resources as owned types.
//!
//! Each value destroys its resource when dropped, and holds the resources it depends on by `Arc`,
//! so that they are destroyed in the right order: queue pair, completion queue, protection domain,
//! connection identifier (which keeps the device open), event channel; and region and window before
//! their protection domain.

use crate::cm::Id;
use crate::error::local;
use crate::wait::nonblocking;
use nfsrdma_rdma::{Error, Result};
use rdma_sys as ib;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The result of a call that returns null and sets `errno` on failure.
fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// The result of a verb that returns an error number.
fn done(status: i32) -> io::Result<()> {
    match status {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// The vendor ID of rdma_rxe, which no hardware has.
const RXE_VENDOR: u32 = 0xff_ffff;

/// The properties of a device.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) iwarp: bool,
    /// Whether it is the kernel's rdma_rxe.
    pub(crate) soft_roce: bool,
    pub(crate) max_qp_wr: usize,
    pub(crate) max_sge: usize,
    /// Largest number of scatter elements of an RDMA Read.
    pub(crate) max_sge_rd: usize,
    pub(crate) max_cqe: usize,
    /// How many RDMA Reads a queue pair serves, and issues, at once.
    pub(crate) max_reads_in: u32,
    pub(crate) max_reads_out: u32,
    /// Largest number of type 2 memory windows; 0 if it has none.
    pub(crate) windows: usize,
    /// Largest message, in bytes.
    pub(crate) max_message: usize,
}

impl Device {
    /// Queries the device that `id` is bound to.
    pub(crate) fn of(id: &Id) -> Result<Device> {
        let context = id.context()?;
        // SAFETY: plain data for which all zeros are a valid value; the calls only write to them.
        let mut attr: ib::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: `context` is open as long as `id` lives.
        done(unsafe { ib::ibv_query_device(context, &mut attr) })
            .map_err(|error| local("cannot ask the RDMA device what it can do", error))?;
        // SAFETY: as above.
        let mut port: ib::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        done(unsafe { ib::___ibv_query_port(context, id.port(), &mut port) })
            .map_err(|error| local("cannot ask the RDMA device's port", error))?;
        // SAFETY: an open context points to its device, whose name is a C string.
        let (name, transport) = unsafe {
            let device = (*context).device;
            let name = CStr::from_ptr(ib::ibv_get_device_name(device));
            (
                name.to_string_lossy().into_owned(),
                (*device).transport_type,
            )
        };
        let type_2 = ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
            | ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        let count = |n: i32| usize::try_from(n).unwrap_or(0);
        Ok(Device {
            soft_roce: attr.vendor_id == RXE_VENDOR
                && transport == ib::ibv_transport_type::IBV_TRANSPORT_IB,
            name,
            iwarp: transport == ib::ibv_transport_type::IBV_TRANSPORT_IWARP,
            max_qp_wr: count(attr.max_qp_wr),
            max_sge: count(attr.max_sge),
            max_sge_rd: count(attr.max_sge_rd).max(1),
            max_cqe: count(attr.max_cqe),
            // The connection manager has one byte for each.
            max_reads_in: attr.max_qp_rd_atom.clamp(0, 255) as u32,
            max_reads_out: attr.max_qp_init_rd_atom.clamp(0, 255) as u32,
            windows: if attr.device_cap_flags & type_2 != 0 {
                count(attr.max_mw)
            } else {
                0
            },
            max_message: (port.max_msg_sz as usize).clamp(1 << 20, 1 << 30),
        })
    }
}

/// A protection domain: only resources of one domain can be used together.
pub(crate) struct Domain {
    pd: NonNull<ib::ibv_pd>,
    id: Arc<Id>,
}

// SAFETY: verbs may be called from any thread (ibv_* calls are thread-safe by contract).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(id: Arc<Id>) -> Result<Arc<Self>> {
        let context = id.context()?;
        // SAFETY: `context` is open as long as `id` lives, which the domain holds.
        let pd = made(unsafe { ib::ibv_alloc_pd(context) })
            .map_err(|error| local("cannot make an RDMA protection domain", error))?;
        Ok(Arc::new(Domain { pd, id }))
    }

    pub(crate) fn as_ptr(&self) -> *mut ib::ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain holds it, so it is empty.
        unsafe { ib::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

/// What a peer may do with a region or a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remote {
    Nothing,
    Write,
    Read,
}

impl Remote {
    pub(crate) fn flags(self) -> u32 {
        match self {
            Remote::Nothing => 0,
            Remote::Write => ib::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            Remote::Read => ib::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        }
    }
}

/// A registered memory region.
pub(crate) struct Region {
    mr: NonNull<ib::ibv_mr>,
    _domain: Arc<Domain>,
}

// SAFETY: as for Domain.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `len` bytes from `at`.
    ///
    /// # Safety
    /// Until the region is dropped, the memory remains mapped, and only the device (and the peer,
    /// as `remote` allows) uses it in a conflicting way.
    pub(crate) unsafe fn register(
        domain: &Arc<Domain>,
        at: *mut u8,
        len: usize,
        remote: Remote,
        windows: bool,
    ) -> io::Result<Self> {
        let mut access = remote.flags();
        // A source needs no right to be written, not even by the device.
        if remote != Remote::Read {
            access |= ib::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        }
        if windows {
            access |= ib::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        }
        // SAFETY: the caller vouches for the memory; the domain is alive.
        let mr = unsafe { ib::ibv_reg_mr(domain.as_ptr(), at.cast(), len, access as i32) };
        Ok(Region {
            mr: made(mr)?,
            _domain: domain.clone(),
        })
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.mr.as_ref().lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.mr.as_ref().rkey }
    }

    pub(crate) fn as_ptr(&self) -> *mut ib::ibv_mr {
        self.mr.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered once, and deregistered only here. When the call returns, the device no
        // longer accesses the memory.
        let status = unsafe { ib::ibv_dereg_mr(self.mr.as_ptr()) };
        if status != 0 {
            tracing::error!(status, "a memory region stays registered");
        }
    }
}

/// A type 2 memory window. Its handle changes with each binding.
pub(crate) struct Window {
    mw: NonNull<ib::ibv_mw>,
    _domain: Arc<Domain>,
}

// SAFETY: as for Domain; its key changes only under the lock of the connection's work.
unsafe impl Send for Window {}

impl Window {
    pub(crate) fn new(domain: &Arc<Domain>) -> io::Result<Self> {
        // SAFETY: the domain is alive. The call returns None or null if it fails.
        let mw = unsafe { ib::ibv_alloc_mw(domain.as_ptr(), ib::ibv_mw_type::IBV_MW_TYPE_2) };
        Ok(Window {
            mw: made(mw.unwrap_or(std::ptr::null_mut()))?,
            _domain: domain.clone(),
        })
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the window exists.
        unsafe { self.mw.as_ref().rkey }
    }

    /// Chooses the key for the next binding: the window's index, and a low byte that differs from
    /// the last key's.
    pub(crate) fn next_rkey(&self, random: u8) -> u32 {
        let last = self.rkey();
        let mut low = random;
        if u32::from(low) == last & 0xff {
            low = low.wrapping_add(1);
        }
        (last & !0xff) | u32::from(low)
    }

    pub(crate) fn as_ptr(&self) -> *mut ib::ibv_mw {
        self.mw.as_ptr()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: allocated once, and freed only here, which ends its binding.
        let status = unsafe { ib::ibv_dealloc_mw(self.mw.as_ptr()) };
        if status != 0 {
            tracing::error!(status, "a memory window stays allocated");
        }
    }
}

/// A completion queue and the channel for its events.
pub(crate) struct Queue {
    cq: NonNull<ib::ibv_cq>,
    channel: NonNull<ib::ibv_comp_channel>,
    /// The flags that indicate that a handle was invalidated.
    invalidated: u32,
    _id: Arc<Id>,
}

// SAFETY: as for Domain.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// One completion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: ib::ibv_wc_status::Type,
    pub(crate) len: usize,
    pub(crate) invalidated: Option<u32>,
}

impl Queue {
    pub(crate) fn new(id: Arc<Id>, device: &Device, entries: usize) -> Result<Self> {
        let context = id.context()?;
        let mut invalidated = ib::ibv_wc_flags::IBV_WC_WITH_INV.0;
        if device.soft_roce {
            // rdma_rxe sets the kernel's value of the flag, which differs from that of libibverbs.
            // (In libibverbs that value means a checksum, which connections do not have.)
            invalidated |= ib::ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
        }
        let failed = |error| local("cannot make an RDMA completion queue", error);
        // SAFETY: the context is open as long as `id` lives, which the queue holds.
        let channel = made(unsafe { ib::ibv_create_comp_channel(context) }).map_err(failed)?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: as above; no cookie; every device has vector 0.
        let cq = unsafe {
            ib::ibv_create_cq(context, entries, std::ptr::null_mut(), channel.as_ptr(), 0)
        };
        let cq = match made(cq) {
            Ok(cq) => cq,
            Err(error) => {
                // SAFETY: made above, and not in use.
                unsafe { ib::ibv_destroy_comp_channel(channel.as_ptr()) };
                return Err(failed(error));
            }
        };
        let queue = Queue {
            cq,
            channel,
            invalidated,
            _id: id,
        };
        nonblocking(queue.as_fd()).map_err(failed)?;
        Ok(queue)
    }

    /// Takes up to 32 completions. Returns how many there were.
    pub(crate) fn take(&self, out: &mut Vec<Done>) -> usize {
        // SAFETY: plain data for which all zeros are a value.
        let mut entries: [ib::ibv_wc; 32] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue exists; the array has room for as many as are requested.
        let n = unsafe {
            ib::ibv_poll_cq(self.cq.as_ptr(), entries.len() as i32, entries.as_mut_ptr())
        };
        // A negative number means a broken queue; the end of the connection is noticed elsewhere.
        let n = usize::try_from(n).unwrap_or(0);
        out.extend(entries[..n].iter().map(|wc| {
            Done {
                wr_id: wc.wr_id,
                status: wc.status,
                len: wc.byte_len as usize,
                // SAFETY: the union holds a key if the flag says so, and is a number anyway.
                invalidated: (wc.wc_flags & self.invalidated != 0)
                    .then_some(unsafe { wc.imm_data_invalidated_rkey_union.invalidated_rkey }),
            }
        }));
        n
    }

    /// Requests an event for the next completion. Earlier completions must be polled for again.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists.
        done(unsafe { ib::ibv_req_notify_cq(self.cq.as_ptr(), 0) })
    }

    /// Takes all events that have arrived.
    pub(crate) fn clear_events(&self) {
        let (mut cq, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists, does not block, and belongs to this queue alone. Each event
        // is acknowledged; otherwise destroying the queue would wait for it.
        unsafe {
            while ib::ibv_get_cq_event(self.channel.as_ptr(), &mut cq, &mut cookie) == 0 {
                ib::ibv_ack_cq_events(cq, 1);
            }
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ib::ibv_cq {
        self.cq.as_ptr()
    }
}

/// Readable if there was a completion after [`Queue::arm`].
impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and its descriptor is open as long as it does.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue pair that used it is gone (`Pair` holds this); the channel is destroyed
        // after the queue.
        unsafe {
            ib::ibv_destroy_cq(self.cq.as_ptr());
            ib::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// The sizes of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depths {
    pub(crate) send: usize,
    pub(crate) receive: usize,
    pub(crate) sge: usize,
}

/// A reliable connected queue pair.
pub(crate) struct Pair {
    qp: NonNull<ib::ibv_qp>,
    id: Arc<Id>,
    _queue: Arc<Queue>,
    _domain: Arc<Domain>,
}

// SAFETY: as for Domain.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Pair {
    /// Makes the queue pair of `domain`'s connection identifier, which must not have one.
    pub(crate) fn new(domain: &Arc<Domain>, queue: &Arc<Queue>, depths: Depths) -> Result<Self> {
        // SAFETY: plain data for which all zeros are a value.
        let mut attr: ib::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        attr.send_cq = queue.as_ptr();
        attr.recv_cq = queue.as_ptr();
        attr.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
        attr.cap.max_send_wr = depths.send as u32;
        attr.cap.max_recv_wr = depths.receive as u32;
        attr.cap.max_send_sge = depths.sge as u32;
        attr.cap.max_recv_sge = 1;
        let id = domain.id.clone();
        // SAFETY: identifier, domain and queue are alive and of one device; the queue pair
        // holds all three.
        let made_it = unsafe { ib::rdma_create_qp(id.as_ptr(), domain.as_ptr(), &mut attr) };
        if made_it != 0 {
            let error = io::Error::last_os_error();
            return Err(local("cannot make an RDMA queue pair", error));
        }
        // SAFETY: the call above succeeded, so the identifier has its queue pair.
        let qp = NonNull::new(unsafe { (*id.as_ptr()).qp })
            .ok_or(Error::Misuse("librdmacm made no queue pair"))?;
        Ok(Pair {
            qp,
            id,
            _queue: queue.clone(),
            _domain: domain.clone(),
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut ib::ibv_qp {
        self.qp.as_ptr()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made by rdma_create_qp for this identifier, and destroyed only here. When the
        // call returns, the device no longer accesses memory for it.
        unsafe { ib::rdma_destroy_qp(self.id.as_ptr()) };
    }
}

/// The library's text for a status.
pub(crate) fn status_text(status: ib::ibv_wc_status::Type) -> String {
    // SAFETY: the call returns a constant C string for any number.
    let text = unsafe { CStr::from_ptr(ib::ibv_wc_status_str(status)) };
    text.to_string_lossy().into_owned()
}
