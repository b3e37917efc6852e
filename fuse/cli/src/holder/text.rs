//! The memory of the holder: what it needs of the program is a few pages, and what it had touched before is not kept.

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Gives the pages of programs and constants back that this process has mapped. They come again from the page cache
/// when they are used, which the holder does when its daemon has something to say, or is gone.
pub(super) fn give_back() {
    // SAFETY: the function is as it has to be, and does not use the argument.
    unsafe { libc::dl_iterate_phdr(Some(give_back_of), ptr::null_mut()) };
}

unsafe extern "C" fn give_back_of(
    of: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the linker gives a valid description, with as many headers as it says.
    let (base, headers) = unsafe {
        let of = &*of;
        let number = usize::from(of.dlpi_phnum);
        (
            of.dlpi_addr,
            std::slice::from_raw_parts(of.dlpi_phdr, number),
        )
    };
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let begin = (base + header.p_vaddr) as usize;
        let at = begin - begin % page_size();
        let length = begin - at + header.p_memsz as usize;
        // SAFETY: this part of the file is mapped read-only, so its pages come again as they are. What is writable has
        // pages of its own.
        let _ = unsafe { madvise(at as *mut c_void, length, Advice::LinuxDontNeed) };
    }
    0
}
