//! Tests that the generated files include everything that the program defines.

use super::*;
use nfsrdma::cli::command;
use nfsrdma::options::table::{SECTIONS, Section};

fn file(name: &str) -> String {
    let found = files().unwrap().into_iter().find(|(file, _)| file == name);
    found.expect(name).1
}

/// Whether `text` has `word` with no letter or digit at either end.
fn has_word(text: &str, word: &str) -> bool {
    let plain = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    text.match_indices(word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        // The B of a font escape is not a letter of the word.
        let before = text[..at].trim_end_matches("\\fB").chars().next_back();
        plain(before) && plain(after)
    })
}

/// The tags of the entries of a page.
fn tags(page: &str) -> Vec<&str> {
    let mut lines = page.lines();
    let mut tags = Vec::new();
    while let Some(line) = lines.next() {
        if line == ".TP" {
            tags.extend(lines.next());
        }
    }
    tags
}

/// An option in nfsrdma(5).
struct Described {
    /// `name` or `name=value`, without placeholders.
    option: String,
    /// Whether the value, or a part of it, is a placeholder.
    is_pattern: bool,
}

/// The options of the entries of nfsrdma(5) from the section `from` to the section `to`.
fn described(from: &str, to: &str) -> Vec<Described> {
    let page = file("nfsrdma.5");
    let at = |title: &str| page.find(&format!(".SH {title}\n")).expect(title);
    let tags = tags(&page[at(from)..at(to)]);
    // A comma and a blank separate options; \fI begins a placeholder.
    let options = tags.iter().flat_map(|tag| tag.split(", "));
    let read = |option: &str| {
        let option = option.replace("\\fB", "").replace("\\fR", "");
        let (fixed, pattern) = option.split_once("\\fI").unwrap_or((&option, ""));
        Described {
            option: fixed.replace("\\-", "-"),
            is_pattern: !pattern.is_empty(),
        }
    };
    options.map(read).collect()
}

const FIRST: &str = "\"TRANSPORT OPTIONS\"";
const REFUSED: &str = "\"REFUSED OPTIONS\"";
const BEHIND: &str = "EXAMPLES";

#[test]
fn every_section_of_options_is_in_nfsrdma_5_once() {
    let page = include_str!("../man/nfsrdma.5");
    for section in SECTIONS {
        let directive = format!("\n.\\\" @options {}\n", section.title);
        assert_eq!(page.matches(&directive).count(), 1, "{directive}");
    }
}

/// The table of a section in docs/CONFIGURATION.md, without its heading.
fn rows_of(section: &Section) -> String {
    let with_defaults = section
        .entries
        .iter()
        .any(|entry| !entry.default.is_empty());
    let mut out = String::from(match with_defaults {
        true => "| Option | Default | Meaning |\n| --- | --- | --- |\n",
        false => "| Option | Meaning |\n| --- | --- |\n",
    });
    for entry in section.entries {
        let forms = entry.forms().map(|form| format!("`{form}`"));
        let forms = forms.collect::<Vec<_>>().join(", ").replace('|', "\\|");
        let default = match (with_defaults, entry.default) {
            (false, _) => String::new(),
            (true, "") => "| ".into(),
            (true, default) => format!("| {default} "),
        };
        let help = entry.help.replace("\n\n", " ");
        out += &format!("| {forms} {default}| {help} |\n");
    }
    out
}

/// The tables of docs/CONFIGURATION.md are made from the program's. `NFSRDMA_GOLDEN=write` writes
/// them again.
#[test]
fn the_tables_of_options_are_those_of_the_program() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONFIGURATION.md");
    let before = std::fs::read_to_string(&path).unwrap();
    let mut text = before.clone();
    for section in SECTIONS {
        let heading = format!("\n## {}\n", section.title);
        let begin = text.find(&heading).expect(&heading);
        let begin = begin + text[begin..].find("\n| Option |").expect(&heading) + 1;
        let end = begin
            + text[begin..]
                .find("|\n\n")
                .map_or(text.len() - begin, |at| at + 2);
        text.replace_range(begin..end, &rows_of(section));
    }
    if std::env::var("NFSRDMA_GOLDEN").is_ok_and(|how| how == "write") {
        std::fs::write(&path, &text).unwrap();
        return;
    }
    let other = before
        .lines()
        .zip(text.lines())
        .find(|(is, ought)| is != ought);
    assert!(
        before == text,
        "docs/CONFIGURATION.md is not as the program's options are; NFSRDMA_GOLDEN=write writes it: {other:?}"
    );
}

#[test]
fn what_nfsrdma_5_describes_is_taken_or_refused_as_it_says() {
    use nfsrdma::options::Options;
    for (from, to, taken) in [(FIRST, REFUSED, true), (REFUSED, BEHIND, false)] {
        let described = described(from, to);
        assert!(described.len() > 10);
        for entry in described.iter().filter(|entry| !entry.is_pattern) {
            let result = Options::parse(&entry.option);
            assert_eq!(result.is_ok(), taken, "{}: {result:?}", entry.option);
        }
    }
}

#[test]
fn every_command_and_flag_is_in_the_page() {
    let page = file("nfsrdma.8");
    let command = command();
    let subs: Vec<_> = pages::visible(&command).collect();
    assert!(subs.len() >= 4);
    for sub in subs {
        assert!(page.contains(&format!(".SS \"nfsrdma {}\"", roff::escape(sub.get_name()))));
        for arg in sub.get_arguments().filter(|arg| !arg.is_hide_set()) {
            if let Some(long) = arg.get_long().filter(|&long| long != "help") {
                let flag = format!("\\fB\\-\\-{}\\fR", roff::escape(long));
                assert!(page.contains(&flag), "{flag}");
            }
        }
    }
}

