//! What is known of the calls so far, as far as the choice of the next ones depends on it; also the
//! users, and the initial tree.

use crate::call::{At, Call, Mode, OpenFlags, Place, Reply, SLOTS, Step};

/// uid, gid and supplementary groups. The groups overlap.
pub(crate) const USERS: [(u32, u32, &[u32]); 4] = [
    (0, 0, &[0]),
    (10001, 20001, &[20001, 20003]),
    (10002, 20002, &[20002, 20003]),
    (10003, 20003, &[20003, 20004]),
];

/// Most paths that are remembered of each kind.
const MOST: usize = 24;

/// The kind of object of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    Directory,
    Other,
}

/// Paths that recently led to an object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) paths: Vec<String>,
    pub(crate) links: Vec<String>,
    pub(crate) programs: Vec<String>,
}

/// The effects of the calls so far: which descriptors are open, and which paths lead to an object.
/// They depend only on the answers of the local file system.
#[derive(Debug)]
pub(crate) struct Feedback {
    pub(crate) open: Vec<[Held; SLOTS as usize]>,
    pub(crate) known: Known,
}

fn remember(paths: &mut Vec<String>, place: &Place) {
    if place.at == At::Root && !place.path.is_empty() && !paths.contains(&place.path) {
        if paths.len() >= MOST {
            paths.remove(0);
        }
        paths.push(place.path.clone());
    }
}

impl Feedback {
    pub(crate) fn new() -> Self {
        Feedback {
            open: vec![[Held::Nothing; SLOTS as usize]; USERS.len()],
            known: Known::default(),
        }
    }

    /// Whether a descriptor is open, so that a removal may leave a hidden name.
    pub(crate) fn may_hide(&self) -> bool {
        self.open.iter().flatten().any(|&held| held == Held::Other)
    }

    /// Records a call with its result on the local file system.
    pub(crate) fn note(&mut self, step: &Step, made: &Reply) {
        let open = &mut self.open[step.user];
        if let Call::Close { slot } = step.call {
            open[usize::from(slot)] = Held::Nothing;
        }
        if made.outcome.errno != 0 {
            return;
        }
        let directory = made
            .states
            .last()
            .is_some_and(|state| state.starts_with("type=directory"));
        let known = &mut self.known;
        match &step.call {
            Call::Open { slot, place, .. } => {
                open[usize::from(*slot)] = match directory {
                    true => Held::Directory,
                    false => Held::Other,
                };
                remember(&mut known.paths, place);
            }
            Call::Dup { from, to } => open[usize::from(*to)] = open[usize::from(*from)],
            Call::Mkdir { place, .. } | Call::Mknod { place, .. } => {
                remember(&mut known.paths, place);
            }
            Call::Symlink { place, .. } => {
                remember(&mut known.paths, place);
                remember(&mut known.links, place);
            }
            Call::Program { place, .. } => {
                remember(&mut known.paths, place);
                remember(&mut known.programs, place);
            }
            Call::Link { to, .. } | Call::LinkSlot { to, .. } | Call::Rename { to, .. } => {
                remember(&mut known.paths, to);
            }
            Call::Unlink { place } | Call::Rmdir { place } => {
                known.paths.retain(|path| *path != place.path);
            }
            _ => {}
        }
        if let Call::Rename { from, .. } = &step.call {
            known.paths.retain(|path| *path != from.path);
        }
    }
}

/// The calls that make the initial tree: directories of all kinds, and some files.
pub(crate) fn beginning() -> Vec<Step> {
    let root = Place::root;
    let mkdir = |path: &str, mode| Call::Mkdir {
        place: root(path),
        mode: Mode(mode),
    };
    let chmod = |path: &str, mode| Call::Chmod {
        place: root(path),
        mode: Mode(mode),
    };
    let fill = |path: &str, mode| Call::Open {
        slot: 0,
        place: root(path),
        flags: OpenFlags(libc::O_RDWR | libc::O_CREAT),
        mode: Mode(mode),
    };
    let mut steps = vec![
        (0, mkdir("d0", 0o777)),
        (0, chmod("d0", 0o1777)),
        (0, mkdir("d1", 0o777)),
        (0, chmod("d1", 0o777)),
        (1, mkdir("d1/d0", 0o755)),
        (2, mkdir("d1/d1", 0o700)),
        (0, mkdir("d2", 0o777)),
        (
            0,
            Call::Chown {
                place: root("d2"),
                uid: 10001,
                gid: 20003,
                flags: 0,
            },
        ),
        (1, chmod("d2", 0o2775)),
        (3, mkdir("d1/d2", 0o777)),
        (0, mkdir("d3", 0o777)),
        (0, chmod("d3", 0o2777)),
    ];
    for (user, path, mode) in [
        (1, "d1/f0", 0o644),
        (2, "d0/f1", 0o660),
        (3, "d2/f2", 0o640),
        (1, "d3/f3", 0o666),
    ] {
        steps.push((user, fill(path, mode)));
        steps.push((
            user,
            Call::Write {
                slot: 0,
                len: 5000,
                fill: b'a' + user as u8,
            },
        ));
        steps.push((user, Call::Close { slot: 0 }));
    }
    steps.push((
        2,
        Call::Symlink {
            target: "../d1/f0".into(),
            place: root("d3/l0"),
        },
    ));
    steps
        .into_iter()
        .map(|(user, call)| Step {
            user,
            call,
            observer: 0,
            contents: false,
        })
        .collect()
}
