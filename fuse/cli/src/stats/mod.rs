//! `stats`: what a mount is doing, asked from the process that serves it.

mod document;
pub(super) mod metrics;
mod mountstats;
mod prometheus;
mod text;

pub use document::Document;

use super::cli::{StatsArgs, StatsForm};
use super::control::{self, Said};
use super::failure::{Exit, Failure};
use super::options::Options;
use super::output::{self, Reader};
use super::{observe, reach, settings};
use document::ServerLimits;
use nfsrdma_fs::fs::Fs;
use nfsrdma_nfs3::Nfs3Client;
use nfsrdma_nfs3::mount::Mounted;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The serving side: where the numbers come from.
#[derive(Debug)]
pub(super) struct Source {
    client: Nfs3Client,
    fs: Arc<Fs<Nfs3Client>>,
    mounted_at: Instant,
    options: Options,
    /// What does not change.
    constant: Document,
}

impl Source {
    pub(super) fn new(
        mounted: &Mounted,
        fs: Arc<Fs<Nfs3Client>>,
        source: &[u8],
        dir: &Path,
        options: &Options,
    ) -> Self {
        let constant = Document {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            source: String::from_utf8_lossy(source).into_owned(),
            directory: dir.to_string_lossy().into_owned(),
            transport: mounted.description.provider.to_owned(),
            server: ServerLimits {
                wtmult: mounted.fsinfo.wtmult,
                dtpref: mounted.fsinfo.dtpref,
                name_max: mounted.pathconf.as_ref().map_or(255, |p| p.name_max),
            },
            ..Document::default()
        };
        Source {
            client: mounted.client.clone(),
            fs,
            mounted_at: Instant::now(),
            options: options.clone(),
            constant,
        }
    }

    /// The numbers of this moment.
    pub(super) fn document(&self) -> Document {
        let stats = self.client.stats();
        let age = self.mounted_at.elapsed().as_nanos();
        let named = |(name, value): (&'static str, u64)| (name.to_owned(), value);
        let mut document = Document {
            age_ns: u64::try_from(age).unwrap_or(u64::MAX),
            options: settings::effective(&self.options, &self.client),
            procedures: stats.procedures.iter().map(Into::into).collect(),
            connections: stats.connections.iter().map(Into::into).collect(),
            cache: self.fs.statistics().into_iter().map(named).collect(),
            ..self.constant.clone()
        };
        document.set_hit_rates();
        document
    }

    /// For the control socket.
    pub(super) fn answer(self: Arc<Self>) -> control::Answer {
        Arc::new(move |request| match request {
            control::STATS => serde_json::to_string(&self.document())
                .ok()
                .map(Said::Document),
            _ => observe::answer(self.client.tap(), request).map(Said::Feed),
        })
    }
}

/// Runs `stats`.
pub(super) fn run(args: &StatsArgs) -> Result<(), Failure> {
    let mut before: Option<Document> = None;
    loop {
        let document = fetch(&args.dir)?;
        let text = match args.form {
            StatsForm::Text => match &before {
                // Another process, another mount: nothing to compare with.
                Some(old) if old.pid == document.pid => {
                    format!("\n{}", text::render(&document.since(old), true))
                }
                _ => text::render(&document, false),
            },
            StatsForm::Json => json(&document, args.watch.is_some())?,
            StatsForm::Mountstats => mountstats::render(&document),
            StatsForm::Prometheus => prometheus::render(&document),
        };
        if output::result(text.as_bytes())? == Reader::Gone {
            return Ok(());
        }
        let Some(pause) = args.watch else {
            return Ok(());
        };
        before = Some(document);
        std::thread::sleep(pause);
    }
}

/// Indented, or one line for each moment.
fn json(document: &Document, line: bool) -> Result<String, Failure> {
    let text = match line {
        true => serde_json::to_string(document),
        false => serde_json::to_string_pretty(document),
    };
    text.map(|text| text + "\n")
        .map_err(|error| Failure::new(Exit::Internal, format!("cannot write JSON: {error}")))
}

fn fetch(dir: &Path) -> Result<Document, Failure> {
    let mount = reach::mount(dir)?;
    let answer = control::ask(&mount.device, mount.owner, control::STATS)
        .map_err(|error| reach::failure(dir, error))?;
    reach::refusal(dir, &answer)?;
    serde_json::from_slice(&answer).map_err(|error| reach::other_version(dir, error))
}
