//! An entry of the table of options: a name, and what is done with the value. The macros write one.

use super::draft::{Draft, Outcome};

/// What an option does with its value.
#[derive(Debug)]
pub(super) enum Action {
    /// Stands alone.
    Flag(fn(&mut Draft, &str) -> Outcome),
    /// `name=value`; the text describes the values.
    Value(&'static str, fn(&mut Draft, &'static str, &str) -> Outcome),
    /// `name` or `name=value`; the text describes the values.
    Either(fn(&mut Draft, &'static str, Option<&str>) -> Outcome),
    /// Either way; accepted and without effect here.
    Accept,
    /// Known to nfs(5), impossible here.
    Refuse(&'static str),
}

/// One name of the table.
#[derive(Debug)]
pub struct Entry {
    /// As nfs(5) or this program spells it.
    pub name: &'static str,
    pub(super) action: Action,
}

impl Entry {
    /// In a word, whether it takes a value, is without effect here, or is refused.
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
