//! An entry of the table of options: a name, and what handles its value. Macros write entries.

use super::draft::{Draft, Outcome};

/// How an option handles its value.
#[derive(Debug)]
pub(super) enum Action {
    /// `name` without a value.
    Flag(fn(&mut Draft, &str) -> Outcome),
    /// `name=value`; the text describes the values.
    Value(&'static str, fn(&mut Draft, &'static str, &str) -> Outcome),
    /// `name` or `name=value`; the text describes the values.
    Either(fn(&mut Draft, &'static str, Option<&str>) -> Outcome),
    /// With or without a value; accepted, but without effect here.
    Accept,
    /// An option of nfs(5) that is impossible here.
    Refuse(&'static str),
}

/// An entry of the table.
#[derive(Debug)]
pub struct Entry {
    /// The name, as nfs(5) or this program spells it.
    pub name: &'static str,
    pub(super) action: Action,
}

impl Entry {
    /// One word: whether the option takes a value, has no effect here, or is refused.
    pub fn kind(&self) -> &'static str {
        match self.action {
            Action::Flag(_) => "flag",
            Action::Value(..) => "value",
            Action::Either(_) => "either",
            Action::Accept => "accept",
            Action::Refuse(_) => "refuse",
        }
    }
}

macro_rules! flag {
    ($name:literal, $body:expr) => {
        $crate::options::entry::Entry {
            name: $name,
            action: $crate::options::entry::Action::Flag($body),
        }
    };
}

macro_rules! value {
    ($name:literal, $wanted:expr, $body:expr) => {
        $crate::options::entry::Entry {
            name: $name,
            action: $crate::options::entry::Action::Value($wanted, $body),
        }
    };
}

macro_rules! either {
    ($name:literal, $body:expr) => {
        $crate::options::entry::Entry {
            name: $name,
            action: $crate::options::entry::Action::Either($body),
        }
    };
}

macro_rules! accept {
    ($name:literal) => {
        $crate::options::entry::Entry {
            name: $name,
            action: $crate::options::entry::Action::Accept,
        }
    };
}

macro_rules! refuse {
    ($name:literal, $reason:expr) => {
        $crate::options::entry::Entry {
            name: $name,
            action: $crate::options::entry::Action::Refuse($reason),
        }
    };
}

pub(super) use {accept, either, flag, refuse, value};
