//! Screens as ratatui's test terminal shows them, and the terminal after a panic.

use super::model::Model;
use super::screen::Session;
use super::view::{Detail, View};
use crate::mounts::Mount;
use crate::stats::document::{Bucket, Connection, ConnectionCounters, Document, Procedure};
use crate::stats::mount_list::{ListedMount, MountState, Target};
use nix::pty::openpty;
use nix::sys::termios::{LocalFlags, tcgetattr};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const DELAY: Duration = Duration::from_secs(2);

fn target(id: u64, dir: &str) -> Target {
    Target::Mounted(Mount {
        id,
        parent: 1,
        device: format!("0:{id}"),
        root: "/".into(),
        dir: dir.into(),
        flags: String::new(),
        fstype: "fuse.nfsrdma".into(),
        source: "nas:/export".into(),
        owner: None,
    })
}

/// A mount after `rounds` intervals, each with 1,000 READs of 64 KiB and 10 WRITEs.
fn document(dir: &str, rounds: u64) -> Document {
    let procedure = |name: &str, calls: u64, below_us: u64, sent: u64, received: u64| Procedure {
        name: name.into(),
        calls: calls * rounds,
        bytes_sent: sent * calls * rounds,
        bytes_received: received * calls * rounds,
        latency: vec![Bucket {
            below_us: Some(below_us),
            calls: calls * rounds,
        }],
        ..Procedure::default()
    };
    Document {
        directory: dir.into(),
        source: "nas:/export".into(),
        age_ns: rounds * DELAY.as_nanos() as u64,
        procedures: vec![
            procedure("GETATTR", 50, 64, 100, 112),
            procedure("READ", 1000, 256, 120, 65_536),
            procedure("WRITE", 10, 8192, 1 << 20, 136),
        ],
        cache: [
            ("dirty_bytes".to_owned(), 12_345_678),
            ("read_hits".to_owned(), 3 * rounds),
            ("read_misses".to_owned(), rounds),
        ]
        .into(),
        connections: vec![Connection {
            connected: true,
            peer: Some("192.0.2.7:20049".into()),
            path: "192.0.2.7:20049".into(),
            counters: ConnectionCounters {
                sends: 600 * rounds,
                rdma_write_bytes: 4_000_000 * rounds,
                ..ConnectionCounters::default()
            },
            credits_in_use: 3,
            credits_granted: 128,
            ..Connection::default()
        }],
        ..Document::default()
    }
}

fn answer(dir: &str, state: MountState) -> Option<ListedMount> {
    Some(ListedMount {
        source: "nas:/export".into(),
        directory: dir.into(),
        state,
    })
}

fn works(dir: &str, rounds: u64) -> Option<ListedMount> {
    answer(dir, MountState::Answers(Box::new(document(dir, rounds))))
}

/// Two mounts, of which the second stops answering, and one whose process never answered.
fn model(begin: Instant, rounds: u64) -> (Model, Instant) {
    let mut model = Model::new(DELAY);
    let targets = [
        target(1, "/srv/data"),
        target(2, "/srv/a/long/way/down/home"),
        target(3, "/srv/gone"),
    ];
    let mut now = begin;
    for round in 0..rounds {
        now = begin + DELAY * round as u32;
        model.listed(&targets, now);
        model.answered(&targets[0], works("/srv/data", round), now);
        if round < rounds.saturating_sub(5) || round < 2 {
            model.answered(&targets[1], works("/srv/a/long/way/down/home", round), now);
        }
        let gone = MountState::Silent("its process has ended".into());
        model.answered(&targets[2], answer("/srv/gone", gone), now);
    }
    (model, now)
}

fn screen(width: u16, height: u16, detail: Detail) -> String {
    let (model, now) = model(Instant::now(), 20);
    let mut view = View {
        detail,
        ..View::default()
    };
    draw(width, height, &mut view, &model, now)
}

fn draw(width: u16, height: u16, view: &mut View, model: &Model, now: Instant) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(45_296);
    terminal
        .draw(|frame| view.draw(frame, model, now, wall))
        .unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol().to_owned());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

/// The frame around it is compared by tests/system/program/test_sight.py.
#[test]
fn the_last_minute_is_drawn_from_left_to_right() {
    let shown = screen(80, 24, Detail::Minute);
    let mut lines = shown.lines();
    let read = lines.find(|line| line.starts_with("read MB/s"));
    let read = read.expect(&shown);
    assert!(read.contains("32.8 max     32.8"), "{shown}");
    assert!(
        read.ends_with('█') && read.contains("   █"),
        "a minute ago there was nothing: {shown}"
    );
}

