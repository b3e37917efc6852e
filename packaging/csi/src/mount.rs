//! Mounts: the program that makes and ends them.

use nfsrdma_mountinfo::on_top_of;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tonic::{Code, Status};

/// The program `nfsrdma`, and the options of each mount.
#[derive(Debug)]
pub(crate) struct Mounter {
    words: Vec<String>,
    options: String,
}

impl Mounter {
    pub(crate) fn new(program: &str, options: &str) -> Mounter {
        Mounter {
            words: program.split_whitespace().map(str::to_owned).collect(),
            options: options.to_owned(),
        }
    }

    /// The options of each mount.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// Fails if the program cannot be started.
    pub(crate) fn works(&self) -> Result<(), Status> {
        self.done(&["--version".as_ref()])
    }

    /// Mounts, and returns when the mount works. The program goes on by itself, in a session of its own. A dead mount
    /// on the directory is replaced.
    pub(crate) fn mount<'a>(
        &self,
        source: &str,
        dir: &Path,
        options: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Status> {
        let mut all = self.options.clone();
        for option in options {
            all = format!("{all},{option}");
        }
        // The orchestrator tries again, and wants to know soon why it does not work.
        if !all.contains("retry=") {
            all = format!("retry=0,{all}");
        }
        // Empty ones are passed over.
        self.done(&[
            "mount".as_ref(),
            source.as_ref(),
            dir.as_ref(),
            "-o".as_ref(),
            all.as_ref(),
        ])?;
        // By `nofail` the program says nothing of a mount that failed, and without propagation it is seen by nobody here.
        match on_top_of(dir) {
            Ok(Some(mount)) if mount.is_ours() && mount.source == *source => Ok(()),
            _ => Err(Status::unavailable(format!(
                "{source} is not mounted on {}: leave out 'nofail', and see that the driver sees mounts of its host",
                dir.display()
            ))),
        }
    }

    /// Writes everything back and unmounts.
    pub(crate) fn unmount(&self, dir: &Path) -> Result<(), Status> {
        self.done(&["umount".as_ref(), dir.as_ref()])
    }

    fn done(&self, words: &[&std::ffi::OsStr]) -> Result<(), Status> {
        let output = self.run(words).map_err(|error| {
            let name = self.words.first().map_or("", String::as_str);
            Status::internal(format!("{name} cannot be run: {error}"))
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // Exit statuses of mount(8).
        let code = match output.status.code() {
            Some(1) => Code::InvalidArgument,
            Some(2) => Code::FailedPrecondition,
            _ => Code::Internal,
        };
        Err(Status::new(code, one_line(&said)))
    }

    fn run(&self, words: &[&std::ffi::OsStr]) -> io::Result<Output> {
        let (name, more) = self.words.split_first().ok_or(io::ErrorKind::NotFound)?;
        Command::new(name)
            .args(more)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
    }
}

/// What the program said, without its name.
fn one_line(said: &str) -> String {
    let lines = said.lines().map(|line| {
        let line = line.trim();
        line.strip_prefix("nfsrdma: ").unwrap_or(line)
    });
    let text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>();
    match text.is_empty() {
        true => "nfsrdma failed and did not say why: look into the log of the node".to_owned(),
        false => text.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_said_becomes_one_line() {
        assert_eq!(one_line("nfsrdma: no\n  more\n"), "no; more");
        assert!(one_line("\n").contains("look into the log"));
    }
}
