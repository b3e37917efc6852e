//! The command `stats`: shows the statistics of a mount, which it gets from the serving process.

mod connection;
pub(super) mod document;
pub(super) mod list;
pub(super) mod metrics;
pub(crate) mod mount_list;
mod mountstats;
mod process;
mod prometheus;
pub(super) mod text;

pub use document::Document;

use crate::cli::{StatsArgs, StatsForm};
use crate::failure::{Exit, Failure};
use crate::holder::client::Held;
use crate::ipc::client;
use crate::ipc::control::{self, ControlReply};
use crate::mount::record::now_ns;
use crate::mount::settings;
use crate::observe;
use crate::options::Options;
use crate::output::{self, Reader};
use document::{Kerberos, Limits, ServerLimits};
use mount_list::MountState;
use nfsrdma_fs::fs::{Fs, Paths};
use nfsrdma_nfs3::mount::Mounted;
use nfsrdma_nfs3::{Nfs3Client, Transport};
use nfsrdma_xdr::nfs3::FileHandle;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// When this mount, and this process of it, began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    /// By the clock of [`now_ns`].
    pub(super) mounted_ns: u64,
    pub(super) started_ns: u64,
    /// How many processes served it before this one, and how many of its successors came by an upgrade.
    pub(super) restarts: u32,
    pub(super) upgrades: u32,
}

/// The source of the statistics, in the serving process.
#[derive(Debug)]
pub(super) struct Source {
    client: Nfs3Client,
    fs: Arc<Fs<Nfs3Client>>,
    life: Life,
    holder: Option<Held>,
    options: Options,
    /// The fields that do not change.
    constant: Document,
}

impl Source {
    pub(super) fn new(
        mounted: &Mounted,
        fs: Arc<Fs<Nfs3Client>>,
        source: &[u8],
        dir: &Path,
        options: &Options,
        life: Life,
        holder: Option<&Held>,
    ) -> Self {
        let constant = Document {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            source: String::from_utf8_lossy(source).into_owned(),
            directory: dir.to_string_lossy().into_owned(),
            restarts: life.restarts,
            upgrades: life.upgrades,
            transport: mounted.client.provider().to_owned(),
            server: ServerLimits {
                wtmult: mounted.fsinfo.wtmult,
                dtpref: mounted.fsinfo.dtpref,
                name_max: mounted.name_max(),
            },
            ..Document::default()
        };
        Source {
            client: mounted.client.clone(),
            fs,
            life,
            holder: holder.cloned(),
            options: options.clone(),
            constant,
        }
    }

