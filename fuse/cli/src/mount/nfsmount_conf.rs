//! /etc/nfsmount.conf, the file by which mount.nfs(8) adds options to the NFS mounts of a machine
//! (nfsmount.conf(5)).
//!
//! This reads the sections `NFSMount_Global_Options`, `Server "NAME"` and `MountPoint "DIR"`, also
//! from files in /etc/nfsmount.conf.d. The more specific option wins: first one of the command line
//! or of fstab, then of the mount point, of the server, and last a global one. The file is written
//! for the kernel's client, so settings that this program cannot honour (`Nfsvers=4`, `Proto=tcp`)
//! are skipped with a message. Only a demand for security that is not available is an error.

use crate::failure::Failure;
use crate::options::{OptionError, Options, protects, split};
use std::path::{Path, PathBuf};

const FILE: &str = "/etc/nfsmount.conf";
const FOLDER: &str = "/etc/nfsmount.conf.d";

/// What the settings of a section apply to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    Global,
    Server(String),
    MountPoint(String),
}

/// A variable of a section: its name in lower case, its value, and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    scope: Scope,
    name: String,
    value: String,
    file: PathBuf,
}

/// Adds the settings of `text` to `all`. They replace those of earlier files.
fn parse(text: &str, file: &Path, all: &mut Vec<Setting>) {
    let mut scope = None;
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(inner) = line.strip_prefix('[') {
            scope = section(inner.split(']').next().unwrap_or_default());
            continue;
        }
        let (Some(scope), Some((name, value))) = (&scope, line.split_once('=')) else {
            continue;
        };
        let setting = Setting {
            scope: scope.clone(),
            name: name.trim().to_ascii_lowercase(),
            value: value_of(value),
            file: file.to_owned(),
        };
        all.retain(|old| (&old.scope, &old.name) != (&setting.scope, &setting.name));
        all.push(setting);
    }
}

/// The value without quotes, or without a comment after it.
fn value_of(text: &str) -> String {
    let text = text.trim();
    match text.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default().to_owned(),
        None => {
            let end = text.find(" #").unwrap_or(text.len());
            text[..end].trim_end().to_owned()
        }
    }
}

fn section(inner: &str) -> Option<Scope> {
    let inner = inner.trim();
    let (name, argument) = inner
        .split_once(|c: char| c.is_whitespace() || c == '"')
        .unwrap_or((inner, ""));
    let argument = argument.trim().trim_matches('"').to_owned();
    match name.to_ascii_lowercase().as_str() {
        "nfsmount_global_options" => Some(Scope::Global),
        "server" => Some(Scope::Server(argument)),
        "mountpoint" => Some(Scope::MountPoint(argument)),
        _ => None,
    }
}

impl Setting {
    /// The setting as an option of mount(8); `None` if it only chooses versions for mount.nfs.
    fn option(&self) -> Option<String> {
        let value = self.value.to_ascii_lowercase();
        let name = self.name.as_str();
        let yes = match value.as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        Some(match (name, yes) {
            ("defaultvers" | "defaultproto", _) => return None,
            ("background", Some(yes)) => if yes { "bg" } else { "fg" }.to_owned(),
            ("foreground", Some(yes)) => if yes { "fg" } else { "bg" }.to_owned(),
            ("sloppy", Some(false)) => return None,
            (name, Some(true)) => name.to_owned(),
            (name, Some(false)) => match name.strip_prefix("no") {
                Some(positive) => positive.to_owned(),
                None => format!("no{name}"),
            },
            (name, None) => format!("{name}={value}"),
        })
    }

    /// How specific the setting is (0 is the most specific); `None` if it does not apply.
    fn nearness(&self, host: &str, dir: &str) -> Option<u8> {
        match &self.scope {
            Scope::MountPoint(name) => name.eq_ignore_ascii_case(dir).then_some(0),
            Scope::Server(name) => name.eq_ignore_ascii_case(host).then_some(1),
            Scope::Global => Some(2),
        }
    }
}

/// What an option sets. Of two options with the same subject, the more specific one counts.
fn subject(option: &str) -> &str {
    match option.split_once('=').map_or(option, |(name, _)| name) {
        "nfsvers" | "v2" | "v3" | "v4" | "v4.0" | "v4.1" | "v4.2" => "vers",
        "rdma" | "tcp" | "udp" => "proto",
        name => name,
    }
}

/// Adds the `settings` that apply to `given`. Also returns a sentence about each that was skipped.
fn complete(
    settings: &[Setting],
    host: &str,
    dir: &str,
    given: &str,
) -> Result<(String, Vec<String>), Failure> {
    let mut applying: Vec<(u8, &Setting)> = settings
        .iter()
        .filter_map(|setting| Some((setting.nearness(host, dir)?, setting)))
        .collect();
    applying.sort_by_key(|(nearness, _)| *nearness);
    let mut text = given.to_owned();
    let mut passed_over = Vec::new();
    for (_, setting) in applying {
        let Some(option) = setting.option() else {
            continue;
        };
        // Skip a setting that is overridden, even if it could not be honoured.
        if split(&text)
            .iter()
            .any(|word| subject(word) == subject(&option))
        {
            continue;
        }
        // Put it in front: of two options that mount(8) knows, the last one counts.
        let with = match text.is_empty() {
            true => option.clone(),
            false => format!("{option},{text}"),
        };
        match Options::parse(&with) {
            Ok(_) => text = with,
            // The more specific one wins.
            Err(OptionError::Contradiction { .. } | OptionError::Exceeds { .. }) => {}
            Err(error @ OptionError::CannotHonour { .. }) if protects(&setting.name) => {
                let mut failure = Failure::from(error);
                failure.message += &format!(" ({} asks for it)", setting.file.display());
                return Err(failure);
            }
            // The given options are wrong themselves, which the caller reports.
            Err(_) if Options::parse(&text).is_err() => {}
            Err(error) => {
                passed_over.push(format!("{}: passed over: {error}", setting.file.display()));
            }
        }
    }
    Ok((text, passed_over))
}

