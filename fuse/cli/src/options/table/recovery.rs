//! Options for servers that do not answer.

use super::super::Recovery;
use super::super::draft::{Draft, MAX_SECONDS, Outcome};
use super::super::entry::{Entry, flag, value};
use std::time::Duration;

fn recovery(d: &mut Draft, how: Recovery) -> Outcome {
    d.claim("recovery", format!("{how:?}"))?;
    d.options.client.transport.recovery = how;
    Ok(())
}

pub(super) static TABLE: &[Entry] = &[
    flag!("hard", |d, _| recovery(d, Recovery::Hard)),
    flag!("soft", |d, _| recovery(d, Recovery::Soft)),
    flag!("softerr", |d, _| recovery(d, Recovery::SoftErr)),
    flag!("intr", |d, _| {
        d.options.intr = true;
        d.claim("intr", true)
    }),
    flag!("nointr", |d, _| d.claim("intr", false)),
    value!("timeo", "tenths of a second, at least 1", |d, n, v| {
        let tenths = d.number(n, v, 1..=u32::MAX.into(), "tenths of a second, at least 1")?;
        // A larger value is reduced to the limit (nfs(5)).
        let tenths = tenths.min(36000);
        d.options.client.transport.timeo = Duration::from_millis(tenths * 100);
        d.claim(n, tenths)
    }),
    value!("retrans", "a number of tries", |d, n, v| {
        let count = d
            .number(n, v, 0..=u32::MAX.into(), "a number of tries")?
            .min(1000);
        d.options.client.transport.retrans = count as u32;
        d.claim(n, count)
    }),
    value!("retry", "a number of minutes", |d, n, v| {
        let minutes = d.number(n, v, 0..=MAX_SECONDS / 60, "a number of minutes")?;
        d.options.retry = Some(Duration::from_secs(minutes * 60));
        d.claim(n, minutes)
    }),
    flag!("bg", |d, _| {
        d.options.background = true;
        d.claim("bg", true)
    }),
    flag!("fg", |d, _| d.claim("bg", false)),
];
