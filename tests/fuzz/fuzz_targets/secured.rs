#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nfsrdma_fuzz_harness::secured(bytes));
