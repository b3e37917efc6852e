//! The directory of a case, and the amount of its work.

use crate::fill;
use anyhow::Result;
use std::path::{Path, PathBuf};

/// The place in which a case works.
#[derive(Debug)]
pub(crate) struct Place {
    /// A new directory inside the mount.
    pub mounted: PathBuf,
    /// The same directory at the server, if that is accessible.
    pub direct: Option<PathBuf>,
    pub shrink: usize,
    pub seed: u64,
}

impl Place {
    /// `n` divided by the shrink factor, but at least `least`.
    pub(crate) fn scaled(&self, n: usize, least: usize) -> usize {
        (n / self.shrink).max(least)
    }

    /// Fails unless the file has the contents `expected` through the mount and at the server.
    pub(crate) fn same_everywhere(
        &self,
        relative: impl AsRef<Path>,
        expected: &[u8],
    ) -> Result<()> {
        let relative = relative.as_ref();
        fill::expect_same(&self.mounted.join(relative), expected)?;
        if let Some(direct) = &self.direct {
            fill::expect_same(&direct.join(relative), expected)?;
        }
        Ok(())
    }
}
