//! An entry of the table of options: all that there is to know of an option, or of several that
//! belong together. The parser, what `mount -v` shows, the manual page, docs/CONFIGURATION.md and the
//! shell completions are made from it.

use super::Options;
use super::draft::{Draft, Outcome};
pub(super) use super::size::show_size;
use super::words::Words;

/// How an option is handled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// It sets something. The function is given the name and the value, which is empty for a form
    /// without one.
    Set(fn(&mut Draft, &'static str, &str) -> Outcome),
    /// With or without a value; accepted, but without effect here.
    Accept,
    /// An option of nfs(5) that is impossible here; `help` is the reason.
    Refuse,
}

/// An entry of the table.
#[derive(Debug)]
pub struct Entry {
    /// How it is written, with a blank between two forms: `name`, or `name=` and what stands for a
    /// value in capitals, or `name=` and all values, as in `a|b`. A `*` is any rest of a name.
    pub forms: &'static str,
    /// In Markdown; empty if there is none.
    pub default: &'static str,
    /// What it does, in Markdown.
    pub help: &'static str,
    /// The values that it takes, for errors; empty if they are all in `forms`.
    pub(super) takes: &'static str,
    pub(super) action: Action,
    /// Whether a remount can change it.
    pub(super) changes: bool,
    /// Adds the value in force to the options that are shown, by the first name.
    pub(super) show: fn(&Options, &'static str, &mut Words),
}

/// A part of the table, with its title in docs/CONFIGURATION.md.
#[derive(Debug)]
pub struct Section {
    pub title: &'static str,
    /// Why a remount does not change those that it cannot change: a sentence about one of them.
    pub(super) lasts: &'static str,
    pub entries: &'static [Entry],
}

/// The name in a form, or in an option as given.
pub(super) fn name_of(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

impl Entry {
    /// The parts that an entry may leave out.
    pub(super) const NONE: Entry = Entry {
        forms: "",
        default: "",
        help: "",
        takes: "",
        action: Action::Accept,
        changes: false,
        show: |_, _, _| {},
    };

    pub fn forms(&self) -> impl Iterator<Item = &'static str> {
        self.forms.split(' ')
    }

    /// The names, some of them several times.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.forms().map(name_of)
    }

    /// The values that `name` takes, for errors.
    pub(super) fn takes(&self, name: &str) -> String {
        let mut forms = self.forms().filter_map(|form| form.split_once('='));
        match forms.find(|form| self.takes.is_empty() && form.0 == name) {
            None => self.takes.to_owned(),
            Some((_, words)) => match words.rsplit_once('|') {
                None => words.to_owned(),
                Some((others, last)) => format!("{} or {last}", others.replace('|', ", ")),
            },
        }
    }

    pub fn is_refused(&self) -> bool {
        matches!(self.action, Action::Refuse)
    }

    /// Whether `name` may stand without a value, and whether it may have one.
    pub(super) fn alone_or_valued(&self, name: &str) -> (bool, bool) {
        let of_name = || self.forms().filter(|form| name_of(form) == name);
        (
            of_name().any(|form| form == name),
            of_name().any(|form| form != name),
        )
    }

    /// One word: whether the option takes a value, has no effect here, or is refused.
    pub fn kind(&self, name: &str) -> &'static str {
        match (self.action, self.alone_or_valued(name)) {
            (Action::Accept, _) => "accept",
            (Action::Refuse, _) => "refuse",
            (Action::Set(_), (true, true)) => "either",
            (Action::Set(_), (true, false)) => "flag",
            (Action::Set(_), _) => "value",
        }
    }
}

/// An option that is accepted, with or without a value, and has no effect here.
pub(super) const fn accept(forms: &'static str, help: &'static str) -> Entry {
    Entry {
        forms,
        help,
        ..Entry::NONE
    }
}

/// An option of nfs(5) that is impossible here, with the reason.
pub(super) const fn refuse(forms: &'static str, help: &'static str) -> Entry {
    Entry {
        action: Action::Refuse,
        ..accept(forms, help)
    }
}

