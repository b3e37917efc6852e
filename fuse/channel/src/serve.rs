//! Threads that read requests and hand them over: event loops of the caller's, which wait for other
//! things too ([`Channel::serve_loops`]).
//!
//! Each reader has a descriptor of its own, where the kernel can clone it (FUSE_DEV_IOC_CLONE), and
//! a buffer that is large enough for the largest WRITE. A request is decoded and given to the
//! [`Handler`] with the [`Reply`] to it; FORGET and INTERRUPT, which have no reply, have methods of
//! their own. A request that cannot be decoded is answered EIO. All threads end with the mount.

use super::abi::{MIN_READ_BUFFER, opcode};
use super::clone;
use super::device::{Device, Received};
use super::header::Header;
use super::journal::Slot;
use super::landing::Landing;
use super::mount::{Channel, Features};
use super::operation::{Operation, WriteIn};
use super::reply::Reply;
use super::request::{self, Request, WRITE_HEAD};
use rustix::io::Errno;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::Duration;

/// What answers requests. All calls come from the threads that read them.
pub trait Handler: Send + Sync + 'static {
    /// Memory that the data of a WRITE is read into, and that [`Handler::write`] keeps.
    type Buffer: DerefMut<Target = [u8]>;

    /// A request to answer. Other than FORGET, BATCH_FORGET, INTERRUPT and DESTROY.
    fn handle(&self, request: &Request<'_>, reply: Reply);

    /// Memory of exactly `len` bytes, a power of two. `None`: the data is lent to
    /// [`Handler::handle`] like that of any other request.
    fn buffer(&self, len: usize) -> Option<Self::Buffer>;

    /// A WRITE whose data is in memory that [`Handler::buffer`] gave.
    fn write(&self, header: &Header, to: &WriteIn, data: Self::Buffer, reply: Reply);

    /// The kernel gives up `count` of its references to a node.
    fn forget(&self, nodeid: u64, count: u64);

    /// The caller of the request `unique` got a signal. The request may have been read by
    /// another thread, which has not come to it yet, or be answered already.
    fn interrupt(&self, unique: u64);
}

