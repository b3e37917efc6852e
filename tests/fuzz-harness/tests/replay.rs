//! The fuzz targets over what they begin with: whole, cut and with bits turned; and noise.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma_fuzz_harness::{TARGETS, seeds};

/// xorshift64: the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn every_seed_and_what_is_near_it() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for (name, run) in TARGETS {
        let inputs = seeds::of(name).unwrap();
        assert!(inputs.len() >= 4, "{name} has seeds");
        for input in inputs {
            run(&input);
            for _ in 0..10 {
                let mut near = input.clone();
                let Some(last) = near.len().checked_sub(1) else {
                    continue;
                };
                for _ in 0..=noise.next() % 4 {
                    near[noise.next() as usize % (last + 1)] ^= 1 << (noise.next() % 8);
                }
                if noise.next().is_multiple_of(3) {
                    near.truncate(noise.next() as usize % (last + 1));
                }
                run(&near);
            }
        }
    }
}

#[test]
fn frames_from_every_start() {
    let frames = seeds::frames().unwrap();
    assert!(frames.len() > 10, "the captures are there");
    for frame in frames {
        // MPA, DDP and RDMAP come before what the decoders know.
        for start in (0..frame.len().min(128)).step_by(2) {
            for (_, run) in TARGETS {
                run(&frame[start..]);
            }
        }
    }
}

#[test]
fn noise() {
    let mut noise = Noise(0x1234_5678_9abc_def1);
    for _ in 0..10_000 {
        let mut bytes: Vec<u8> = (0..16).flat_map(|_| noise.next().to_be_bytes()).collect();
        // Small numbers get further in XDR than large ones.
        bytes
            .iter_mut()
            .for_each(|b| *b = if *b < 200 { *b % 8 } else { *b });
        for (_, run) in TARGETS {
            run(&bytes);
        }
    }
}