/// The settings of all files that exist.
fn read() -> Vec<Setting> {
    let mut files = vec![PathBuf::from(FILE)];
    if let Ok(entries) = std::fs::read_dir(FOLDER) {
        let mut more: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|ending| ending == "conf"))
            .collect();
        more.sort();
        files.append(&mut more);
    }
    let mut settings = Vec::new();
    for file in files {
        if let Ok(text) = std::fs::read(&file) {
            parse(&String::from_utf8_lossy(&text), &file, &mut settings);
        }
    }
    settings
}

/// The options of a mount: `given`, with those of the files added.
pub(crate) fn apply(host: &str, dir: &Path, given: &str) -> Result<(String, Vec<String>), Failure> {
    complete(&read(), host, &dir.to_string_lossy(), given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = r#"
# of every NFS mount
[ NFSMount_Global_Options ]
    Nfsvers=4        # not here
    Defaultproto=tcp
    rsize=32k
    Timeo=100
    Rw=True
[ Server "Srv.Example" ]
  Timeo=200
  Background=True
  Ac=False
[MountPoint "/srv/data"]
Timeo=300
ro=True
[ Unknown "x" ]
soft=True
"#;

    fn settings(texts: &[&str]) -> Vec<Setting> {
        let mut all = Vec::new();
        for text in texts {
            parse(text, Path::new("/etc/f"), &mut all);
        }
        all
    }

    fn completed(host: &str, dir: &str, given: &str) -> (Options, Vec<String>) {
        let (text, said) = complete(&settings(&[EXAMPLE]), host, dir, given).unwrap();
        (Options::parse(&text).unwrap(), said)
    }

    #[test]
    fn the_nearer_wins() {
        let parsed = |text: &str| Options::parse(text).unwrap();
        let (options, said) = completed("other", "/mnt", "");
        assert_eq!(options, parsed("rsize=32K,timeo=100"));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("/etc/f: passed over: option 'nfsvers=4' cannot be honoured"));
        let (options, _) = completed("srv.example", "/mnt", "");
        assert_eq!(options, parsed("rsize=32K,timeo=200,bg,noac"));
        let (options, _) = completed("srv.example", "/srv/data", "fg");
        assert_eq!(options, parsed("rsize=32K,timeo=300,noac,ro"));
        let (options, _) = completed("srv.example", "/srv/data", "rw,timeo=7,actimeo=5");
        assert_eq!(options, parsed("rsize=32K,timeo=7,bg,actimeo=5"));
    }

    #[test]
    fn a_later_file_replaces() {
        let texts = [
            "[NFSMount_Global_Options]\nretry=1",
            "[nfsmount_global_options]\nretry=2",
        ];
        let (text, _) = complete(&settings(&texts), "h", "/m", "").unwrap();
        assert_eq!(text, "retry=2");
    }

    #[test]
    fn security_is_not_passed_over() {
        let text = "[NFSMount_Global_Options]\nSec=none";
        let failure = complete(&settings(&[text]), "h", "/m", "").unwrap_err();
        assert!(failure.message.contains("sec=none"), "{failure}");
        assert!(
            failure.message.ends_with("(/etc/f asks for it)"),
            "{failure}"
        );
        assert!(complete(&settings(&[text]), "h", "/m", "sloppy").is_err());
        let text = "[NFSMount_Global_Options]\nSec=none\nSloppy=True";
        assert!(complete(&settings(&[text]), "h", "/m", "").is_err());
        let text = "[NFSMount_Global_Options]\nSec=none\nXprtsec=tls\nNfsvers=4\nProto=tcp";
        let given = "sec=sys,xprtsec=none,vers=3,rdma";
        let done = complete(&settings(&[text]), "h", "/m", given).unwrap();
        assert_eq!(done, (given.to_owned(), vec![]), "the nearer one counts");
        let text = "[NFSMount_Global_Options]\nSec=none\n[Server \"h\"]\nSec=sys";
        assert!(complete(&settings(&[text]), "h", "/m", "").is_ok());
        assert!(complete(&settings(&[text]), "other", "/m", "").is_err());
        let text = "[NFSMount_Global_Options]\nSec=krb5p:sys";
        let done = complete(&settings(&[text]), "h", "/m", "").unwrap();
        assert_eq!(done.0, "sec=krb5p:sys");
    }

    proptest! {
        #[test]
        fn any_text_is_read(text: String, given: String) {
            let settings = settings(&[&text, &format!("[NFSMount_Global_Options]\n{text}")]);
            if let Ok((with, _)) = complete(&settings, "h", "/m", &given)
                && Options::parse(&given).is_ok()
            {
                prop_assert!(Options::parse(&with).is_ok());
            }
        }
    }
}
