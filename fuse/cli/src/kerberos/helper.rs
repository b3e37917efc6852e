//! The hidden command `gss-helper`: makes one Kerberos context as a user, for the process that serves
//! a mount, which is at the other end of standard input.
//!
//! It is a process of its own because everything that the Kerberos library does for a user has to be
//! done with this user's rights: a ticket cache may be a file, a keyring, or another daemon's that
//! asks who is calling. And what the library reads for a user cannot harm the others.

use crate::failure::{Exit, Failure};
use crate::kerberos::protocol::{Answer, Refusal, Request, Secret, receive, send};
use crate::kerberos::tickets;
use crate::mount::daemon::close_inherited;
use nfsrdma_gss::{Initiator, Kind, Library};
use nfsrdma_xdr::codec::{Decode, Encode};
use nix::unistd::alarm;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, getgid, getrlimit, getuid, set_dumpable_behavior,
    setrlimit,
};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Most tokens of the server for one context.
const MAX_STEPS: usize = 8;
/// What a user's ticket cache can make of this machine: so much memory, in bytes, and so many seconds of a CPU.
const MEMORY: u64 = 512 << 20;
const CPU_SECONDS: u64 = 10;

/// Makes the context. The caller has no other threads.
pub(crate) fn run() -> Result<(), Failure> {
    // The serving process opens everything so that no other program gets it. What it had itself inherited is not the
    // user's either.
    close_inherited();
    let broken = |error: io::Error| {
        let sentence = format!("gss-helper is for nfsrdma itself, at a socket: {error}");
        Failure::new(Exit::Usage, sentence)
    };
    let talk = io::stdin().as_fd().try_clone_to_owned().map_err(broken)?;
    let mut talk = UnixStream::from(talk);
    let request = receive(&mut talk).map_err(broken)?;
    let request = Request::from_xdr(&request.0)
        .map_err(|error| broken(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    // The default action of its signal ends this process, wherever the library waits then.
    alarm::set(request.limit.max(1));
    if let Err(refusal) = serve(&mut talk, &request) {
        let refused = Answer::Refused(refusal).to_xdr();
        send(&mut talk, refused).map_err(broken)?;
    }
    Ok(())
}

fn serve(talk: &mut UnixStream, request: &Request) -> Result<(), Refusal> {
    become_user(request).map_err(|error| {
        let sentence = format!(
            "nfsrdma cannot become the user who needs a Kerberos context: {error}; a mount for several users is made by \
             root, with CAP_SETUID and CAP_SETGID"
        );
        Refusal::new(Kind::Other, sentence)
    })?;
    let library = Library::load()?;
    let (initiator, token) = tickets::begin(library, request)?;
    tell(talk, Answer::Token(Secret(token.to_vec())))?;
    let context = finish(talk, initiator)?;
    tell(talk, Answer::Context(context))
}

/// Answers the server's tokens until the context is complete; returns it for another process.
fn finish(talk: &mut UnixStream, mut initiator: Initiator) -> Result<Secret, Refusal> {
    for _ in 0..MAX_STEPS {
        let token = receive(talk).map_err(gone)?;
        let step = initiator.step(&token.0)?;
        if step.done {
            return Ok(Secret(initiator.into_context()?.export()?.to_vec()));
        }
        tell(talk, Answer::Token(Secret(step.token.to_vec())))?;
    }
    let sentence = "the server never completes a Kerberos context";
    Err(Refusal::new(Kind::Defective, sentence))
}

fn tell(talk: &mut UnixStream, answer: Answer) -> Result<(), Refusal> {
    send(talk, answer.to_xdr()).map_err(gone)
}

/// The serving process has ended, or given up.
fn gone(error: io::Error) -> Refusal {
    Refusal::new(Kind::Other, format!("nobody waits for it: {error}"))
}

/// Takes the user's identity for good, with no groups but one, and no way back to more rights. What
/// it knows is in no core dump, and other processes of the user cannot look into it.
fn become_user(request: &Request) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(request.uid), Gid::from_raw(request.gid));
    // Who is no root can serve but himself, and has nothing to give up.
    if getuid().is_root() || getuid() != uid {
        leave_session_keyring()?;
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        if getuid() != uid || getgid() != gid {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    set_no_new_privs(true)?;
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::As, MEMORY),
        (Resource::Cpu, CPU_SECONDS),
    ] {
        lower(resource, most)?;
    }
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Begins an empty session keyring. That of whoever has mounted may have tickets, which krb5.conf can name as everybody's
/// own (`KEYRING:session:`). Where the system permits no keyrings, the library has none either.
fn leave_session_keyring() -> io::Result<()> {
    let name = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name the call reads no memory.
    match unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, name) } {
        -1 => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// Limits a resource to `most`, or to less if it was limited already.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource)
        .maximum
        .map_or(most, |old| old.min(most));
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(resource, limit)?)
}
