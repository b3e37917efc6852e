//! Text from people and other programs: `-o` options, `server:/path`, lines of fstab(5) as mount(8)
//! passes them on, and the kernel's table of mounts.

use nfsrdma::cli::{self, Command};
use nfsrdma::options::mount_source::MountSource;
use nfsrdma::options::size::{parse_size, show_size};
use nfsrdma::options::{Options, show::Negotiated};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Parses each line in every way.
pub fn mount(bytes: &[u8]) {
    let lines = bytes.split(|&byte| byte == b'\n');
    for line in lines.take(8) {
        if let Ok(text) = std::str::from_utf8(line) {
            options(text);
            size(text);
        }
        spec(line);
        fstab(line);
    }
    for found in nfsrdma_mountinfo::parse(bytes) {
        assert!(!found.fstype.contains(' '));
    }
}

/// The text that shows accepted options is accepted, and shows the same again.
fn options(text: &str) {
    let parsed = match Options::parse(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let negotiated = Negotiated {
        rsize: parsed.client.rsize.unwrap_or(1 << 20),
        wsize: parsed.client.wsize.unwrap_or(1 << 20),
    };
    let shown = parsed.effective(negotiated);
    match Options::parse(&shown) {
        Ok(again) => {
            assert_eq!(again.effective(negotiated), shown, "of '{text}'");
            assert_eq!(again.dirty_limit(), parsed.dirty_limit(), "of '{text}'");
        }
        Err(error) => panic!("'{text}' is shown as '{shown}', which is refused: {error}"),
    }
}

fn size(text: &str) {
    if let Some(bytes) = parse_size(text) {
        assert_eq!(parse_size(&show_size(bytes)), Some(bytes));
    }
}

/// The source in /proc/mounts names the same export.
fn spec(bytes: &[u8]) {
    let Ok(spec) = MountSource::parse(OsStr::from_bytes(bytes)) else {
        return;
    };
    assert_eq!(spec.export.first(), Some(&b'/'));
    let source = spec.source();
    match MountSource::parse(OsStr::from_bytes(&source)) {
        Ok(again) => assert_eq!((again.host, again.export), (spec.host, spec.export)),
        Err(error) => panic!("{} names no export: {error}", source.escape_ascii()),
    }
}

/// The fields of a line of fstab without octal escapes, as mount(8) passes them to the helper.
fn fstab(line: &[u8]) {
    let fields: Vec<OsString> = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|field| !field.is_empty())
        .map(|field| OsString::from_vec(nfsrdma_mountinfo::unescape(field)))
        .collect();
    let [spec, dir, kind, words, ..] = &fields[..] else {
        return;
    };
    let helper = [b"/sbin/mount.", kind.as_bytes()].concat();
    let arguments = vec![
        OsString::from_vec(helper),
        spec.clone(),
        dir.clone(),
        "-o".into(),
        words.clone(),
    ];
    if let Ok(Command::Mount(found)) = cli::parse(arguments) {
        self::spec(found.spec.as_bytes());
        options(&found.options);
    }
}
