//! Finds the differences between two replies to one call.

use crate::call::{Call, Reply, Step};
use crate::observe::{Tree, errno_name};
use std::collections::BTreeMap;

/// A field that has two values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The name of the call.
    pub(crate) call: String,
    /// `errno`, `value`, `data`, `state` (one side has it and the other an error), a key of a
    /// state, or `tree`.
    pub(crate) field: String,
    pub(crate) mount: String,
    pub(crate) local: String,
    /// Whether another user than the caller saw it.
    pub(crate) observed: bool,
    /// The type of the object, if it is a state.
    pub(crate) kind: String,
    /// Whether hidden names may have come and gone since the trees were begun.
    pub(crate) may_hide: bool,
    /// Whether a path of the call begins in a directory that was removed.
    pub(crate) removed: bool,
    /// Whether the call succeeded on the local file system.
    pub(crate) succeeded: bool,
}

impl Difference {
    /// The text that differences of one kind share.
    pub(crate) fn signature(&self) -> String {
        let by = if self.observed {
            ", seen by another user"
        } else {
            ""
        };
        let short = |text: &str| match text.len() < 20 && !text.bytes().any(|b| b.is_ascii_digit())
        {
            true => text.to_owned(),
            false => "...".into(),
        };
        let values = match self.field.as_str() {
            "errno" | "state" | "contents" | "type" => {
                format!(" {} instead of {}", short(&self.mount), short(&self.local))
            }
            _ => String::new(),
        };
        format!("{} {}{values}{by}", self.call, self.field)
    }

    /// Whether the trees are alike nevertheless: the call failed on both sides, or only looks at
    /// objects.
    pub(crate) fn harmless(&self) -> bool {
        const LOOKING: [&str; 12] = [
            "Access",
            "Statx",
            "Contents",
            "List",
            "Readlink",
            "Statfs",
            "Fstat",
            "Pread",
            "GetLock",
            "Exec",
            "SeekSparse",
            "Getdents",
        ];
        match self.field.as_str() {
            "errno" if LOOKING.contains(&self.call.as_str()) => true,
            "errno" => self.mount != "OK" && self.local != "OK",
            "contents" => true,
            // One user cannot see it, but others can.
            "state" => self.mount == "EACCES" || self.local == "EACCES",
            "mode" | "nlink" | "uid" | "gid" | "size" | "atime" | "mtime" | "rdev" => false,
            "value" | "data" => LOOKING.contains(&self.call.as_str()),
            _ => false,
        }
    }
}

/// The keys and values of a state. An error is the only value, with the key `state`.
fn keys(state: &str) -> BTreeMap<&str, &str> {
    state
        .split(' ')
        .map(|word| word.split_once('=').unwrap_or(("state", word)))
        .collect()
}

/// All fields in which two replies to `step` differ.
pub(crate) fn replies(
    step: &Step,
    mount: &Reply,
    local: &Reply,
    observed: bool,
) -> Vec<Difference> {
    let mut found = Vec::new();
    let call = step.call.name();
    let mut compare_of = |field: &str, mount: String, local: String, kind: &str| {
        if mount != local {
            let (call, field) = (call.clone(), field.to_owned());
            found.push(Difference {
                call,
                field,
                mount,
                local,
                observed,
                kind: kind.to_owned(),
                may_hide: false,
                removed: false,
                succeeded: false,
            });
        }
    };
    let mut compare =
        |field: &str, mount: String, local: String| compare_of(field, mount, local, "");
    compare(
        "errno",
        errno_name(mount.outcome.errno),
        errno_name(local.outcome.errno),
    );
    if mount.outcome.errno == local.outcome.errno {
        compare(
            "value",
            mount.outcome.value.to_string(),
            local.outcome.value.to_string(),
        );
        // The result of statx(2) is compared like a state.
        if !matches!(step.call, Call::Fstat { .. } | Call::Statx { .. }) {
            compare(
                "data",
                mount.outcome.data.clone(),
                local.outcome.data.clone(),
            );
        }
    }
    let told = match step.call {
        Call::Fstat { .. } | Call::Statx { .. } => Some((&mount.outcome.data, &local.outcome.data)),
        _ => None,
    };
    let states = mount.states.iter().zip(&local.states);
    for (mount, local) in told.into_iter().chain(states) {
        if mount == local {
            continue;
        }
        let (mount, local) = (keys(mount), keys(local));
        if mount.contains_key("type") != local.contains_key("type") {
            let whole = |keys: &BTreeMap<&str, &str>| match keys.get("state") {
                Some(errno) => (*errno).to_owned(),
                None => format!("a {}", keys.get("type").unwrap_or(&"state")),
            };
            compare_of("state", whole(&mount), whole(&local), "");
            continue;
        }
        for key in mount.keys() {
            let value =
                |keys: &BTreeMap<&str, &str>| keys.get(key).unwrap_or(&"nothing").to_string();
            if value(&mount) != value(&local) && mount.contains_key(key) {
                let kind = local.get("type").copied().unwrap_or_default();
                compare_of(key, value(&mount), value(&local), kind);
            }
        }
    }
    found
}