    /// The statistics at this moment.
    pub(super) fn document(&self) -> Document {
        let stats = self.client.stats();
        let now = now_ns();
        let named = |(name, value): (&'static str, u64)| (name.to_owned(), value);
        let mut document = Document {
            age_ns: now.saturating_sub(self.life.mounted_ns),
            restarted_ns: match self.life.restarts {
                0 => 0,
                _ => now.saturating_sub(self.life.started_ns),
            },
            unprotected: self.holder.as_ref().is_some_and(Held::is_gone),
            options: settings::effective(&self.options, &self.client),
            kerberos: self.client.contexts_in_use().map(Kerberos::new),
            procedures: stats.procedures.iter().map(Into::into).collect(),
            connections: stats.connections.iter().map(Into::into).collect(),
            waits: stats.waits.into(),
            stale: self.fs.is_stale(),
            limits: self.limits(),
            process: process::usage(),
            cache: self.fs.statistics().into_iter().map(named).collect(),
            ..self.constant.clone()
        };
        document.set_hit_rates();
        document
    }

    fn limits(&self) -> Limits {
        let config = settings::file_system(&self.options);
        let sizes = self.client.limits();
        Limits {
            cache_bytes: config.cache_bytes as u64,
            dirty_bytes: config.dirty_bytes as u64,
            pool_bytes: settings::pool_bytes(&self.options, &config) as u64,
            rsize: sizes.rtmax.into(),
            wsize: sizes.wtmax.into(),
        }
    }

    /// Renders the text for the mount's own metrics endpoint.
    pub(super) fn render(self: Arc<Self>) -> metrics::Render {
        Arc::new(move || prometheus::render(&self.document()))
    }

    /// Answers requests for the statistics on the control socket.
    pub(super) fn answer(self: Arc<Self>) -> control::Answer {
        Arc::new(move |request| match request {
            control::STATS => serde_json::to_string(&self.document())
                .ok()
                .map(ControlReply::Document),
            _ => {
                let mut paths = Paths::new(self.fs.clone());
                let find = Box::new(move |handle: &FileHandle| paths.find(handle));
                observe::answer(self.client.tap(), find, request).map(ControlReply::Feed)
            }
        })
    }
}

pub(super) fn run(args: &StatsArgs) -> Result<(), Failure> {
    let mut before: Option<Document> = None;
    let mut screen = crate::top::Plain::default();
    loop {
        let mut next = None;
        let text = match &args.dir {
            Some(dir) => {
                let document = fetch(dir)?;
                let text = one(args, &document, before.as_ref())?;
                next = Some(document);
                text
            }
            None => everything(args, &mut screen)?,
        };
        let reader = match args.form {
            StatsForm::Json => output::json(&text)?,
            _ => output::result(&text)?,
        };
        if reader == Reader::Gone {
            return Ok(());
        }
        let Some(pause) = args.watch else {
            return Ok(());
        };
        before = next;
        std::thread::sleep(pause);
    }
}

/// Formats the statistics of one mount.
fn one(
    args: &StatsArgs,
    document: &Document,
    before: Option<&Document>,
) -> Result<String, Failure> {
    Ok(match args.form {
        StatsForm::Text => match before {
            // Another process is another mount, with which there is nothing to compare.
            Some(old) if old.pid == document.pid => {
                format!("\n{}", text::render(&document.since(old), true))
            }
            _ => text::render(document, false),
        },
        StatsForm::Json => json(document, args.watch.is_some())?,
        StatsForm::Mountstats => mountstats::render(document),
        StatsForm::Prometheus => prometheus::render(document),
    })
}

/// Formats all mounts, a row for each; with `--watch`, later times show their rates.
fn everything(args: &StatsArgs, screen: &mut crate::top::Plain) -> Result<String, Failure> {
    let found = mount_list::all().map_err(mount_list::no_table)?;
    let documents = found.iter().filter_map(|one| match &one.state {
        MountState::Answers(document) => Some(document),
        _ => None,
    });
    Ok(match args.form {
        StatsForm::Text => {
            let first = screen.is_new();
            let rates = screen.block(&found, Instant::now());
            match args.watch {
                Some(_) if !first => format!("\n{rates}"),
                _ if found.is_empty() => "no nfsrdma mounts\n".to_owned(),
                _ => list::table(&found, args.verbose),
            }
        }
        StatsForm::Json => {
            let entries: Vec<_> = found.iter().map(list::entry).collect();
            json(&entries, args.watch.is_some())?
        }
        StatsForm::Mountstats => documents.map(|d| mountstats::render(d)).collect(),
        StatsForm::Prometheus => prometheus::render_all(&mount_list::on_top(found)),
    })
}

/// Formats JSON: indented, or as one line.
fn json(what: &impl serde::Serialize, line: bool) -> Result<String, Failure> {
    let text = match line {
        true => serde_json::to_string(what),
        false => serde_json::to_string_pretty(what),
    };
    text.map(|text| text + "\n")
        .map_err(|error| Failure::new(Exit::Internal, format!("cannot write JSON: {error}")))
}

fn fetch(dir: &Path) -> Result<Document, Failure> {
    let mount = client::mount(dir)?;
    let answer = control::ask(&mount.device, mount.owner, control::STATS)
        .map_err(|error| client::failure(dir, error))?;
    client::refusal(dir, &answer)?;
    Document::read(&mount, &answer).map_err(|error| client::other_version(dir, error))
}