#[test]
fn nothing_is_left_to_fill_in() {
    for (name, text) in files().unwrap() {
        assert!(!text.contains(".\\\" @"), "{name}");
        assert!(!text.contains("@VERSION@"), "{name}");
    }
}

#[test]
fn every_shell_completes_every_command_and_option() {
    for (_, name) in completions::SHELLS {
        let script = file(name);
        for sub in pages::visible(&command()) {
            assert!(
                script.contains(sub.get_name()),
                "{name}: {}",
                sub.get_name()
            );
        }
        for word in ["nconnect=", "lookupcache=positive", "noac", "softerr"] {
            assert!(
                has_word(&script, word) || script.contains(&format!(" {word} ")),
                "{name}: {word}"
            );
        }
        // Refused options are not offered.
        assert!(!script.contains("xprtsec=tls"), "{name}");
    }
}

#[test]
fn what_is_completed_is_accepted() {
    use nfsrdma::options::Options;
    let words = reference::words();
    assert!(words.len() > 80);
    for word in words.iter().filter(|word| !word.ends_with('=')) {
        Options::parse(word).unwrap_or_else(|error| panic!("{word}: {error}"));
    }
}

/// The crates are not meant for the registry, only for packages, and have no home page or
/// repository that would be useful there.
#[test]
fn no_crate_is_published() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    let workspace = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let (_, members) = workspace.split_once("\nmembers = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.len() > 15);
    for member in members {
        let manifest = std::fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
        assert!(
            manifest.contains("\npublish = false\n"),
            "{member} could be published"
        );
    }
}

/// The packages in docs/INSTALL.md for Debian are those that the tests install, and the version of
/// Rust is the one that the crates demand.
#[test]
fn the_packages_to_build_with_are_named() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let (install, suites) = (read("docs/INSTALL.md"), read("tests/run"));
    let rows: Vec<&str> = install
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    let debian = |row: &str| {
        let line = rows
            .iter()
            .find(|line| line.starts_with(&format!("| {row} |")));
        line.expect(row).split('|').nth(2).unwrap()
    };
    let (_, wanted) = suites.split_once("\nverbs_build=(").unwrap();
    let (wanted, _) = wanted.split_once(')').unwrap();
    let everything = debian("everything").to_string() + debian("the feature `verbs`");
    for pair in wanted.split_whitespace() {
        let (_, package) = pair.split_once(':').unwrap();
        assert!(has_word(&everything, package), "{package} in {everything}");
    }
    assert!(has_word(debian("the rpm"), "rpm") && has_word(debian("the deb"), "dpkg-dev"));
    let version = env!("CARGO_PKG_RUST_VERSION");
    assert!(install.contains(&format!("**Rust {version} or newer**")));
    assert!(install.contains(&format!("rustup toolchain install {version}.0 ")));
}

/// Hosts and addresses that must be present are placeholders that cannot exist: `.invalid` and
/// `.example` names.
#[test]
fn no_address_is_invented() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for name in [
        "Cargo.toml",
        "debian/changelog",
        "rpm/nfsrdma.spec",
        "../SECURITY.md",
    ] {
        let text = std::fs::read_to_string(root.join(name)).unwrap();
        for word in text.split(|c: char| c.is_whitespace() || "<>\"{}`".contains(c)) {
            if let Some((_, host)) = word.split_once('@').filter(|(_, host)| host.contains('.')) {
                assert!(host.ends_with(".invalid"), "{name}: {word}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 3);
}

/// What builds the packages looks for what it needs before it begins, and names the remedy.
#[test]
fn on_a_bare_machine_the_scripts_name_the_remedy() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    let bare = std::env::temp_dir().join(format!("nfsrdma-bare.{}", std::process::id()));
    std::fs::create_dir(&bare).unwrap();
    for tool in ["sh", "sed", "grep", "head", "dirname", "uname"] {
        std::os::unix::fs::symlink(format!("/usr/bin/{tool}"), bare.join(tool)).unwrap();
    }
    let said = |script: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(root.join("packaging").join(script));
        let output = command.args(arguments).env_clear().env("PATH", &bare);
        let output = output.output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let lacking = [
        said("build-deb", &[]),
        said("build-rpm", &[]),
        said("build-static", &[]),
        said("build-programs", &[]),
        said("build-deb", &["--in-container"]),
        said("build-deb", &["--in-contaner"]),
        said("build-rpm", &["--help"]),
    ];
    std::fs::remove_dir_all(&bare).unwrap();
    let expected = [
        "dpkg-architecture is missing: ",
        "rpmbuild is missing: ",
        "rustc is missing: ",
        "cargo is missing: ",
        "neither podman nor docker is installed: install the package podman",
        "packaging/build-deb --in-container  needs podman or docker only",
        "Its argument",
    ];
    for (said, expected) in lacking.iter().zip(expected) {
        assert!(said.contains(expected), "{expected} in {said}");
        assert!(!said.contains("not found"), "{said}");
    }
    let remedy = |said: &String| said.contains("docs/INSTALL.md") && said.lines().count() == 1;
    assert!(lacking[..4].iter().all(remedy), "{lacking:?}");
}
