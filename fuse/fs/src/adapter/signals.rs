//! Whether a process is being killed, as /proc shows it (proc(5)).
//!
//! A signal is fatal, as Linux defines it, if it is SIGKILL, or if it is pending, neither blocked
//! nor ignored nor caught, its default action ends the process, and no debugger gets it first.

use super::proc;

/// The state of a request's caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// A fatal signal is pending, or has ended the process already.
    Killed,
    /// The process is exiting without a fatal signal.
    Exiting,
    Alive,
    /// The thread is not visible here, or has ended without waiting for its request.
    Gone,
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signals whose default action is to ignore, stop or continue (signal(7)).
const HARMLESS: u64 = bit(libc::SIGCHLD)
    | bit(libc::SIGURG)
    | bit(libc::SIGWINCH)
    | bit(libc::SIGCONT)
    | bit(libc::SIGSTOP)
    | bit(libc::SIGTSTP)
    | bit(libc::SIGTTIN)
    | bit(libc::SIGTTOU);

/// PF_EXITING of the kernel's task flags.
const EXITING: u64 = 4;

/// The state of the thread `tid`.
pub(super) fn caller(tid: u32) -> Caller {
    let Ok(status) = proc::read(tid, "status") else {
        return Caller::Gone;
    };
    if pending_fatal(&status) {
        return Caller::Killed;
    }
    match proc::read(tid, "stat") {
        Ok(stat) => of_stat(&stat),
        Err(_) => Caller::Gone,
    }
}

/// Whether a fatal signal is pending, according to the text of /proc/PID/status.
fn pending_fatal(status: &[u8]) -> bool {
    let (mut pending, mut spared, mut traced) = (0, HARMLESS, false);
    for line in status.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let mask = || {
            std::str::from_utf8(&line[colon + 1..])
                .ok()
                .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
                .unwrap_or(0)
        };
        match &line[..colon] {
            // Any digit but 0: who traces it decides what becomes of other signals than SIGKILL.
            b"TracerPid" => traced = line.iter().any(|byte| (b'1'..=b'9').contains(byte)),
            b"SigPnd" | b"ShdPnd" => pending |= mask(),
            b"SigBlk" | b"SigIgn" | b"SigCgt" => spared |= mask(),
            _ => {}
        }
    }
    // SIGKILL cannot be blocked, ignored or caught.
    let deadly = if traced { 0 } else { !spared };
    pending & (bit(libc::SIGKILL) | deadly) != 0
}

/// The state according to the text of /proc/PID/stat: by the flags (field 9) and, where it is
/// visible, the exit code (field 52), whose low seven bits are the signal that ended the process.
fn of_stat(stat: &[u8]) -> Caller {
    // The name in field 2 may contain any characters, even parentheses.
    let Some(end) = stat.iter().rposition(|&byte| byte == b')') else {
        return Caller::Alive;
    };
    let rest = String::from_utf8_lossy(&stat[end + 1..]);
    let field = |number: usize| {
        rest.split_ascii_whitespace()
            .nth(number - 3)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0)
    };
    if field(9) & EXITING == 0 {
        Caller::Alive
    } else if field(52) & 0x7f != 0 {
        Caller::Killed
    } else {
        Caller::Exiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn status(pnd: u64, shd: u64, blk: u64, ign: u64, cgt: u64) -> Vec<u8> {
        format!(
            "Name:\ta:b\nSigQ:\t0/7710\nSigPnd:\t{pnd:016x}\nShdPnd:\t{shd:016x}\n\
             SigBlk:\t{blk:016x}\nSigIgn:\t{ign:016x}\nSigCgt:\t{cgt:016x}\n"
        )
        .into_bytes()
    }

    #[test]
    fn only_sigkill_is_fatal_to_who_is_traced() {
        let of = |tracer: u32, signal| {
            let mut text = format!("TracerPid:\t{tracer}\n").into_bytes();
            text.extend(status(0, bit(signal), 0, 0, 0));
            pending_fatal(&text)
        };
        for (tracer, by_kill, by_int) in [(0, true, true), (7, true, false), (100, true, false)] {
            assert_eq!(of(tracer, libc::SIGKILL), by_kill);
            assert_eq!(of(tracer, libc::SIGINT), by_int, "{tracer}");
        }
    }

    #[test]
    fn sigkill_is_always_fatal() {
        let kill = bit(libc::SIGKILL);
        assert!(pending_fatal(&status(kill, 0, 0, 0, 0)));
        assert!(pending_fatal(&status(0, kill, 0, 0, 0)));
        assert!(pending_fatal(&status(
            kill,
            0,
            u64::MAX,
            u64::MAX,
            u64::MAX
        )));
    }

    #[test]
    fn others_are_fatal_unless_blocked_ignored_or_caught() {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, 40] {
            let mask = bit(signal);
            assert!(pending_fatal(&status(mask, 0, 0, 0, 0)));
            assert!(pending_fatal(&status(0, mask, 0, 0, 0)));
            assert!(!pending_fatal(&status(0, mask, mask, 0, 0)));
            assert!(!pending_fatal(&status(0, mask, 0, mask, 0)));
            assert!(!pending_fatal(&status(0, mask, 0, 0, mask)));
            assert!(pending_fatal(&status(mask, 0, !mask, !mask, !mask)));
        }
        for signal in [libc::SIGCHLD, libc::SIGWINCH, libc::SIGTSTP, libc::SIGCONT] {
            assert!(!pending_fatal(&status(bit(signal), bit(signal), 0, 0, 0)));
        }
    }

    #[test]
    fn nonsense_is_no_signal() {
        assert!(!pending_fatal(b""));
        assert!(!pending_fatal(b"SigPnd:\tzzz\nSigPnd\n:\n\xff:\xff"));
        assert_eq!(of_stat(b""), Caller::Alive);
        assert_eq!(of_stat(b"1 (x) S"), Caller::Alive);
    }

    fn stat(flags: u64, code: u64) -> Vec<u8> {
        let zeros = "0 ".repeat(42);
        format!("7 (a) S) b) D 1 1 1 0 -1 {flags} {zeros}{code}\n").into_bytes()
    }

    #[test]
    fn exiting_by_itself_or_by_a_signal() {
        assert_eq!(of_stat(&stat(0x40_0000, 0)), Caller::Alive);
        assert_eq!(of_stat(&stat(0x40_0000, 9)), Caller::Alive);
        assert_eq!(of_stat(&stat(0x40_0004, 0)), Caller::Exiting);
        assert_eq!(of_stat(&stat(0x40_0004, 256)), Caller::Exiting);
        assert_eq!(of_stat(&stat(0x40_0004, 9)), Caller::Killed);
        assert_eq!(of_stat(&stat(0x40_0004, 0x8b)), Caller::Killed);
    }

    #[test]
    fn real_processes() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(caller(child.id()), Caller::Alive);
        child.kill().unwrap();
        // A zombie counts as killed until its parent has waited for it.
        let start = Instant::now();
        while caller(child.id()) != Caller::Killed {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(caller(child.id()), Caller::Gone);
    }
}
