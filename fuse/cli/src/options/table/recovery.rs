//! Options for servers that do not answer.

use super::super::Recovery;
use super::super::entry::*;
use std::time::Duration;

pub(super) static SECTION: Section = Section {
    title: "When the server does not answer",
    lasts: "it has no effect on a mount",
    entries: &[
        Entry {
            forms: "hard soft softerr",
            changes: true,
            default: "`hard`",
            help: "with `hard` a call is sent again until the server answers, for ever; a signal \
            that ends the process ends the wait. With `soft` it fails with EIO after the time \
            below, with `softerr` with ETIMEDOUT.\n\nA `soft` or `softerr` mount can lose data: a \
            WRITE that gives up is reported by fsync(2) or close(2), and a program that ignores \
            these errors has a file with a hole. Use them for data that is only read, or with \
            programs that check every result",
            action: Action::Set(|d, n, _| {
                d.options.client.transport.recovery = match n {
                    "hard" => Recovery::Hard,
                    "soft" => Recovery::Soft,
                    _ => Recovery::SoftErr,
                };
                d.claim("recovery", n)
            }),
            show: |o, _, w| {
                w.flag(match o.client.transport.recovery {
                    Recovery::Hard => "hard",
                    Recovery::Soft => "soft",
                    Recovery::SoftErr => "softerr",
                });
            },
            ..Entry::NONE
        },
        Entry {
            forms: "timeo=TENTHS",
            changes: true,
            default: "`600`",
            takes: "tenths of a second, at least 1",
            help: "tenths of a second to wait for a reply. Then the connection is given up, and the \
            call is sent again on a new one: RPC-over-RDMA needs a reliable connection (RFC 8166). \
            Each further transmission of the call waits `timeo` longer than the one before. After \
            `timeo` times `retrans` + 1 in all, at most 600 seconds (by default 180), a soft mount \
            gives up and a hard one logs \"not responding\" and goes on, like Linux's client. At \
            least 1; \
            larger values than 36000 are set to 36000. An idle connection is probed after the same \
            time, but after at most 30 seconds",
            action: Action::Set(|d, n, v| {
                // A larger value is reduced to the limit (nfs(5)).
                let tenths = d.number(v, 1..=u32::MAX.into())?.min(36000);
                d.options.client.transport.timeo = Duration::from_millis(tenths * 100);
                d.claim(n, tenths)
            }),
            show: |o, n, w| w.value(n, o.client.transport.timeo.as_millis() / 100),
        },
        Entry {
            forms: "retrans=N",
            changes: true,
            default: "`2`",
            takes: "a number of tries",
            help: "retransmissions before a soft mount gives up and a hard mount logs \"server HOST \
            not responding, still trying\", 0 to 1000",
            action: Action::Set(|d, n, v| {
                let count = d.number(v, 0..=u32::MAX.into())?.min(1000);
                d.options.client.transport.retrans = count as u32;
                d.claim(n, count)
            }),
            show: |o, n, w| w.value(n, o.client.transport.retrans),
        },
        Entry {
            forms: "intr nointr",
            default: "`nointr`",
            help: "accepted, and without effect, as in nfs(5) since Linux 2.6.25: a signal that ends \
            the process always interrupts a wait, and a signal that is caught never does",
            ..toggle!(intr, "intr")
        },
    ],
};
