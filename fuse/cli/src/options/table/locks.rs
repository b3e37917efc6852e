//! Options of locks.

use super::super::LocalLock;
use super::super::draft::PORT;
use super::super::entry::*;

pub(super) static SECTION: Section = Section {
    title: "Locks",
    lasts: "locks that are held stay where they are",
    entries: &[
        Entry {
            forms: "lock nolock",
            default: "`lock`, unless the server has no NLM",
            help: "whether locks of flock(2) and fcntl(2) go to the server, by NLM version 4 over \
            TCP or UDP; `nolock` is `local_lock=all`. If `lock` is given, a server without NLM, or \
            one that cannot be asked for it, is an error. Without either, the server's answer \
            decides ([CONFIGURATION.md](CONFIGURATION.md#locks)); locks of files are never silently local",
            ..switch!(lock)
        },
        Entry {
            forms: "local_lock=none|flock|posix|all",
            default: "`none`",
            help: "which locks stay on this machine: none, those of flock(2), those of fcntl(2), or \
            both. They exclude only processes that use the same mount",
            ..choice!(
                local_lock,
                "none" => Some(LocalLock::None),
                "flock" => Some(LocalLock::Flock),
                "posix" => Some(LocalLock::Posix),
                "all" => Some(LocalLock::All)
            )
        },
        Entry {
            forms: "lockport=N",
            default: "asks rpcbind",
            takes: PORT,
            help: "port of the server's lock manager; 0 asks rpcbind. nfs(5) has no such option",
            ..port!(lock_port)
        },
        Entry {
            forms: "callbackport=N callbackport=none",
            default: "any, where rpcbind runs on this machine",
            takes: "a port, or none",
            help: "port, over UDP and TCP, at which the server can tell the mount that a lock is free \
            (GRANTED) and that the server restarted (SM_NOTIFY): for firewalls, and for \
            servers that cannot ask the rpcbind of this machine. `none` opens no port: waiters \
            then poll, and a restart is noticed by the connection, by the write verifier or by \
            the answer of the next lock call. nfs(5) has no such option",
            action: Action::Set(|d, n, v| {
                let port = match v {
                    "none" => 0,
                    _ => d.number(v, 1..=65535)? as u16,
                };
                d.options.callback_port = Some(port);
                d.claim(n, port)
            }),
            show: |o, n, w| match o.callback_port {
                Some(0) => w.value(n, "none"),
                port => w.some(n, port),
            },
            ..Entry::NONE
        },
    ],
};
