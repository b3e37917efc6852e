//! Starts helpers, and talks to them.

use crate::cli::GSS_HELPER;
use crate::kerberos::protocol::{Answer, Refusal, Request, Secret, receive, send};
use nfsrdma_gss::{Context, Kind, Library};
use nfsrdma_xdr::codec::{Decode, Encode};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How the helpers of a mount are started.
#[derive(Debug, Clone)]
pub struct Helpers {
    /// This program.
    pub program: PathBuf,
    /// The service of the mount's server, like `nfs@server.example.org`.
    pub target: String,
    /// The file with the machine's keys.
    pub keytab: String,
    /// Where ticket caches of users may be, `%U` standing for the user's number.
    pub directories: Vec<String>,
    /// Another krb5.conf than the system's, which the mount was given.
    pub config: Option<PathBuf>,
    /// How long making a context may take.
    pub limit: Duration,
}

impl Helpers {
    /// With the places that a system has.
    pub fn new(target: impl Into<String>) -> Self {
        Helpers {
            program: "/proc/self/exe".into(),
            target: target.into(),
            keytab: "/etc/krb5.keytab".into(),
            directories: vec!["/tmp".into(), "/run/user/%U".into()],
            config: None,
            limit: Duration::from_secs(30),
        }
    }

    fn request(&self, uid: u32, gid: u32) -> Request {
        let number = uid.to_string();
        let directories = self.directories.iter();
        Request {
            uid,
            gid,
            target: self.target.clone(),
            keytab: self.keytab.clone(),
            directories: directories.map(|dir| dir.replace("%U", &number)).collect(),
            limit: u32::try_from(self.limit.as_secs()).unwrap_or(u32::MAX) + 1,
        }
    }

    /// Starts making a context of a user. Call [`Helper::step`] with nothing next.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start(&self, uid: u32, gid: u32) -> io::Result<Helper> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(&self.program);
        command
            .arg0("nfsrdma")
            .arg(GSS_HELPER)
            .env_clear()
            .current_dir(Path::new("/"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(config) = &self.config {
            command.env("KRB5_CONFIG", config);
        }
        let child = command.spawn()?;
        // It has the other end of the socket.
        drop(command);
        let mut helper = Helper {
            child,
            talk: ours,
            until: Instant::now() + self.limit,
        };
        send(&mut helper.talk, self.request(uid, gid).to_xdr())?;
        Ok(helper)
    }
}

/// What a step has made.
#[derive(Debug)]
pub enum Progress {
    /// For the server, whose own token goes to the next step.
    Token(Secret),
    /// The context, which is all that is left of the helper.
    Done(Context),
}

/// A process that makes a context. It is killed when this is dropped.
pub struct Helper {
    child: Child,
    talk: UnixStream,
    until: Instant,
}

impl Helper {
    /// Gives the helper the server's token, at first none, and waits for what it makes of it. May
    /// wait for the KDC, but not longer than the helpers' limit.
    ///
    /// # Errors
    /// Why there is no context. The helper has ended then, or will.
    pub fn step(&mut self, token: Option<&[u8]>) -> Result<Progress, Refusal> {
        if let Some(token) = token {
            send(&mut self.talk, token.to_vec()).map_err(lost)?;
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(lost(io::ErrorKind::WouldBlock.into()));
        }
        self.talk.set_read_timeout(Some(left)).map_err(lost)?;
        let answer = receive(&mut self.talk).map_err(lost)?;
        match Answer::from_xdr(&answer.0) {
            Ok(Answer::Token(token)) => Ok(Progress::Token(token)),
            Ok(Answer::Context(context)) => {
                Ok(Progress::Done(Library::load()?.import(&context.0)?))
            }
            Ok(Answer::Refused(refusal)) => Err(refusal),
            Err(error) => Err(lost(io::Error::new(io::ErrorKind::InvalidData, error))),
        }
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

/// Why a helper does not answer.
fn lost(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Refusal::new(
            Kind::Realm,
            "no Kerberos server (KDC) of the realm answers in time; look at krb5.conf and at the network",
        ),
        _ => Refusal::new(
            Kind::Other,
            format!(
                "the process that makes a Kerberos context has failed: {error}; see whether memory is short"
            ),
        ),
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // One that has ended by itself is not there any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper")
            .field("process", &self.child.id())
            .finish_non_exhaustive()
    }
}
