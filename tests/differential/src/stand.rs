//! The trees: an export in a file system in memory, its mount, and a local directory.

use crate::acl_attribute;
use crate::observe::errno_name;
use crate::sys;
use anyhow::{Context, Result, bail, ensure};
use nfsrdma_test_support::{Launch, Responder};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Debug)]
pub(crate) struct Stand {
    base: PathBuf,
    program: PathBuf,
    server: Option<Responder>,
    /// The directory that the responder exports.
    pub(crate) export: PathBuf,
    /// The export, mounted by the client.
    pub(crate) mount: PathBuf,
    /// A directory beside the export. Its path is as long as that of the mount, so that paths reach
    /// their length limit at the same names.
    pub(crate) local: PathBuf,
    /// Whether the local file system has ACLs.
    pub(crate) acls: bool,
    /// Whether the mount leaves permissions to the server (`permissions=server`).
    pub(crate) server_checks: bool,
}

impl Stand {
    /// Makes the trees below `dir`, or in a file system in memory.
    pub(crate) fn new(
        bin: &Path,
        dir: Option<&Path>,
        options: &str,
        responder: &[String],
    ) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("nfsrdma-differential.");
        let base = match dir {
            Some(dir) => builder.tempdir_in(dir)?,
            None => builder.tempdir()?,
        };
        let base = base.keep().canonicalize()?;
        let mut stand = Stand {
            export: base.join("exp"),
            mount: base.join("mnt"),
            local: base.join("loc"),
            program: bin.join("nfsrdma"),
            server: None,
            acls: false,
            server_checks: options.split(',').any(|o| o == "permissions=server"),
            base,
        };
        // Reading from a cache does not change the access time (docs/SEMANTICS.md). So it is the
        // same on both trees only if reading never changes it.
        let mut mount = Command::new("mount");
        match dir {
            Some(_) => mount.args(["--bind", "-o", "noatime"]).arg(&stand.base),
            None => mount.args(["-t", "tmpfs", "-o", "size=2g,noatime", "tmpfs"]),
        };
        let status = mount.arg(&stand.base).status()?;
        ensure!(status.success(), "mounting {}", stand.base.display());
        fs::set_permissions(&stand.base, fs::Permissions::from_mode(0o755))?;
        for dir in [
            &stand.export,
            &stand.mount,
            &stand.local,
            &stand.base.join("state"),
        ] {
            fs::create_dir(dir)?;
        }
        // An ACL with one user beside owner, group and others.
        let list = [1, 2, 4, 0x10, 0x20].map(|tag| match tag {
            2 => (tag, 7, 10001),
            _ => (tag, 7, u32::MAX),
        });
        let path = CString::new(stand.local.as_os_str().as_bytes())?;
        let name = acl_attribute::attribute(true);
        stand.acls = match sys::setxattr(&path, name, &acl_attribute::value(&list)) {
            Err(libc::EOPNOTSUPP) => false,
            Err(errno) => bail!("setting an ACL: {}", errno_name(errno)),
            Ok(_) => sys::removexattr(&path, name).is_ok(),
        };
        stand.start(bin, options, responder)?;
        Ok(stand)
    }

    fn start(&mut self, bin: &Path, options: &str, responder: &[String]) -> Result<()> {
        let program = bin.join("nfsrdma-responder");
        let server = Launch::new(&program, &self.export, &self.base.join("state"))
            .arguments(responder)
            .log(self.base.join("responder.log"))
            .start()?;
        let (rdma, nfs) = (server.rdma, server.nfs);
        self.server = Some(server);
        let mut all = format!("port={rdma},mountport={nfs},mountproto=tcp,noresvport");
        if !options.is_empty() {
            all = format!("{all},{options}");
        }
        let output = Command::new(&self.program)
            // Each hidden name that stays, and not one a minute (`accepted::leaves_hidden_name`).
            .env("RUST_LOG", "info,nfsrdma_fs::fs::hidden=debug")
            .arg("mount")
            .arg(format!("127.0.0.1:{}", self.export.display()))
            .arg(&self.mount)
            .arg("--log")
            .arg(self.base.join("client.log"))
            .args(["-o", &all])
            .output()
            .context("starting nfsrdma")?;
        ensure!(
            output.status.success(),
            "mounting: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// The part of the client's log after `read` bytes.
    pub(crate) fn log_since(&self, read: &mut u64) -> Result<String> {
        let mut file = match File::open(self.base.join("client.log")) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(*read))?;
        let mut text = Vec::new();
        *read += file.take(1 << 20).read_to_end(&mut text)? as u64;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Unmounts. An error says what the client could not do.
    pub(crate) fn end(&self) -> Result<()> {
        let output = Command::new(&self.program)
            .arg("umount")
            .arg(&self.mount)
            .output()?;
        ensure!(
            output.status.success(),
            "unmounting: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let quiet = |command: &mut Command| {
            let _ = command.stderr(Stdio::null()).status();
        };
        // After `end` this is not mounted any more.
        quiet(Command::new("umount").arg("-l").arg(&self.mount));
        drop(self.server.take());
        quiet(Command::new("umount").arg("-l").arg(&self.base));
        let _ = fs::remove_dir_all(&self.base);
    }
}