/// The field of a setting that is a number.
pub(super) trait Number {
    fn of(number: u64) -> Self;
    /// `None` if it was not given.
    fn number(&self) -> Option<u64>;
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl Number for $type {
            fn of(number: u64) -> Self {
                number as $type
            }

            fn number(&self) -> Option<u64> {
                Some(*self as u64)
            }
        })*
    };
}

numbers!(u32 u64 usize);

impl<T: Number> Number for Option<T> {
    fn of(number: u64) -> Self {
        Some(T::of(number))
    }

    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(T::number)
    }
}

/// `name=N` in a range, into a field of [`Options`]. It is shown if it is known.
macro_rules! number {
    ($least:literal..=$most:literal, $($field:ident).+) => {
        Entry {
            takes: concat!("a number from ", $least, " to ", $most),
            action: Action::Set(|d, n, v| {
                let number = d.number(v, $least..=$most)?;
                d.options.$($field).+ = Number::of(number);
                d.claim(n, number)
            }),
            show: |o, n, w| w.some(n, o.$($field).+.number()),
            ..Entry::NONE
        }
    };
}

/// `name=SIZE` in a range, into a field of [`Options`].
macro_rules! size {
    ($range:expr, $($field:ident).+) => {
        Entry {
            action: Action::Set(|d, n, v| {
                let size = d.size(v, $range)?;
                d.options.$($field).+ = Number::of(size);
                d.claim(n, size)
            }),
            show: |o, n, w| w.some(n, o.$($field).+.number().map(show_size)),
            ..Entry::NONE
        }
    };
}

/// `name=PORT`, where 0 is the default, into a field of [`Options`].
macro_rules! port {
    ($($field:ident).+) => {
        Entry {
            action: Action::Set(|d, n, v| {
                d.options.$($field).+ = d.port(n, v)?;
                Ok(())
            }),
            show: |o, n, w| w.some(n, o.$($field).+),
            ..Entry::NONE
        }
    };
}

/// `name` and `noname`, into a field of [`Options`]. It is shown if it is not the default.
macro_rules! switch {
    ($($field:ident).+) => {
        Entry {
            action: Action::Set(|d, n, _| {
                let off = n.strip_prefix("no");
                d.options.$($field).+ = off.is_none().into();
                d.claim(off.unwrap_or(n), n)
            }),
            show: |o, n, w| {
                if o.$($field).+ != $crate::options::Options::default().$($field).+ {
                    w.switch(n, Option::<bool>::from(o.$($field).+) == Some(true));
                }
            },
            ..Entry::NONE
        }
    };
}

/// Two names of which `$on` sets a field of [`Options`] to true, and the other one to false. It is
/// shown if it is true.
macro_rules! toggle {
    ($($field:ident).+, $on:literal) => {
        Entry {
            action: Action::Set(|d, n, _| {
                d.options.$($field).+ = n == $on;
                d.claim($on, n)
            }),
            show: |o, _, w| w.flag_if(o.$($field).+, $on),
            ..Entry::NONE
        }
    };
}

/// `name=` one of some words, into a field of [`Options`]. Of two words with the same meaning the
/// first is shown.
macro_rules! choice {
    ($($field:ident).+, $($word:literal => $value:expr),+) => {
        Entry {
            action: Action::Set(|d, n, v| {
                let words = [$(($word, $value)),+];
                let Some(meant) = words.iter().find(|word| word.0 == v) else {
                    return d.bad();
                };
                d.options.$($field).+ = meant.1;
                let first = words.iter().find(|word| word.1 == meant.1);
                d.claim(n, first.unwrap_or(meant).0)
            }),
            show: |o, n, w| {
                let words = [$(($word, $value)),+];
                let shown = words.iter().find(|word| word.1 == o.$($field).+);
                w.some(n, shown.map(|word| word.0));
            },
            ..Entry::NONE
        }
    };
}

pub(super) use {choice, number, port, size, switch, toggle};
