//! Counters, for the statistics of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares a struct of counters, and lists them with their names.
macro_rules! counters {
    ($(#[$of:meta])* $struct:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$of])*
        #[derive(Debug, Default)]
        pub(crate) struct $struct { $($(#[$doc])* pub(crate) $name: $crate::counters::Count,)* }

        impl $struct {
            pub(crate) fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}
pub(crate) use counters;
