use super::*;
use crate::abi::UNIQUE_RESEND;
use crate::device::Device;
use crate::landing::Landing;
use crate::operation::WriteIn;
use crate::reply::Reply;
use crate::request::Request;
use crate::serve::{Buffer, Handler, ReadResult, Reader};
use std::os::unix::net::UnixDatagram;

const LONGEST: usize = 12345;

/// The bytes of a request as the kernel makes it.
fn request(opcode: u32, unique: u64) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[..4].copy_from_slice(&48u32.to_ne_bytes());
    bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

fn read(slot: &mut Slot, opcode: u32, unique: u64) -> u32 {
    assert!(slot.prepare());
    slot[..48].copy_from_slice(&request(opcode, unique));
    slot.number()
}

/// What the next process finds.
fn next(journal: &Journal) -> (Arc<Journal>, Vec<Found>) {
    Journal::open(journal.fd().try_clone_to_owned().unwrap()).unwrap()
}

#[test]
fn what_was_read_is_found_in_the_order_in_which_it_was_made() {
    let journal = Journal::create(LONGEST).unwrap();
    let mut slots = [(); 2].map(|()| Slot::new(&journal).unwrap());
    let first = read(&mut slots[0], opcode::MKDIR, 6);
    let second = read(&mut slots[1], opcode::MKDIR, 4);
    assert_eq!(next(&journal).1, [(4, second), (6, first)]);
    // A kill in the next read(2), which brings nothing.
    assert!(slots[0].prepare());
    assert_eq!(next(&journal).1, [(4, second)]);
}

#[test]
fn a_slot_is_used_again_when_its_request_is_answered() {
    let journal = Journal::create(LONGEST).unwrap();
    let mut slot = Slot::new(&journal).unwrap();
    let one = read(&mut slot, opcode::LOOKUP, 2);
    journal.share(one);
    journal.release(one);
    assert_eq!(read(&mut slot, opcode::LOOKUP, 4), one, "answered at once");
    journal.share(one);
    let other = read(&mut slot, opcode::LOOKUP, 6);
    assert_ne!(other, one);
    assert_eq!(next(&journal).1, [(4, one), (6, other)]);
    journal.release(one);
    journal.share(other);
    assert_eq!(read(&mut slot, opcode::LOOKUP, 8), one);
}

#[test]
fn the_next_process_uses_no_slot_of_an_unanswered_request() {
    let journal = Journal::create(LONGEST).unwrap();
    let mut slot = Slot::new(&journal).unwrap();
    let one = read(&mut slot, opcode::LOOKUP, 2);
    journal.share(one);
    let other = read(&mut slot, opcode::FORGET, 4);
    let (later, found) = next(&journal);
    assert_eq!(found, [(2, one)], "nobody waits for the other one");
    let mut slot = Slot::new(&later).unwrap();
    assert_eq!(slot.number(), other);
    later.share(other);
    assert!(slot.prepare());
    assert_ne!(slot.number(), one);
    drop(Slot::of(&later, one));
    assert_eq!(Slot::new(&later).unwrap().number(), one);
}

#[test]
fn what_cannot_be_a_request_is_none() {
    let journal = Journal::create(LONGEST).unwrap();
    for (at, byte) in [(0, 39), (3, 0xff), (0, 1)] {
        let mut slot = Slot::new(&journal).unwrap();
        read(&mut slot, opcode::LOOKUP, UNIQUE_RESEND);
        slot[at] = byte;
        assert_eq!(next(&journal).1, [], "{at}");
    }
}

#[test]
fn a_full_journal_gives_no_slot() {
    let journal = Journal::create(LONGEST).unwrap();
    let mut slots: Vec<_> = std::iter::from_fn(|| Slot::new(&journal)).collect();
    assert_eq!(slots.len(), MOST);
    let last = slots.last_mut().unwrap();
    let number = read(last, opcode::LOOKUP, 2);
    journal.share(number);
    assert!(!last.prepare(), "its request is not answered");
    assert_eq!(next(&journal).1, [(2, number)]);
    journal.release(number);
    assert!(last.prepare());
}

/// Leaves all requests unanswered.
#[derive(Default)]
struct Silent(Mutex<Vec<Reply>>);

impl Handler for Silent {
    type Buffer = Vec<u8>;

    fn handle(&self, _: &Request<'_>, reply: Reply) {
        self.0.lock().push(reply);
    }

    fn buffer(&self, _: usize) -> Option<Vec<u8>> {
        None
    }