#[test]
fn a_wide_screen_keeps_figures_beside_names() {
    let (model, now) = model(Instant::now(), 20);
    let (titles, lines) = model.table(200, now);
    assert_eq!(
        [&titles, &lines[0]],
        [
            "MOUNT                     SERVER  rdMB/s  wrMB/s   ops/s   p50ms   p99ms credits  dirty  hits",
            "/srv/data                 nas       32.8     5.2     530   0.189   0.256   3/128  12.3M   75%"
        ]
    );
    let silent = [
        "/srv/a/long/way/down/home no answer of its process for 10 s",
        "/srv/gone                 its process has ended",
    ];
    for (line, says) in lines[1..].iter().zip(silent) {
        assert!(line.starts_with(says), "{line}");
    }
    let slow = |micros| super::model::milliseconds(Some(micros));
    assert_eq!(
        [0.4, 999.96, 9_999.6, 219_500.0, 7.5e6].map(slow),
        ["0.000", "1.000", "10.0", "219.5", "7500.0"]
    );
}

#[test]
fn a_restarted_process_is_not_compared_with_the_old_one() {
    let (mut model, now) = model(Instant::now(), 3);
    let target = target(1, "/srv/data");
    let fresh = Document {
        pid: 99,
        ..document("/srv/data", 1)
    };
    model.answered(
        &target,
        answer("/srv/data", MountState::Answers(Box::new(fresh))),
        now,
    );
    let (_, lines) = model.table(80, now);
    let words: Vec<_> = lines[0].split_whitespace().collect();
    assert_eq!(words[1..5], ["nas", "-", "-", "-"], "{lines:?}");
    let successor = Document {
        pid: 100,
        restarts: 1,
        restarted_ns: 3_000_000_000,
        ..document("/srv/data", 1)
    };
    let answer = answer("/srv/data", MountState::Answers(Box::new(successor)));
    model.answered(&target, answer, now);
    let (_, lines) = model.table(80, now);
    assert!(lines[0].ends_with(" restarted 3 s ago"), "{lines:?}");
}

proptest! {
    #[test]
    fn any_size_is_drawn(width in 1u16..200, height in 1u16..60, rounds in 0u64..40, selected in 0usize..9) {
        let (model, now) = model(Instant::now(), rounds);
        for detail in [Detail::Minute, Detail::Procedures, Detail::Users, Detail::Connections] {
            let mut view = View { detail, selected };
            draw(width, height, &mut view, &model, now);
        }
    }
}

const PANICS: &str = "NFSRDMA_TEST_PANIC";

/// Is run by the next test, in a terminal of its own.
#[test]
fn panics_while_it_has_the_terminal() {
    if std::env::var_os(PANICS).is_none() {
        return;
    }
    let _session = Session::begin().unwrap();
    panic!("on purpose");
}

#[test]
fn a_panic_gives_the_terminal_back() {
    let terminal = openpty(None, None).unwrap();
    let before = tcgetattr(&terminal.slave).unwrap();
    let side = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "top::tests::panics_while_it_has_the_terminal",
        ])
        .env(PANICS, "1")
        .stdin(side())
        .stdout(side())
        .stderr(side())
        .spawn()
        .unwrap();
    let mut master = std::fs::File::from(terminal.master);
    let reader = std::thread::spawn({
        let mut master = master.try_clone().unwrap();
        move || {
            let mut shown = Vec::new();
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = master.read(&mut piece) {
                shown.extend_from_slice(&piece[..read]);
            }
            String::from_utf8_lossy(&shown).into_owned()
        }
    });
    let status = child.wait().unwrap();
    let after = tcgetattr(&terminal.slave).unwrap();
    drop(terminal.slave);
    let shown = reader.join().unwrap();
    let _ = master.read(&mut [0]);
    assert!(!status.success(), "{shown}");
    let (enter, leave) = (shown.find("\u{1b}[?1049h"), shown.rfind("\u{1b}[?1049l"));
    let message = shown.find("on purpose");
    assert!(enter.is_some() && enter < leave, "{shown}");
    assert!(
        leave < message || shown[..message.unwrap_or(0)].contains("\u{1b}[?1049l"),
        "{shown}"
    );
    let echoes = |flags: LocalFlags| flags & (LocalFlags::ECHO | LocalFlags::ICANON);
    assert_eq!(echoes(before.local_flags), echoes(after.local_flags));
}