/// Gives a device to a process that keeps it open, by its name, and returns when that process has it.
pub type Keep<'a> = &'a mut dyn FnMut(&str, BorrowedFd<'_>) -> io::Result<()>;

/// The threads that serve a mount. They end with it.
#[derive(Debug)]
pub struct Serving {
    channel: Channel,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// Space in front of the data of a WRITE, and for the longest of the other requests (names,
/// the value of an extended attribute).
const ROOM: usize = 4096;
const LEAST: usize = 128 << 10;
/// Smallest page of memory.
const PAGE: usize = 4096;

/// The length of the longest request.
pub(crate) fn longest_request(features: &Features) -> usize {
    let size = (features.max_write as usize).max(LEAST) + ROOM;
    size.max(MIN_READ_BUFFER)
}

/// What [`Reader::read`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadResult {
    /// A request was handed over.
    Handled,
    /// There is no request.
    Empty,
    /// The mount is gone.
    Ended,
}

/// Reads requests from a descriptor of its own.
#[derive(Debug)]
pub struct Reader {
    device: Arc<Device>,
    buffer: Buffer,
    /// Another process goes on with the mount if this one is killed.
    has_successor: bool,
    /// The length of the last request, which that of the next one may be.
    last: usize,
    /// What [`Reader::again`] hands over.
    unanswered: Vec<(Arc<Device>, Slot)>,
}

/// The memory that requests are read into.
#[derive(Debug)]
pub(crate) enum Buffer {
    Own(Vec<u8>),
    Kept(Slot),
}

impl Buffer {
    /// Where requests are kept: the slot's number, or 0.
    fn slot(&self) -> u32 {
        match self {
            Buffer::Own(_) => 0,
            Buffer::Kept(slot) => slot.number(),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Own(own) => own,
            Buffer::Kept(slot) => slot,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::Own(own) => own,
            Buffer::Kept(slot) => slot,
        }
    }
}

impl AsFd for Reader {
    /// Readable when there is a request, and at the mount's end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Reader {
    pub(crate) fn new(device: Arc<Device>, buffer: Buffer) -> Self {
        Reader {
            device,
            buffer,
            has_successor: false,
            last: 0,
            unanswered: Vec::new(),
        }
    }

    /// Another process goes on with the mount if this one is killed. From now on requests are read only into memory
    /// whose pages are there. When a process is killed the kernel finds no more pages for it: a request that it was
    /// about to copy there would end with EIO, and no other process would get it.
    pub fn expect_successor(&mut self) {
        // A slot of a journal is touched as far as the last request was long, which is another one each time.
        if let Buffer::Own(buffer) = &mut self.buffer {
            touch(buffer);
        }
        self.has_successor = true;
    }

    /// Hands over the requests that a process that has ended has left in the journal, if this reader is to. To be called
    /// once, before [`Reader::read`].
    pub fn again<H: Handler>(&mut self, handler: &H) -> io::Result<()> {
        for (device, slot) in std::mem::take(&mut self.unanswered) {
            let length = slot.first_chunk().copied().map_or(0, u32::from_ne_bytes);
            let bytes = slot.get(..length as usize).unwrap_or(&slot);
            let from = Source {
                device: &device,
                slot: slot.number(),
                replayed: true,
            };
            handle(from, bytes, handler, |_, _| {})?;
        }
        Ok(())
    }

    /// Reads one request and hands it over. `landing` is to be the same each time.
    pub fn read<H: Handler>(
        &mut self,
        handler: &H,
        landing: &mut Landing<H::Buffer>,
    ) -> io::Result<ReadResult> {
        let Reader {
            device,
            buffer,
            has_successor,
            last,
            ..
        } = self;
        if let Buffer::Kept(slot) = buffer {
            if !slot.prepare() {
                // A journal that is full, which cannot happen in practice: the others wait in the kernel.
                sleep(Duration::from_millis(1));
                return Ok(ReadResult::Empty);
            }
            if *has_successor && *last > PAGE {
                touch(&mut slot[..*last]);
            }
        }
        let memory = |len| {
            let mut memory = handler.buffer(len)?;
            if *has_successor {
                touch(&mut memory);
            }
            Some(memory)
        };
        let slot = buffer.slot();
        // What is kept is kept whole.
        let parts = match slot {
            0 => landing.parts(buffer, memory),
            _ => None,
        };
        let (received, in_parts) = match parts {
            Some(mut parts) => (device.receive_parts(&mut parts)?, true),
            None => (device.receive(buffer)?.map(<[u8]>::len), false),
        };
        let len = match received {
            Received::Request(len) => len,
            Received::Empty => return Ok(ReadResult::Empty),
            Received::Ended => return Ok(ReadResult::Ended),
        };
        *last = len;
        if in_parts {
            if let Some(head) = buffer.first_chunk::<WRITE_HEAD>()
                && let Some((header, to)) = request::parse_write(head, len)
                && let Some(data) = landing.take(len - WRITE_HEAD)
            {
                landing.expect(&to, data.len());
                trace(&header);
                handler.write(&header, &to, data, Reply::new(device, &header));
                return Ok(ReadResult::Handled);
            }
            landing.join(buffer, len);
        }
        let bytes = &buffer[..len];
        let from = Source {
            device,
            slot,
            replayed: false,
        };
        handle(from, bytes, handler, |to, len| {
            landing.expect(to, len);
        })
    }
}

impl Channel {
    /// Starts as many threads as there are `loops`, each of which runs one with a reader that
    /// does not block, until the mount's end. `keep` gets each new device, `dev0` and so on, before
    /// anything is read from it: when the last descriptor of a device is closed, the requests that
    /// were read from it fail.
    pub fn serve_loops<L>(mut self, loops: Vec<L>, keep: Keep<'_>) -> io::Result<Serving>
    where
        L: FnOnce(Reader) -> io::Result<()> + Send + 'static,
    {
        let mut parts = Vec::new();
        let mut made = std::mem::take(&mut self.clones).into_iter();
        for (number, body) in loops.into_iter().enumerate() {
            // Not the device of the mount itself: others may have its open file description.
            let device = match made.next() {
                Some(device) => device,
                None => self.one_more_device(number, keep)?,
            };
            device.set_nonblocking()?;
            parts.push((self.reader(device)?, body));
        }
        if let Some((first, _)) = parts.first_mut() {
            first.unanswered = std::mem::take(&mut self.unanswered);
        }
        let mut serving = Serving {
            channel: self,
            threads: Vec::new(),
        };
        for (number, (reader, body)) in parts.into_iter().enumerate() {
            let thread = Builder::new().name(format!("worker-{number}"));
            serving.threads.push(thread.spawn(move || body(reader))?);
        }
        Ok(serving)
    }

    /// A device of its own for one more reader. Where devices cannot be cloned (qemu's emulation of
    /// another processor does not know that ioctl), all readers share that of the mount.
    fn one_more_device(&self, number: usize, keep: Keep<'_>) -> io::Result<Arc<Device>> {
        match self.device().try_clone() {
            Ok(device) => {
                keep(&format!("dev{number}"), device.as_fd())?;
                Ok(Arc::new(device))
            }
            Err(error) if clone::is_unknown(&error) => Ok(self.device().clone()),
            Err(error) => Err(error),
        }
    }

    fn reader(&self, device: Arc<Device>) -> io::Result<Reader> {
        let buffer = match &self.journal {
            None => Buffer::Own(vec![0; longest_request(self.features())]),
            Some(journal) => {
                device.set_journal(journal);
                Buffer::Kept(Slot::new(journal).ok_or(Errno::NOSPC)?)
            }
        };
        Ok(Reader::new(device, buffer))
    }
}

/// Has the kernel find memory for each page, by writing to it.
fn touch(memory: &mut [u8]) {
    let from = memory.as_ptr().align_offset(PAGE);
    if let Some(first) = memory.first_mut() {
        *first = 0;
    }
    let pages = memory.get_mut(from..).unwrap_or_default();
    pages.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
    std::hint::black_box(memory);
}

fn trace(header: &Header) {
    tracing::trace!(
        operation = opcode::name(header.opcode),
        unique = header.unique,
        node = header.nodeid,
        uid = header.uid(),
        gid = header.gid(),
        thread = header.pid(),
        "request"
    );
}

/// Where a message of the kernel is from.
#[derive(Clone, Copy)]
struct Source<'a> {
    device: &'a Arc<Device>,
    /// Its place in the journal, or 0.
    slot: u32,
    replayed: bool,
}

impl Source<'_> {
    fn reply(&self, header: &Header) -> Reply {
        Reply::to_slot(self.device, header, self.slot)
    }

    /// Whether little of the journal is left.
    fn is_scarce(&self) -> bool {
        let journal = self.device.journal();
        self.slot != 0 && journal.is_some_and(|journal| journal.is_scarce())
    }
}