    fn write(&self, _: &Header, _: &WriteIn, _: Vec<u8>, _: Reply) {}

    fn forget(&self, _: u64, _: u64) {}

    fn interrupt(&self, _: u64) {}
}

#[test]
fn programs_that_wait_for_locks_leave_room_for_those_that_unlock() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(ours)));
    let journal = Journal::create(LONGEST).unwrap();
    device.set_journal(&journal);
    let slot = Slot::new(&journal).unwrap();
    let mut reader = Reader::new(device, Buffer::Kept(slot));
    let silent = Silent::default();
    let mut ask = |opcode, kind: i32| {
        let mut bytes = request(opcode, 2);
        bytes.resize(88, 0);
        bytes[0] = 88;
        bytes[72..76].copy_from_slice(&kind.to_ne_bytes());
        theirs.send(&bytes).unwrap();
        let done = reader.read(&silent, &mut Landing::default()).unwrap();
        assert_eq!(done, ReadResult::Handled);
    };
    let _slots: Vec<_> = (0..MOST - SPARE - 1)
        .map(|_| Slot::new(&journal).unwrap())
        .collect();
    ask(opcode::SETLKW, libc::F_WRLCK);
    assert_eq!(silent.0.lock().len(), 1, "there is room for one more");
    ask(opcode::SETLKW, libc::F_WRLCK);
    let mut reply = [0; 16];
    assert_eq!(theirs.recv(&mut reply).unwrap(), 16);
    assert_eq!(reply[4..8], (-libc::ENOLCK).to_ne_bytes());
    ask(opcode::SETLKW, libc::F_UNLCK);
    ask(opcode::SETLK, libc::F_WRLCK);
    assert_eq!(silent.0.lock().len(), 3);
    silent.0.lock().drain(..).for_each(|reply| reply.ok());
}

#[test]
fn a_slot_for_the_next_large_request_has_its_pages() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(ours)));
    device.set_nonblocking().unwrap();
    let journal = Journal::create(LONGEST).unwrap();
    device.set_journal(&journal);
    let slot = Slot::new(&journal).unwrap();
    let mut reader = Reader::new(device, Buffer::Kept(slot));
    reader.expect_successor();
    let silent = Silent::default();
    let mut read = |bytes: &[u8]| {
        if !bytes.is_empty() {
            theirs.send(bytes).unwrap();
        }
        let done = reader.read(&silent, &mut Landing::default()).unwrap();
        let pages = fstat(journal.fd()).unwrap().st_blocks as usize * 512 / PAGE;
        (done, pages)
    };
    let mut bytes = request(opcode::SETXATTR, 2);
    bytes.resize(LONGEST, 0);
    bytes[..4].copy_from_slice(&(LONGEST as u32).to_ne_bytes());
    let whole = LONGEST.div_ceil(PAGE);
    // The head of the journal has a page, too.
    assert_eq!(read(&bytes), (ReadResult::Handled, 1 + whole));
    assert_eq!(read(&[]), (ReadResult::Empty, 1 + 2 * whole));
    // Others have one page.
    let mut short = request(opcode::GETATTR, 4);
    short.resize(56, 0);
    short[0] = 56;
    for more in 0..2 {
        let pages = 1 + 2 * whole + more;
        assert_eq!(read(&short), (ReadResult::Handled, pages));
    }
    silent.0.lock().drain(..).for_each(|reply| reply.ok());
}

#[test]
fn other_memory_is_refused() {
    let journal = Journal::create(LONGEST).unwrap();
    journal.head().magic.store(MAGIC + 1, Ordering::Relaxed);
    let copy = journal.fd().try_clone_to_owned().unwrap();
    assert!(Journal::open(copy).is_err());
    let empty = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    assert!(Journal::open(empty).is_err());
}

#[test]
fn free_slots_give_their_memory_back() {
    const READERS: usize = 500;
    let journal = Journal::create(3 * PAGE).unwrap();
    let blocks = || fstat(journal.fd()).unwrap().st_blocks as usize * 512 / PAGE;
    let mut slots: Vec<_> = (0..READERS).map(|_| Slot::new(&journal).unwrap()).collect();
    slots.iter_mut().for_each(|slot| slot.fill(1));
    assert!(blocks() >= READERS * 3);
    slots.clear();
    assert!(blocks() <= WARM * 3 + 1);
    // Those with memory are used before the others.
    let again = Slot::new(&journal).unwrap();
    assert_eq!(again[0], 1);
}
