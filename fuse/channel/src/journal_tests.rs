use super::*;
use crate::abi::UNIQUE_RESEND;

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
