//! Options joined by commas, as `-o` takes them.

use std::fmt::{self, Display};

/// The options that are shown, so far.
#[derive(Debug, Default)]
pub(super) struct Words(String);

impl Words {
    pub(super) fn into_text(self) -> String {
        self.0
    }

    pub(super) fn flag(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
    }

    pub(super) fn flag_if(&mut self, shown: bool, name: &str) {
        if shown {
            self.flag(name);
        }
    }

    /// `name` or `noname`.
    pub(super) fn switch(&mut self, name: &str, on: bool) {
        self.flag(if on { "" } else { "no" });
        self.0.push_str(name);
    }

    pub(super) fn value(&mut self, name: &str, value: impl Display) {
        self.flag(name);
        fmt::write(&mut self.0, format_args!("={value}"))
            .expect("writing to a String does not fail");
    }

    /// The value, if there is one.
    pub(super) fn some(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.value(name, value);
        }
    }
}
