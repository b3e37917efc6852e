//! `fstab`: translates a line of fstab(5) or /proc/mounts of the kernel's NFS client.

use crate::cli::FstabArgs;
use crate::failure::{Exit, Failure};
use crate::mount::fstab_line::{Line, unescaped};
use crate::options::mount_source::MountSource;
use crate::options::{OptionError, Options, split};
use crate::output::{self, Reader, without_number};
use std::io::BufRead;

/// The line to use, and what is to be said about it.
#[derive(Debug, PartialEq, Eq)]
struct Translated {
    line: String,
    notes: Vec<String>,
}

/// What only /proc/mounts shows, of this moment.
const SHOWN: [&str; 8] = [
    "addr",
    "mountaddr",
    "namlen",
    "bsize",
    "seclabel",
    "user_id",
    "group_id",
    "max_read",
];

fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

fn translate(text: &str) -> Result<Translated, Failure> {
    let line = Line::parse(text).ok_or_else(|| {
        Failure::usage(format!(
            "'{text}' is not a line of fstab: write its fields, SERVER:/EXPORT DIR nfs OPTIONS"
        ))
    })?;
    if !matches!(line.kind, "nfs" | "nfs4" | "nfsrdma" | "fuse.nfsrdma") {
        return Err(Failure::usage(format!(
            "the type {} is not one of NFS: give a line of the type nfs",
            line.kind
        )));
    }
    MountSource::parse(&unescaped(line.source))?;
    let mut notes = Vec::new();
    if line.kind == "nfs4" {
        notes.push("nfs4 is left out: NFS version 3 is spoken".to_owned());
    }
    let words = split(line.options);
    let value = |name: &str| {
        words
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    // /proc/mounts shows what was found out at the time.
    let of_kernel = value("addr").is_some();
    let over_tcp = words.iter().any(|word| {
        matches!(name_of(word), "tcp" | "udp")
            || word.starts_with("proto=tcp")
            || word.starts_with("proto=udp")
    });
    let mut kept: Vec<String> = Vec::new();
    for word in &words {
        let name = name_of(word);
        let shown = SHOWN.contains(&name) || (of_kernel && name == "mountport");
        if name == "defaults" || (shown && value("mountaddr") == value("addr")) {
            continue;
        }
        if name == "port" && over_tcp {
            notes.push(format!("'{word}' is left out: it is a port for TCP"));
            continue;
        }
        match Options::parse(word) {
            // Quoted, if it was.
            Ok(_) if word.contains(',') => kept.push(match word.split_once('=') {
                Some((name, value)) => format!("{name}=\"{value}\""),
                None => word.clone(),
            }),
            Ok(_) => kept.push(word.clone()),
            Err(error @ OptionError::CannotHonour { .. }) if matches!(name, "sec" | "xprtsec") => {
                return Err(error.into());
            }
            Err(error @ (OptionError::CannotHonour { .. } | OptionError::Unknown { .. })) => {
                notes.push(format!("'{word}' is left out: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    // systemd takes only types that it knows for those of network file systems.
    if !kept.iter().any(|word| word == "_netdev") {
        kept.push("_netdev".to_owned());
    }
    let options = kept.join(",");
    Options::parse(&options)?;
    Ok(Translated {
        line: format!("{}  {}  nfsrdma  {options}  0  0", line.source, line.dir),
        notes,
    })
}

/// Whether a line of the file is to be translated.
fn is_of_nfs(text: &str) -> bool {
    Line::parse(text).is_some_and(|line| matches!(line.kind, "nfs" | "nfs4"))
}

/// Runs `fstab`.
pub(crate) fn run(args: &FstabArgs) -> Result<(), Failure> {
    let words: Vec<String> = args
        .line
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if words != ["-"] {
        return show(translate(&words.join(" "))?).map(|_| ());
    }
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| {
            let why = without_number(&error);
            Failure::new(
                Exit::System,
                format!("cannot read standard input: {why}; give the line as an argument"),
            )
        })?;
        let translated = match is_of_nfs(&line) {
            true => translate(&line)?,
            false => Translated {
                line,
                notes: Vec::new(),
            },
        };
        if show(translated)? == Reader::Gone {
            break;
        }
    }
    Ok(())
}

fn show(translated: Translated) -> Result<Reader, Failure> {
    for note in translated.notes {
        output::message(format_args!("# {note}"));
    }
    output::result(format!("{}\n", translated.line).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(text: &str) -> String {
        translate(text)
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .line
    }

    #[test]
    fn lines_of_fstab() {
        assert_eq!(
            line("srv:/x  /mnt nfs rdma,port=20049,hard,vers=3,_netdev 0 0"),
            "srv:/x  /mnt  nfsrdma  rdma,port=20049,hard,vers=3,_netdev  0  0"
        );
        assert_eq!(
            line("srv:/x /mnt nfs"),
            "srv:/x  /mnt  nfsrdma  _netdev  0  0"
        );
        assert_eq!(
            line("srv:/a\\040b /mnt\\040c nfs defaults,ro 0 0"),
            "srv:/a\\040b  /mnt\\040c  nfsrdma  ro,_netdev  0  0"
        );
        assert_eq!(
            line("mount -t nfs -o vers=3,proto=rdma srv:/x /mnt"),
            "srv:/x  /mnt  nfsrdma  vers=3,proto=rdma,_netdev  0  0"
        );
    }

    #[test]
    fn a_line_of_proc_mounts() {
        assert_eq!(
            line(
                "10.0.0.1:/x /mnt nfs rw,relatime,vers=3,rsize=1048576,wsize=1048576,namlen=255,\
                 hard,proto=rdma,port=20049,timeo=600,retrans=2,sec=sys,mountaddr=10.0.0.1,\
                 mountvers=3,mountport=20048,mountproto=tcp,local_lock=all,addr=10.0.0.1 0 0"
            ),
            "10.0.0.1:/x  /mnt  nfsrdma  rw,relatime,vers=3,rsize=1048576,wsize=1048576,hard,\
             proto=rdma,port=20049,timeo=600,retrans=2,sec=sys,mountvers=3,mountproto=tcp,\
             local_lock=all,_netdev  0  0"
        );
    }

    #[test]
    fn what_is_left_out_is_said() {
        let translated =
            translate("srv:/x /mnt nfs4 vers=4.2,proto=tcp,port=2049,fsc,bg 0 0").unwrap();
        assert_eq!(translated.line, "srv:/x  /mnt  nfsrdma  bg,_netdev  0  0");
        for word in ["nfs4", "'vers=4.2'", "'proto=tcp'", "'port=2049'", "'fsc'"] {
            let said = translated.notes.iter().any(|note| note.starts_with(word));
            assert!(said, "{word}: {:?}", translated.notes);
        }
    }

    #[test]
    fn what_cannot_be_translated() {
        let said = |text: &str| translate(text).unwrap_err().message;
        assert!(said("srv:/x /mnt nfs sec=krb5p").contains("sec=krb5p"));
        assert!(said("srv:/x /mnt nfs xprtsec=mtls").contains("TLS"));
        assert!(said("/dev/sda1 / ext4 defaults 0 1").contains("the type ext4"));
        assert!(said("srv:/x").contains("write its fields"));
        assert!(said("# srv:/x /mnt nfs").contains("write its fields"));
        assert!(said("srv:x /mnt nfs").contains("begin with a slash"));
        assert!(said("srv:/x /mnt nfs timeo=x").contains("timeo=x"));
    }

    proptest! {
        #[test]
        fn any_line_is_answered(text: String) {
            let _ = translate(&text);
        }

        #[test]
        fn a_translation_is_stable(options in "(ro|bg|rdma|proto=rdma|addr=1.2.3.4|namlen=255|_netdev|soft|vers=3)(,(nosuid|noatime|nolock|timeo=7)){0,4}") {
            if let Ok(first) = translate(&format!("srv:/x /mnt nfs {options} 0 0")) {
                prop_assert_eq!(&line(&first.line), &first.line);
            }
        }
    }
}
