//! `nfsrdma-vectors FILE...`: checks files of vectors, for instance every frame of a capture
//! (`tests/system/interop/vectors.py all`).

use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut good, mut bad) = (0usize, 0usize);
    for file in std::env::args_os().skip(1) {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::FAILURE;
            }
        };
        let vectors = match nfsrdma_vectors::parse(&text) {
            Ok(vectors) => vectors,
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::FAILURE;
            }
        };
        for (number, vector) in vectors.iter().enumerate() {
            match nfsrdma_vectors::check(vector) {
                Ok(()) => good += 1,
                Err(error) => {
                    bad += 1;
                    eprintln!(
                        "{}: vector {number} ({} from {:?}): {error}",
                        file.display(),
                        vector.name,
                        vector.from
                    );
                }
            }
        }
    }
    println!("{good} frames agree, {bad} differ");
    if bad > 0 || good == 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
