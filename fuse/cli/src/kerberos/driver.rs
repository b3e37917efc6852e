//! Starts helpers, and talks to them.

use crate::cli::GSS_HELPER;
use crate::kerberos::protocol::{Answer, Refusal, Request, Secret, receive, send};
use nfsrdma_gss::{Context, Kind, Library};
use nfsrdma_xdr::codec::{Decode, Encode};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
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
    /// The users whose last helper has not ended yet.
    pub(crate) left: Left,
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
            left: Left::default(),
        }
    }

    /// As [`Helpers::new`], but with the places that the environment names for programs of Kerberos.
    pub fn by_environment(target: impl Into<String>) -> Self {
        let usual = Helpers::new(target);
        let keytab = std::env::var("KRB5_KTNAME").ok();
        Helpers {
            keytab: keytab.map_or(usual.keytab, |name| {
                name.strip_prefix("FILE:").unwrap_or(&name).to_owned()
            }),
            config: std::env::var_os("KRB5_CONFIG").map(PathBuf::from),
            ..usual
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
    /// No process can be started, or the last one of this user hangs.
    pub fn start(&self, uid: u32, gid: u32) -> io::Result<Helper> {
        let place = self.left.enter(uid)?;
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
            ending: Some((child, place)),
            uid,
            talk: ours,
            until: Instant::now() + self.limit,
        };
        helper.talk.set_write_timeout(Some(self.limit))?;
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
    /// Until it is dropped.
    ending: Option<(Child, Place)>,
    uid: u32,
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
        let lost = |error| lost(error, self.uid);
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(lost(io::ErrorKind::WouldBlock.into()));
        }
        self.talk.set_write_timeout(Some(left)).map_err(lost)?;
        self.talk.set_read_timeout(Some(left)).map_err(lost)?;
        if let Some(token) = token {
            send(&mut self.talk, token.to_vec()).map_err(lost)?;
        }
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
        self.ending.as_ref().map_or(0, |(child, _)| child.id())
    }
}

/// Why a helper does not answer. The library itself tells of a KDC that does not, within 27 seconds; what hangs for
/// longer is as likely where the user's tickets lie. Root's are the machine's.
fn lost(error: io::Error, uid: u32) -> Refusal {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if uid != 0 => Refusal::new(
            Kind::NoCredential,
            "there is no Kerberos ticket that can be used: the user's ticket cache, or the KDC of its realm, does not \
             answer in time; see where the cache lies, and get another one by kinit",
        ),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Refusal::new(
            Kind::Realm,
            "no Kerberos server (KDC) of the realm answers in time; look at krb5.conf and at the network",
        ),
        _ => Refusal::new(
            Kind::Other,
            format!(
                "the process that makes a Kerberos context has failed: {error}; see whether the user's ticket cache is damaged, \
                 or memory is short"
            ),
        ),
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Some((mut child, place)) = self.ending.take() else {
            return;
        };
        // One that has ended by itself is not there any more.
        let _ = child.kill();
        // A process that waits in the kernel for a file system of its user ends when that file system
        // wants it to. Nobody waits for this but a thread of its own.
        let reap = move || {
            let _ = child.wait();
            drop(place);
        };
        // Without memory for a thread the process stays a zombie until the mount ends.
        let _ = thread::Builder::new()
            .name("nfsrdma-reap".into())
            .spawn(reap);
    }
}

/// How long the last helper of a user may take to end when the next one is to start.
const ENDING: Duration = Duration::from_secs(1);

/// The users who have helpers. There is one at a time for each, so that a user whose tickets lie where every
/// process hangs does not fill the machine with processes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Left(Arc<(Mutex<HashSet<u32>>, Condvar)>);

impl Left {
    fn enter(&self, uid: u32) -> io::Result<Place> {
        let (users, left) = &*self.0;
        let until = Instant::now() + ENDING;
        let mut users = users.lock();
        while !users.insert(uid) {
            if left.wait_until(&mut users, until).timed_out() {
                let why = "the last one for this user does not end";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
        }
        let left = self.clone();
        Ok(Place { left, uid })
    }
}

/// That a user has a helper.
#[derive(Debug)]
struct Place {
    left: Left,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (users, left) = &*self.left.0;
        users.lock().remove(&self.uid);
        left.notify_all();
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper")
            .field("process", &self.id())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_for_each_user() {
        let left = Left::default();
        let (first, _other) = (left.enter(1).unwrap(), left.enter(2).unwrap());
        let refused = left.clone().enter(1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        // And one that ends meanwhile is waited for.
        let second = left.enter(1).unwrap();
        let waits = thread::spawn(move || left.enter(1).is_ok());
        drop(second);
        assert!(waits.join().unwrap());
    }
}
