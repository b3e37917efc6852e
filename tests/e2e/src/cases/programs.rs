//! Common programs.

use crate::place::Place;
use crate::sys::{need, program};
use crate::tree;
use anyhow::{Result, ensure};
use std::fs;

pub(crate) fn tar(place: &Place) -> Result<()> {
    need("tar")?;
    let dir = &place.mounted;
    tree::make(&dir.join("source"), place.scaled(500, 50), place.seed)?;
    program(dir, "tar", &["--format=posix", "-cf", "all.tar", "source"])?;
    fs::create_dir(dir.join("out"))?;
    program(dir, "tar", &["-xpf", "all.tar", "-C", "out"])?;
    tree::expect_same(
        &tree::walk(&dir.join("source"))?,
        &tree::walk(&dir.join("out/source"))?,
        "unpacked",
    )
}

pub(crate) fn sqlite(place: &Place) -> Result<()> {
    need("sqlite3")?;
    let dir = &place.mounted;
    let rows = place.scaled(20_000, 1_000);
    let fill = format!(
        "create table t(id integer primary key, name text, body blob); \
         with recursive n(i) as (select 1 union all select i+1 from n where i<{rows}) \
         insert into t select i, 'row '||i, randomblob(i%500) from n; create index by_name on t(name);"
    );
    for journal in ["delete", "truncate", "wal"] {
        let base = format!("{journal}.db");
        program(
            dir,
            "sqlite3",
            &[&base, &format!("pragma journal_mode={journal};"), &fill],
        )?;
        for round in 0..10 {
            program(
                dir,
                "sqlite3",
                &[
                    &base,
                    &format!(
                        "begin; update t set body=randomblob(300) where id%10={round}; delete from t where id%100={round}; commit;"
                    ),
                ],
            )?;
        }
        let answer = program(
            dir,
            "sqlite3",
            &[&base, "pragma integrity_check; select count(*) from t;"],
        )?;
        let expected = format!("ok\n{}", rows - rows / 10);
        ensure!(
            answer.trim() == expected,
            "{journal}: {answer:?} instead of {expected:?}"
        );
        if let Some(direct) = &place.direct
            && journal != "wal"
        {
            let answer = program(
                direct,
                "sqlite3",
                &["-readonly", &base, "pragma integrity_check;"],
            )?;
            ensure!(answer.trim() == "ok", "{journal} at the server: {answer}");
        }
    }
    Ok(())
}

pub(crate) fn git(place: &Place) -> Result<()> {
    need("git")?;
    let dir = &place.mounted;
    let origin = dir.join("origin");
    fs::create_dir(&origin)?;
    let who = [
        "-c",
        "user.name=e2e",
        "-c",
        "user.email=e2e@example.invalid",
    ];
    let git = |at: &std::path::Path, arguments: &[&str]| {
        program(at, "git", &[&who[..], arguments].concat())
    };
    git(&origin, &["init", "-q"])?;
    for round in 0..5 {
        tree::make(
            &origin.join(format!("part-{round}")),
            place.scaled(200, 20),
            place.seed + round,
        )?;
        git(&origin, &["add", "-A"])?;
        git(&origin, &["commit", "-qm", &format!("part {round}")])?;
    }
    git(dir, &["clone", "-q", "--no-hardlinks", "origin", "clone"])?;
    let clone = dir.join("clone");
    git(&clone, &["fsck", "--full", "--strict"])?;
    git(&clone, &["gc", "-q"])?;
    git(&clone, &["fsck", "--full"])?;
    let status = git(&clone, &["status", "--porcelain"])?;
    ensure!(status.is_empty(), "the clone differs: {status}");
    git(&clone, &["checkout", "-q", "HEAD~3"])?;
    git(&clone, &["checkout", "-q", "-"])?;
    let status = git(&clone, &["status", "--porcelain"])?;
    ensure!(status.is_empty(), "after checkouts: {status}");
    Ok(())
}

pub(crate) fn cargo(place: &Place) -> Result<()> {
    need("cargo")?;
    let dir = place.mounted.join("package");
    fs::create_dir_all(dir.join("src"))?;
    fs::write(
        dir.join("Cargo.toml"),
        "[package]\nname = \"e2e-package\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )?;
    let mut main = String::new();
    for n in 0..place.scaled(40, 5) {
        fs::write(
            dir.join(format!("src/part{n}.rs")),
            format!(
                "pub fn value() -> u64 {{ {n} }}\n#[cfg(test)] mod tests {{ #[test] fn it() {{ assert_eq!(super::value(), {n}); }} }}\n"
            ),
        )?;
        main += &format!("mod part{n};\n");
    }
    main += "fn main() { println!(\"{}\", part0::value() + part1::value()); }\n";
    fs::write(dir.join("src/main.rs"), main)?;
    let target = dir.join("target");
    let target = target.to_string_lossy();
    program(
        &dir,
        "cargo",
        &["build", "-q", "--offline", "--target-dir", &target],
    )?;
    program(
        &dir,
        "cargo",
        &["test", "-q", "--offline", "--target-dir", &target],
    )?;
    let said = program(&dir, "target/debug/e2e-package", &[])?;
    ensure!(said.trim() == "1", "the program said {said:?}");
    fs::write(dir.join("src/part1.rs"), "pub fn value() -> u64 { 41 }\n")?;
    program(
        &dir,
        "cargo",
        &["build", "-q", "--offline", "--target-dir", &target],
    )?;
    let said = program(&dir, "target/debug/e2e-package", &[])?;
    ensure!(
        said.trim() == "41",
        "after a change the program said {said:?}"
    );
    Ok(())
}
