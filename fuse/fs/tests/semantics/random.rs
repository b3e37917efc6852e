//! Random operations on several mounts and on a model, with a server that answers late and in any
//! order, and that restarts.

use super::support::*;
use nfsrdma_fs::fs::FsConfig;
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_nfs3::Limits;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Step {
    Open(usize),
    Close(usize),
    Write(usize, u64, usize, u8),
    Read(usize, u64, u32),
    Truncate(usize, u64),
    Unlink(usize),
    Rename(usize, usize),
    Stat(usize),
    Sync(usize),
    Restart,
    /// The other mount reads the whole file, if it is not open.
    Compare(usize),
}

const FILES: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = 0..FILES;
    let at = prop_oneof![0u64..20_000, 0u64..600_000];
    let len = prop_oneof![1usize..200, 1usize..20_000, 1usize..200_000];
    let step = prop_oneof![
        3 => file.clone().prop_map(Step::Open),
        2 => file.clone().prop_map(Step::Close),
        8 => (file.clone(), at.clone(), len.clone(), any::<u8>())
            .prop_map(|(f, a, l, b)| Step::Write(f, a, l, b)),
        8 => (file.clone(), at.clone(), len).prop_map(|(f, a, l)| Step::Read(f, a, l as u32)),
        2 => (file.clone(), at).prop_map(|(f, s)| Step::Truncate(f, s)),
        1 => file.clone().prop_map(Step::Unlink),
        1 => (file.clone(), file.clone()).prop_map(|(a, b)| Step::Rename(a, b)),
        2 => file.clone().prop_map(Step::Stat),
        1 => file.clone().prop_map(Step::Sync),
        1 => Just(Step::Restart),
        2 => file.prop_map(Step::Compare),
    ];
    prop::collection::vec(step, 1..60)
}

/// The state that programs have to see.
#[derive(Default)]
struct Model {
    contents: Vec<Vec<u8>>,
    names: BTreeMap<usize, usize>,
    open: BTreeMap<usize, (u64, usize)>,
}

fn name(file: usize) -> String {
    format!("f{file}")
}

impl Model {
    /// Runs a step on the mount `m` and on the model, and compares the results.
    fn step(&mut self, step: Step, m: &Mount, other: &Mount) {
        match step {
            Step::Open(f) => {
                if self.open.contains_key(&f) {
                    return;
                }
                let handle = match self.names.get(&f) {
                    Some(_) => m.open(m.node(&name(f)), RW).unwrap(),
                    None => {
                        self.contents.push(Vec::new());
                        self.names.insert(f, self.contents.len() - 1);
                        m.create(&name(f)).1
                    }
                };
                self.open.insert(f, (handle, self.names[&f]));
            }
            Step::Close(f) => {
                if let Some((handle, _)) = self.open.remove(&f) {
                    m.close(handle).unwrap();
                }
            }
            Step::Write(f, at, len, byte) => {
                if let Some(&(handle, file)) = self.open.get(&f) {
                    let data: Vec<u8> =
                        (0..len).map(|i| byte.wrapping_add((i / 3) as u8)).collect();
                    m.write(handle, at, &data).unwrap();
                    let file = &mut self.contents[file];
                    let end = at as usize + len;
                    file.resize(file.len().max(end), 0);
                    file[at as usize..end].copy_from_slice(&data);
                }
            }
            Step::Read(f, at, len) => {
                if let Some(&(handle, file)) = self.open.get(&f) {
                    let file = &self.contents[file];
                    let from = file.len().min(at as usize);
                    let to = file.len().min(at as usize + len as usize);
                    let data = m.read(handle, at, len).unwrap();
                    assert!(data == file[from..to], "file {f} at {at}, {len} bytes");
                }
            }
            Step::Truncate(f, size) => {
                if let Some(&file) = self.names.get(&f) {
                    m.truncate(m.node(&name(f)), size).unwrap();
                    self.contents[file].resize(size as usize, 0);
                }
            }
            Step::Unlink(f) => {
                if self.names.remove(&f).is_some() {
                    m.unlink(&name(f)).unwrap();
                }
            }
            Step::Rename(a, b) => {
                if a != b
                    && let Some(file) = self.names.remove(&a)
                {
                    m.rename(&name(a), &name(b)).unwrap();
                    self.names.insert(b, file);
                }
            }
            Step::Stat(f) => match self.names.get(&f) {
                Some(&file) => {
                    let size = m.stat(m.node(&name(f))).unwrap().size;
                    assert_eq!(size, self.contents[file].len() as u64);
                }
                None => assert!(m.lookup(&name(f)).is_none()),
            },
            Step::Sync(f) => {
                if let Some(&(handle, _)) = self.open.get(&f) {
                    m.fsync(handle).unwrap();
                }
            }
            Step::Restart => m.server.restart(),
            Step::Compare(f) => {
                let Some(&file) = self.names.get(&f) else {
                    return;
                };
                if self.open.values().any(|&(_, open)| open == file) {
                    return;
                }
                // Cached names expire.
                other.clock.advance(std::time::Duration::from_secs(1000));
                let handle = other.open(other.node(&name(f)), RW).unwrap();
                let data = other.read(handle, 0, 2 << 20).unwrap();
                assert!(data == self.contents[file], "the other mount's view of {f}");
                other.close(handle).unwrap();
            }
        }
    }
}

fn run(steps: Vec<Step>, workers: usize) {
    let limits = Limits {
        rtmax: 65536,
        wtmax: 65536,
        dtpref: 8192,
        max_file_size: 1 << 40,
    };
    let server = MemoryServer::with(limits, workers);
    let config = FsConfig {
        cache_bytes: 1 << 20,
        dirty_bytes: 512 << 10,
        dirty_file_bytes: 256 << 10,
        ..FsConfig::default()
    };
    let m = Mount::of(&server, config.clone());
    let other = Mount::of(&server, config);
    let mut model = Model::default();
    for step in steps {
        model.step(step, &m, &other);
    }
    for (handle, _) in model.open.into_values() {
        m.close(handle).unwrap();
    }
    assert!(nfsrdma_rpcrdma::exec::block_on(m.fs.shutdown()).is_empty());
    server.restart();
    for (f, file) in &model.names {
        assert!(
            server.contents(&name(*f)).unwrap() == model.contents[*file],
            "file {f} at the end"
        );
    }
    assert_eq!(
        server.names("").len(),
        model.names.len(),
        "nothing hidden is left"
    );
    assert_eq!(m.count("dirty_bytes"), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_prompt_server(steps in steps()) {
        run(steps, 0);
    }

    #[test]
    fn a_server_that_answers_late_and_in_any_order(steps in steps()) {
        run(steps, 2);
    }
}
