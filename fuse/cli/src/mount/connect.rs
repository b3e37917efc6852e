//! Connects to the server of a mount, as often as the options `retry`, `fg` and `bg` say.

use crate::cli::MountArgs;
use crate::failure::{Exit, Failure, Retry};
use crate::ipc::pending::{Announcement, Pending};
use crate::mount::daemon::Reporter;
use crate::mount::log::Log;
use crate::mount::mount_point::MountPoint;
use crate::mount::{fstab_line, provider, settings};
use crate::options::Options;
use crate::options::mount_source::MountSource;
use nfsrdma_nfs3::mount::{self, Mounted};
use nfsrdma_rdma::Pool;
use nfsrdma_rpcrdma::words::counted;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tracing::warn;

/// The default of `retry`, in the foreground and in the background (nfs(5)).
const FOREGROUND_RETRY: Duration = Duration::from_secs(2 * 60);
const BACKGROUND_RETRY: Duration = Duration::from_secs(10_000 * 60);
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// All that is decided before the server is asked.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) args: MountArgs,
    pub(crate) spec: MountSource,
    pub(crate) point: MountPoint,
    pub(crate) options: Options,
    /// The options as text, with those of nfsmount.conf.
    pub(crate) text: String,
}

impl Plan {
    /// The name of the mount in the log.
    pub(crate) fn name(&self) -> String {
        format!("{} on {}", self.spec, self.point.path.display())
    }
}

/// Connects, as often as `retry`, `bg` and `fg` say. Also returns why this provider was chosen.
pub(crate) async fn connect(
    plan: &Plan,
    log: &Log,
    reporter: &mut Reporter,
    pool: &Pool,
) -> Result<(Mounted, String), Failure> {
    let options = &plan.options;
    let start = Instant::now();
    let limit = match (options.retry, options.background) {
        (Some(limit), _) => limit,
        (None, true) => BACKGROUND_RETRY,
        (None, false) => FOREGROUND_RETRY,
    };
    let mut pause = Duration::from_secs(1);
    let mut announced: Option<Announcement> = None;
    loop {
        let outcome = tokio::select! {
            outcome = attempt(plan, pool) => outcome,
            () = cancelled(announced.as_ref()) => return Err(was_cancelled(plan)),
        };
        let failure = match outcome {
            Ok(connected) => {
                if let Some(announced) = announced {
                    announced.stop().await;
                }
                return Ok(connected);
            }
            Err(failure) => failure,
        };
        let wait = match failure.retry {
            Retry::Always => true,
            Retry::IfRequested => options.background || options.retry.is_some(),
            Retry::Never => false,
        };
        let first = announced.is_none();
        let next = until_next(pause, start.elapsed(), limit).filter(|_| wait);
        let Some(after) = next else {
            return Err(with_hint(failure, &plan.point.path));
        };
        if options.background && reporter.reports() {
            let line = format!(
                "{failure}; trying on in the background to mount {} on {}",
                plan.spec,
                plan.point.path.display()
            );
            reporter.success(&line).map_err(|error| {
                Failure::new(
                    Exit::System,
                    format!("cannot go to the background: {error}"),
                )
            })?;
            log.detach();
        } else if first && reporter.reports() {
            reporter.notice(&format!(
                "{failure}; trying again for {} (retry=0 gives up at once)",
                counted(limit.as_secs() / 60, "minute")
            ));
        }
        warn!("{failure}; trying again in {} s", after.as_secs());
        let announced = announced.get_or_insert_with(|| announce(plan, start));
        announced.failed(&failure.message);
        tokio::select! {
            () = tokio::time::sleep(after) => {}
            () = announced.cancelled() => return Err(was_cancelled(plan)),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How long to wait for the next attempt, if there is to be one. The last is made when the time is over.
fn until_next(pause: Duration, elapsed: Duration, limit: Duration) -> Option<Duration> {
    let left = limit.saturating_sub(elapsed);
    (!left.is_zero()).then_some(pause.min(left))
}

/// Adds a hint: a server may be unreachable because the mount is tried before the network is up.
fn with_hint(mut failure: Failure, dir: &Path) -> Failure {
    if failure.retry != Retry::Never && fstab_line::lacks_netdev(dir) {
        failure.message += "; its line in /etc/fstab lacks _netdev, so that it is mounted before the network is up";
    }
    failure
}

/// Announces the attempts, so that other commands can list and cancel them.
fn announce(plan: &Plan, since: Instant) -> Announcement {
    let pending = Pending {
        pid: std::process::id(),
        source: String::from_utf8_lossy(&plan.spec.source()).into_owned(),
        directory: plan.point.path.to_string_lossy().into_owned(),
        directory_bytes: match plan.point.path.to_str() {
            Some(_) => Vec::new(),
            None => plan.point.path.as_os_str().as_bytes().to_owned(),
        },
        options: plan.args.options.clone(),
        background: plan.options.background,
        ..Pending::default()
    };
    Announcement::new(pending, since)
}

async fn cancelled(announced: Option<&Announcement>) {
    match announced {
        Some(announced) => announced.cancelled().await,
        None => std::future::pending().await,
    }
}

fn was_cancelled(plan: &Plan) -> Failure {
    Failure::new(
        Exit::Interrupted,
        format!(
            "mounting {} on {} was cancelled by 'nfsrdma umount'",
            plan.spec,
            plan.point.path.display()
        ),
    )
}

/// Makes one attempt. Also returns the reason for the choice of the provider.
async fn attempt(plan: &Plan, pool: &Pool) -> Result<(Mounted, String), Failure> {
    let options = &plan.options;
    let target = settings::target(&plan.spec);
    let client = settings::client_with(options, &target.host, &Handle::current());
    // It may wait for DNS and for a device: not here, where signals are heard.
    let (given, host) = (options.clone(), target.host.clone());
    let chosen = tokio::task::spawn_blocking(move || provider::choose(&given, &host));
    let chosen = chosen.await.map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("choosing the transport failed: {error}"),
        )
    })??;
    let mounted = mount::connect(&target, &client, chosen.provider.clone(), pool.clone()).await;
    let mounted = mounted.map_err(|error| chosen.failed(error))?;
    Ok((mounted, chosen.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_is_made_at_the_end_of_the_time() {
        let seconds = Duration::from_secs;
        assert_eq!(
            until_next(seconds(30), seconds(31), seconds(60)),
            Some(seconds(29))
        );
        assert_eq!(until_next(seconds(30), seconds(60), seconds(60)), None);
        assert_eq!(
            until_next(seconds(1), seconds(0), seconds(0)),
            None,
            "retry=0"
        );
    }
}