/// Hands one message of the kernel over. `on_write` hears of a WRITE, and of the length of its data.
fn handle(
    from: Source<'_>,
    bytes: &[u8],
    handler: &impl Handler,
    mut on_write: impl FnMut(&WriteIn, usize),
) -> io::Result<ReadResult> {
    let mut request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(error) => {
            let (header, _) = Header::parse(bytes).map_err(io::Error::other)?;
            let operation = opcode::name(header.opcode);
            tracing::error!(operation, %error, "a request of the kernel");
            if opcode::has_reply(header.opcode) {
                from.reply(&header).error(Errno::IO.raw_os_error());
            }
            return Ok(ReadResult::Handled);
        }
    };
    request.header.replayed = from.replayed;
    let header = &request.header;
    trace(header);
    if let Operation::Write { to, data } = &request.operation {
        on_write(to, data.len());
    }
    match request.operation {
        Operation::Forget { count } => handler.forget(header.nodeid, count),
        Operation::BatchForget { nodes } => {
            nodes.for_each(|(nodeid, count)| handler.forget(nodeid, count));
        }
        Operation::Interrupt { unique } => handler.interrupt(unique),
        Operation::Destroy => {
            from.reply(header).ok();
            return Ok(ReadResult::Ended);
        }
        Operation::Setlk { of, wait }
            if wait && of.lock.kind as i32 != libc::F_UNLCK && from.is_scarce() =>
        {
            from.reply(header).error(Errno::NOLCK.raw_os_error());
        }
        _ => handler.handle(&request, from.reply(header)),
    }
    Ok(ReadResult::Handled)
}

impl Serving {
    /// Whether the mount is gone.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the mount's end. Blocks.
    pub fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread that serves FUSE panicked")));
            result = result.and(ended);
        }
        drop(self.channel);
        result
    }
}
