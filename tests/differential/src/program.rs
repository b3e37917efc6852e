//! A program to execute, which is small enough to be written in one call.

/// An ELF program whose exit status is its effective user id modulo 128.
#[cfg(target_arch = "x86_64")]
pub(crate) const PROGRAM: [u8; 139] = {
    let head = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0\
        \x78\0\x40\0\0\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x40\0\x38\0\x01\0\0\0\0\0\0\0\
        \x01\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\x40\0\0\0\0\0\
        \x8b\0\0\0\0\0\0\0\x8b\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0";
    let code = *b"\xb8\x6b\0\0\0\x0f\x05\x89\xc7\x83\xe7\x7f\xb8\x3c\0\0\0\x0f\x05";
    let mut all = [0; 139];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < head.len() {
            head[i]
        } else {
            code[i - head.len()]
        };
        i += 1;
    }
    all
};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const PROGRAM: [u8; 12] = *b"#!/bin/true\n";
