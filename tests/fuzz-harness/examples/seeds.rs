//! `seeds DIR`: writes the initial inputs of each target into a directory for it in DIR.

use nfsrdma_fuzz_harness::{TARGETS, seeds};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from);
    let dir = dir.ok_or_else(|| std::io::Error::other("usage: seeds DIR"))?;
    for (name, _) in TARGETS {
        let of_target = dir.join(name);
        std::fs::create_dir_all(&of_target)?;
        let inputs = seeds::of(name)?;
        for (number, input) in inputs.iter().enumerate() {
            std::fs::write(of_target.join(format!("seed-{number:04}")), input)?;
        }
        println!("{name}: {} inputs", inputs.len());
    }
    Ok(())
}
