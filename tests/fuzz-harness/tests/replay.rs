//! The fuzz targets over the interoperability captures, whole, cut and with bits turned.
#![allow(clippy::unwrap_used)]

use nfsrdma_fuzz_harness::TARGETS;
use std::path::Path;

fn frames() -> Vec<Vec<u8>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/data");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(data).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let vectors = nfsrdma_vectors::parse(&text).unwrap();
        all.extend(vectors.into_iter().map(|vector| vector.bytes));
    }
    assert!(all.len() > 10, "the captures are there");
    all
}

#[test]
fn captures_and_what_is_near_them() {
    for frame in frames() {
        // MPA, DDP and RDMAP come before what the decoders know: every start is tried.
        for start in (0..frame.len().min(128)).step_by(2) {
            TARGETS.iter().for_each(|(_, run)| run(&frame[start..]));
        }
        for at in (0..frame.len().min(256)).step_by(3) {
            let mut turned = frame.clone();
            turned[at] ^= 1 << (at % 8);
            TARGETS.iter().for_each(|(_, run)| run(&turned));
        }
    }
}

#[test]
fn noise() {
    // xorshift64: the same noise every time.
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..20_000 {
        let mut noise = Vec::new();
        for _ in 0..16 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            noise.extend(state.to_be_bytes());
        }
        // Small numbers get further in XDR than large ones.
        noise
            .iter_mut()
            .for_each(|b| *b = if *b < 200 { *b % 8 } else { *b });
        TARGETS.iter().for_each(|(_, run)| run(&noise));
    }
}
