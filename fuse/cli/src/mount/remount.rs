//! The requests `options` and `remount` of the control socket: the options of the mount, and other ones for it.
//!
//! Nothing in this process changes. The mount goes on with a successor, as in an upgrade, whose record has the
//! new options: so there is one way to bring options into force, and no setting that changes while calls
//! look at it.

use crate::ipc::control::{self, ControlReply};
use crate::ipc::upgrade_request::{self, Answer, Change, Upgradable};
use crate::mount::record::Record;
use crate::mount::settings;
use crate::options::Options;
use crate::options::remount::{changing, merged};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tracing::info;

/// The names of the requests; new options follow the second one.
pub(crate) const OPTIONS: &str = "options";
pub(crate) const REMOUNT: &str = "remount ";

/// The answer to [`OPTIONS`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InForce {
    /// As given, with those of nfsmount.conf and of remounts.
    pub(crate) options: String,
}

/// Answers both before `next`. `options` are those in force; without a record the mount ends with this process.
pub(crate) fn answer(
    of: Arc<Upgradable>,
    options: String,
    record: Option<Record>,
    next: control::Answer,
) -> control::Answer {
    Arc::new(move |request| {
        if request == OPTIONS {
            let options = options.clone();
            let text = serde_json::to_string(&InForce { options }).ok()?;
            return Some(ControlReply::Document(text));
        }
        let Some(wanted) = request.strip_prefix(REMOUNT) else {
            return next(request);
        };
        let change = record.as_ref().map(|record| change(record, wanted));
        match change.transpose() {
            Ok(change) => {
                info!("other options are wanted: {wanted}");
                Some(ControlReply::Feed(upgrade_request::feed(
                    of.clone(),
                    change,
                )))
            }
            Err(error) => {
                let answer = Answer {
                    error,
                    possible: true,
                    ..Answer::default()
                };
                let text = serde_json::to_string(&answer).ok()?;
                Some(ControlReply::Document(text))
            }
        }
    })
}

/// What the successor goes on with.
fn change(record: &Record, wanted: &str) -> Result<Change, String> {
    if let (_, others) = changing(wanted)
        && let Some(word) = others.first()
    {
        return Err(format!("a remount does not change '{word}'"));
    }
    let options = merged(record.options(), wanted);
    let memory = |text: &str| {
        let options = Options::parse(text).map_err(|error| error.to_string())?;
        let config = settings::file_system(&options);
        Ok::<_, String>(settings::pool_bytes(&options, &config))
    };
    let other_memory = memory(record.options())? != memory(&options)?;
    let written = |record: &Record| record.written().map_err(|error| error.to_string());
    Ok(Change {
        now: written(record)?,
        next: written(&record.with_options(options))?,
        other_memory,
    })
}
