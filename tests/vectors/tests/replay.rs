//! Every frame in `data/` decodes to what tshark dissected in it.

use nfsrdma_vectors::{Side, Vector, check, parse};
use std::collections::BTreeSet;
use std::path::Path;

fn files() -> Vec<(String, Vec<Vector>)> {
    let mut files: Vec<_> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("data"))
        .expect("the data directory is committed")
        .map(|entry| {
            let path = entry.expect("a directory entry").path();
            let text = std::fs::read_to_string(&path).expect("a text file");
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            (
                name.clone(),
                parse(&text).unwrap_or_else(|e| panic!("{name}: {e}")),
            )
        })
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(!files.is_empty());
    files
}

#[test]
fn every_frame_agrees() {
    for (file, vectors) in files() {
        for vector in &vectors {
            if let Err(error) = check(vector) {
                panic!("{file}: {} from {:?}: {error}", vector.name, vector.from);
            }
        }
    }
}

/// The files have both directions of every NFSv3 procedure, and every kind of frame.
#[test]
fn nothing_is_missing() {
    let mut procedures = BTreeSet::new();
    let mut opcodes = BTreeSet::new();
    for (_, vectors) in files() {
        for vector in vectors {
            if let Some(number) = vector.procedure {
                procedures.insert((vector.from == Side::Server, number));
            }
            for (name, value) in &vector.fields {
                if name == "iwarp_rdma.opcode" {
                    opcodes.insert(value.parse::<u8>().expect("a number"));
                }
            }
        }
    }
    for opcode in [0, 1, 2, 3, 4] {
        assert!(
            opcodes.contains(&opcode),
            "no frame with RDMAP opcode {opcode}"
        );
    }
    for number in 0..=21 {
        for server in [false, true] {
            assert!(
                procedures.contains(&(server, number)),
                "no message of procedure {number}, from server: {server}"
            );
        }
    }
}
