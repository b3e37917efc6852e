//! Parsing of cargo's output and of licence files.

use crate::crates::{self, Crate, Id};
use crate::{licences, sbom, standard_library};

fn id(name: &str, version: &str) -> Id {
    Id {
        name: name.into(),
        version: version.into(),
    }
}

#[test]
fn the_tree_tells_who_depends_on_whom() {
    let tree =
        "0 a v1.0.0 (/src/a)\n1 b v0.2.0\n2 c v3.0.0+x\n1 c v3.0.0+x\n1 d v1.0.0\n2 b v0.2.0 (*)\n";
    let (root, edges) = crates::edges(tree).unwrap();
    assert_eq!(root, id("a", "1.0.0"));
    let on = |name: &str, version: &str| -> Vec<String> {
        edges[&id(name, version)]
            .iter()
            .map(|id| id.name.clone())
            .collect()
    };
    assert_eq!(on("a", "1.0.0"), ["b", "c", "d"]);
    // A repeated crate gets the dependencies from its first occurrence.
    assert_eq!(on("b", "0.2.0"), ["c"]);
    assert_eq!(on("c", "3.0.0+x"), [""; 0]);
    assert_eq!(on("d", "1.0.0"), ["b"]);
}

#[test]
fn a_tree_that_is_not_understood_is_an_error() {
    for tree in [
        "",
        "0 a\n",
        "0 a 1.0.0\n",
        "0 a v1.0.0\n2 b v1.0.0\n",
        "warning: x v1\n",
    ] {
        assert!(crates::edges(tree).is_err(), "{tree:?}");
    }
}

#[test]
fn checksums_are_those_of_the_registry() {
    let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\n\
                name = \"b\"\nversion = \"2.0.0\"\nsource = \"registry\"\nchecksum = \"00ff\"\n";
    let sums = crates::checksums(lock);
    assert_eq!(sums.len(), 1);
    assert_eq!(sums[&id("b", "2.0.0")], "00ff");
}

#[test]
fn old_licence_expressions_become_spdx() {
    assert_eq!(crates::expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
    assert_eq!(crates::expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
    assert_eq!(crates::expression("Zlib"), "Zlib");
}

/// A crate with the licence `licence` and without a file.
fn bare(licence: &str) -> Crate {
    Crate {
        id: id("bare", "1.0.0"),
        licence: licence.into(),
        authors: vec!["A. Author".into()],
        repository: None,
        dir: "/".into(),
        checksum: Some("00".into()),
        depends_on: Default::default(),
    }
}

#[test]
fn a_crate_without_a_text_gets_the_standard_one_or_fails_the_build() {
    let text = licences::standard_text(&bare("Apache-2.0 OR MIT")).unwrap();
    assert!(text.contains("Copyright (c) A. Author") && text.contains("free of charge"));
    let error = licences::standard_text(&bare("ISC")).unwrap_err();
    assert!(error.contains("bare 1.0.0 is under ISC"), "{error}");
}

#[test]
fn times_are_those_of_the_calendar() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_735_689_599, "2024-12-31T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(sbom::timestamp(seconds), text);
    }
}

#[test]
fn the_standard_library_s_page_is_read() {
    let page = "<h3>in-tree</h3><h2 id=\"out-of-tree-dependencies\">x</h2>\
        <h3>📦 gimli-0.32.3</h3><p><b>License:</b> MIT OR Apache-2.0</p><pre>\n  &#60;a&#62; &#34;b&#34;\n</pre>\
        <h3>📦 windows-sys-0.60.2</h3><p><b>License:</b> MIT</p><pre>none of ours</pre>";
    let notices = standard_library::of_page(page).unwrap();
    assert_eq!(notices.len(), 1);
    assert!(notices[0].software.starts_with("gimli-0.32.3 "));
    assert_eq!(notices[0].licence, "MIT OR Apache-2.0");
    assert_eq!(notices[0].texts, ["  <a> \"b\""]);
    assert!(standard_library::of_page("<html></html>").is_none());
}

/// This workspace's own program: every crate of others has texts, and every text is in the file.
#[test]
fn the_program_s_crates_have_their_texts_and_components() {
    let linked = crates::linked("nfsrdma", "").unwrap();
    let notices = licences::of_crates(&linked).unwrap();
    let others = linked.crates.values().filter(|found| !found.is_ours());
    assert_eq!(notices.len(), others.count());
    assert!(notices.len() > 40);
    let document = licences::document(&linked, &notices);
    for notice in &notices {
        assert!(
            document.contains(&format!("\n{}  [", notice.software)),
            "{}",
            notice.software
        );
        let longest = notice.texts.iter().map(String::len).max();
        assert!(longest >= Some(licences::SHORTEST), "{}", notice.software);
    }
    let bom: serde_json::Value =
        serde_json::from_str(&sbom::document(&linked, "1.95.0").unwrap()).unwrap();
    // It also has our own crates, the program itself as the subject, and the standard library.
    assert_eq!(
        bom["components"].as_array().unwrap().len(),
        linked.crates.len()
    );
    assert_eq!(bom["metadata"]["component"]["name"], "nfsrdma");
    let refs: Vec<&str> = bom["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|d| d["ref"].as_str())
        .collect();
    for dependency in bom["dependencies"].as_array().unwrap() {
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(refs.contains(&on.as_str().unwrap()), "{on}");
        }
    }
}