/// The lines in which two trees differ.
pub(crate) fn trees(what: &str, mount: &Tree, local: &Tree) -> Vec<Difference> {
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let by_name = |tree: &Tree| -> BTreeMap<String, String> {
        tree.lines
            .iter()
            .map(|line| (name(line), line.clone()))
            .collect()
    };
    let (mount, local) = (by_name(mount), by_name(local));
    let mut found = Vec::new();
    let mut names: Vec<_> = mount.keys().chain(local.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let line = |of: &BTreeMap<String, String>| {
            of.get(name)
                .cloned()
                .unwrap_or_else(|| format!("{name} is not there"))
        };
        let (mount, local) = (line(&mount), line(&local));
        if mount == local {
            continue;
        }
        let (ours, theirs) = (keys(&mount), keys(&local));
        let differing: Vec<_> = ours
            .iter()
            .filter(|(key, value)| theirs.get(*key) != Some(value))
            .collect();
        let kind = theirs.get("type").copied().unwrap_or_default().to_owned();
        let difference = |field: &str, mount: String, local: String| Difference {
            call: what.to_owned(),
            field: field.to_owned(),
            mount,
            local,
            observed: false,
            kind: kind.clone(),
            may_hide: false,
            removed: false,
            succeeded: false,
        };
        if ours.contains_key("type") && theirs.contains_key("type") {
            for (key, value) in differing {
                let there = theirs.get(key).unwrap_or(&"nothing");
                found.push(difference(
                    key,
                    format!("{name} {value}"),
                    format!("{name} {there}"),
                ));
            }
        } else {
            found.push(difference("names", mount, local));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Outcome;

    fn step() -> Step {
        Step {
            user: 0,
            call: Call::Close { slot: 0 },
            observer: 0,
            contents: false,
        }
    }

    fn reply(errno: i32, state: &str) -> Reply {
        Reply {
            outcome: Outcome {
                errno,
                ..Outcome::default()
            },
            states: vec![state.into()],
            ..Reply::default()
        }
    }

    #[test]
    fn equal_replies_do_not_differ() {
        let reply = reply(0, "type=file mode=0644");
        assert_eq!(replies(&step(), &reply, &reply.clone(), false), []);
    }

    #[test]
    fn each_field_that_differs_is_named() {
        let found = replies(
            &step(),
            &reply(1, "type=file mode=0644"),
            &reply(2, "type=file mode=0600"),
            false,
        );
        let fields: Vec<_> = found.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["errno", "mode"]);
        assert_eq!(found[0].signature(), "Close errno EPERM instead of ENOENT");
    }

    #[test]
    fn an_object_that_one_side_cannot_see_differs() {
        let found = replies(
            &step(),
            &reply(0, "type=file mode=0644"),
            &reply(0, "EACCES"),
            true,
        );
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].signature(),
            "Close state a file instead of EACCES, seen by another user"
        );
    }

    #[test]
    fn trees_are_compared_by_name() {
        let tree = |lines: &[&str]| Tree {
            lines: lines.iter().map(|&l| l.to_owned()).collect(),
            ..Tree::default()
        };
        let found = trees(
            "tree",
            &tree(&["a type=file size=1", "b type=file"]),
            &tree(&["a type=file size=2"]),
        );
        let fields: Vec<_> = found.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["size", "names"]);
    }
}
