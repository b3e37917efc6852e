//! Runs the fuzz targets with their initial inputs, cut and changed ones, and noise.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma_fuzz_harness::{TARGETS, seeds};

#[test]
fn every_seed_and_what_is_near_it() {
    let mut noise = fastrand::Rng::with_seed(1);
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
                for _ in 0..noise.usize(1..=4) {
                    near[noise.usize(..=last)] ^= 1 << noise.u8(..8);
                }
                if noise.u8(..3) == 0 {
                    near.truncate(noise.usize(..=last));
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
        // MPA, DDP and RDMAP headers precede the bytes that the decoders know.
        for start in (0..frame.len().min(64)).step_by(2) {
            for (_, run) in TARGETS {
                run(&frame[start..]);
            }
        }
    }
}

#[test]
fn noise() {
    let mut noise = fastrand::Rng::with_seed(2);
    for _ in 0..10_000 {
        let mut bytes = [0; 128];
        noise.fill(&mut bytes);
        // Small numbers get further in XDR than large ones.
        bytes
            .iter_mut()
            .for_each(|b| *b = if *b < 200 { *b % 8 } else { *b });
        for (_, run) in TARGETS {
            run(&bytes);
        }
    }
}
