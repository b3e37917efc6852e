"""The same file operations with each setting of the transport and of the caches, and whole programs with the default ones."""

import os
import shutil
import sys

import pytest

from program.support import *  # noqa: F403

CHECKS = ROOT / "tests/system/checks.py"
# Arguments of the responder, and mount options. Settings that do not meet are tried together.
SETTINGS = {
    "default": ("", ""),
    "inline-1024": ("--inline 1024", "inline=1024"),
    "inline-65536-crc-credits-64": ("--inline 65536 --crc --credits 64", "inline=65536,crc,credits=64"),
    "inline-mixed-one-credit-asked": ("--inline 4096", "inline=1024,credits=1"),
    "one-credit-server-limits": ("--credits 1 --rtmax 32768 --wtmax 16384", ""),
    "io-4k": ("", "rsize=4096,wsize=4096"),
    "reduced": ("", "write_chunk=reduced"),
    "reduced-small": ("--inline 1024", "write_chunk=reduced,inline=1024,wsize=65536,rsize=65536"),
    "small-crc-one": ("--inline 1024 --credits 1 --crc", "inline=1024,rsize=4096,wsize=4096,crc"),
    "no-remote-invalidate-nconnect": ("--send-invalidate off", "nconnect=4"),
    "one-worker": ("", "workers=1,nconnect=2"),
    "noac": ("", "noac,lookupcache=none"),
    "sync-small-cache": ("", "sync,cache=16M"),
    "ipv6-mount-by-rdma": ("--ipv6", "mountproto=rdma"),
}


def checks(*words):
    sizes = {"CHECK_ENTRIES": "300", "CHECK_BIG_MIB": "4", "CHECK_DROP": "0"}
    result = run(sys.executable, "-B", CHECKS, *words, env={**os.environ, **sizes}, limit=5 * LIMIT)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting(setting):
    """System calls do what they should, and what they have written is at the server, byte for byte."""
    root()
    words, options = SETTINGS[setting]
    if "--ipv6" in words and not Path("/proc/net/if_inet6").read_text().strip():
        pytest.skip("no IPv6 here")
    with Server(*words.split(), host="[::1]" if "--ipv6" in words else "127.0.0.1") as server:
        own = f"port={server.port},mountport={server.port if 'mountproto=rdma' in options else server.mountport}"
        log = server.base / "client.log"
        mount = nfsrdma("mount", server.spec, server.mnt, "--log", log, "-o", f"{own},{options}".rstrip(","))
        expect(mount, 0)
        checks("run", server.mnt)
        checks("leave", server.mnt)
        wanted = checks("sum", server.export / "set")
        assert checks("sum", server.mnt / "set") == wanted, "what is read is not what is at the server"
        unmount(server.mnt)
        assert server.child.poll() is None, "the server died"
        said = log.read_text() + (server.base / "responder.log").read_text()
        assert "panicked" not in said and "ERROR" not in said, said


def done(folder, *words):
    """Runs a program in a directory. Returns what it printed."""
    if not shutil.which(words[0]) and not Path(words[0]).exists():
        pytest.skip(f"needs {words[0]}")
    result = run(*words, cwd=folder, limit=600)
    assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
    return result.stdout.strip()


def plant(folder, files):
    """Makes a tree with files of many sizes, links of both kinds, and modes."""
    for number in range(files):
        inner = folder / f"{number % 7}" / f"d{number % 31}"
        inner.mkdir(parents=True, exist_ok=True)
        file = inner / f"file-{number}"
        file.write_bytes(f"{folder.name} {number}\n".encode() * (number * number % 4001))
        file.chmod((0o644, 0o755, 0o600)[number % 3])
        if number % 10 == 0:
            (inner / f"link-{number}").symlink_to(file.name)
            (inner / f"hard-{number}").hardlink_to(file)


def by_tar(mnt, export):
    source = mnt / "source"
    plant(source, 400)
    done(mnt, "tar", "--format=posix", "-cf", "all.tar", "source")
    (mnt / "out").mkdir()
    done(mnt, "tar", "-xpf", "all.tar", "-C", "out")
    wanted = checks("sum", source)
    assert checks("sum", mnt / "out/source") == wanted == checks("sum", export / "out/source")
    done(mnt, "rm", "-rf", "out", "source")
    assert os.listdir(mnt) == os.listdir(export) == ["all.tar"]


def by_git(mnt, _):
    git = ("git", "-c", "user.name=program", "-c", "user.email=program@example.invalid", "-c", "safe.directory=*")
    origin, clone = mnt / "origin", mnt / "clone"
    origin.mkdir()
    done(origin, *git, "init", "-q")
    for part in "abcd":
        plant(origin / part, 40)
        done(origin, *git, "add", "-A")
        done(origin, *git, "commit", "-qm", part)
    done(mnt, *git, "clone", "-q", "--no-hardlinks", "origin", "clone")
    for words in ("fsck --full --strict", "gc -q", "fsck --full", "checkout -q HEAD~3", "checkout -q -"):
        done(clone, *git, *words.split())
        assert done(clone, *git, "status", "--porcelain") == "", f"the clone differs after git {words}"


def by_sqlite(mnt, export):
    rows = 5000
    fill = f"""create table t(id integer primary key, name text, body blob);
        with recursive n(i) as (select 1 union all select i+1 from n where i<{rows})
        insert into t select i, 'row '||i, randomblob(i%500) from n; create index by_name on t(name);"""
    for journal in ("delete", "truncate", "wal"):
        base = f"{journal}.db"
        done(mnt, "sqlite3", base, f"pragma journal_mode={journal};", fill)
        for turn in range(5):
            change = f"update t set body=randomblob(300) where id%10={turn}; delete from t where id%100={turn};"
            done(mnt, "sqlite3", base, f"begin; {change} commit;")
        check = "pragma integrity_check; select count(*) from t;"
        assert done(mnt, "sqlite3", base, check).split() == ["ok", str(rows - rows // 20)]
        assert journal == "wal" or done(export, "sqlite3", "-readonly", base, "pragma integrity_check;") == "ok"


def by_cargo(mnt, _):
    package = mnt / "package"
    (package / "src").mkdir(parents=True)
    (package / "Cargo.toml").write_text('[package]\nname = "built"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n')
    parts = range(20)
    for part in parts:
        (package / f"src/part{part}.rs").write_text(f"pub fn value() -> u64 {{ {part} }}\n")
    modules = "".join(f"mod part{part};\n" for part in parts)
    values = " + ".join(f"part{part}::value()" for part in parts)
    (package / "src/main.rs").write_text(f'{modules}fn main() {{ println!("{{}}", {values}); }}\n')
    build = ("cargo", "build", "-q", "--offline", "--target-dir", package / "target")
    done(package, *build)
    assert done(package, package / "target/debug/built") == str(sum(parts))
    (package / "src/part1.rs").write_text("pub fn value() -> u64 { 41 }\n")
    done(package, *build)
    assert done(package, package / "target/debug/built") == str(sum(parts) + 40), "after a change"


@pytest.mark.parametrize("program", [by_tar, by_git, by_sqlite, by_cargo], ids=lambda program: program.__name__[3:])
def test_whole_programs(mount, server, program):
    program(mount, server.export)
