"""Runs the commands that the documentation shows, exactly as they are written.

Each command in README.md, docs/ and so on is either run here, in namespaces of its own, or `ELSEWHERE` says where it is
tested and why not here.
"""

import fcntl
import re
import struct

import pytest

from program.support import *  # noqa: F403
from program.support import BIN

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "tests/responder/README.md"]
# How the line of a command begins.
COMMAND = re.compile(
    r"(sudo|nfsrdma|nfsrdma-responder|mount|umount|findmnt|cargo|rustup|cd|for|ln|done|podman|helm|kubectl|curl|objdump"
    r"|packaging/\S+|\.?/?tests/\S+|\./\S+|[A-Z_]+=\S+) "
)
# Commands that are not run here, and where they are run.
ELSEWHERE = {
    r"^\./packaging/quickstart$": "CI runs it with --exit",
    r"^(NFSRDMA_\w+=\S+ )*\./tests/(run|bench/run|bench/tables|requirements|clients/run|differential/run|external/run|system/\S+|soak/run)": "suites of their own",
    r"^(\w+=\S+ )?cargo (build|test|fmt|clippy|run) ?": "the suites build, test and check before",
    r"^rustup ": "needs the network; INSTALL.md's static build",
    r"^sudo (apt|dnf) ": "tests/packages/deb.sh and rpm.sh, in clean roots",
    r"^sudo systemctl ": "tests/packages/boot.sh, in a booted root",
    r"^(NFSRDMA_\w+=\S+ )*packaging/build-(deb|rpm|static)( --in-container)?$": "tests/packages/run",
    r"^sudo tar -C / -xf target/package/": "what build-static makes",
    r"^packaging/csi/build-image$": "needs an image of a registry",
    r"^helm ": "needs a cluster; tests/csi/manifests makes what it would install",
    r"^podman ": "tests/packages/podman.sh, where the engine has directories of its own",
    r"^cd tests/fuzz && ": "needs a nightly compiler, and ten minutes",
    r"^nfsrdma-responder /data=": "stays in the foreground: every case with a server starts one",
}
# Commands that run until they are interrupted, or for a minute: they have tests of their own.
LASTING = re.compile(r"(sudo )?nfsrdma (trace|profile|capture|top|metrics|bench)\b|--watch|\bmount -f ")
# Placeholders, and what is used for them.
MEANT = [
    ("OPTION,OPTION=VALUE,...", "ro,rsize=64K"),
    ("-o OPTIONS", "-o soft"),
    ("SERVER:/EXPORT", "server:/export"),
    ("SERVER", "server"),
    ("fstab LINE", "fstab 'server:/export /mnt nfs rdma 0 0'"),
    ("DIR", "/mnt"),
    ("> FILE", "> home/file"),
    ("-f FILE", "-f home/file"),
    ("--log FILE", "--log home/log"),
]


def documents():
    return [ROOT / name for name in DOCUMENTS] + sorted((ROOT / "docs").glob("*.md"))


def blocks():
    """(place, lines): blocks between ```sh and ```, and indented ones."""
    for path in documents():
        fence, block, begin = None, [], 0
        for number, line in enumerate([*path.read_text().splitlines(), "end"], 1):
            marker = line.startswith("```")
            taken = not marker and (fence == "sh" or (fence is None and line.startswith("    ")))
            if taken:
                begin = begin if block else number
                block.append(line.strip())
            elif block and (line or marker):
                yield f"{path.relative_to(ROOT)}:{begin}", block
                block = []
            if marker:
                fence = None if fence is not None else line[3:].strip()


def commands(block):
    """The commands of a block, without the comments behind them, or nothing if the block shows something else."""
    joined = re.sub(r"\\\n\s*", "", "\n".join(block))
    lines = [re.sub(r"\s{2,}(#\s)?[a-z#].*$", "", line).strip() for line in joined.splitlines()]
    lines = [line for line in lines if line]
    if not any(COMMAND.match(f"{line} ") for line in lines):
        return []
    return lines


def spans():
    """(place, command): the commands between backquotes in running text."""
    for path in documents():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.startswith(("    ", "```")):
                for span in re.findall(r"`(nfsrdma [^`]+)`", line):
                    yield f"{path.relative_to(ROOT)}:{number}", span


def fstab_lines():
    for path in [*documents(), ROOT / "packaging/examples/fstab"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fields = line.split()
            if len(fields) == 6 and fields[2] == "nfsrdma" and not line.startswith("#"):
                yield f"{path.relative_to(ROOT)}:{number}", fields


def elsewhere(line):
    return next((rule for rule in ELSEWHERE if re.search(rule, line)), None)


def test_documented_commands():
    if "NFSRDMA_EXAMPLES" not in os.environ:
        if Path("/usr/local/bin/nfsrdma").exists():
            pytest.skip("/usr/local/bin/nfsrdma exists already")
        enter = alone("--net", "--propagation", "private")
        run_inside(enter, "test_documented_commands", "NFSRDMA_EXAMPLES", 5 * LIMIT)
        return
    with Place() as place:
        Example(place).run_all()


class Example:
    """The machine that the documents assume: a host `server`, which exports /export and /scratch."""

    def __init__(self, place):
        self.base = place.base
        self.failed = []
        self.ran = 0
        # Mounts of others, copied into this namespace, do not belong to the examples.
        self.others = set(self.mounts())
        for name in ("home/mnt", "exports/export", "exports/scratch", "bin", "target"):
            (self.base / name).mkdir(parents=True)
        for name in ("export", "scratch"):
            (self.base / "exports" / name).chmod(0o777)
        (self.base / "target/release").symlink_to(BIN.folder)
        for name, text in (("hosts", "127.0.0.1 localhost server\n"), ("bin/sudo", '#!/bin/sh\nexec "$@"\n')):
            (self.base / name).write_text(text)
        (self.base / "bin/sudo").chmod(0o755)
        # Everything that is installed, mounted and written there is removed with this namespace.
        for number, point in enumerate(("/usr/sbin", "/usr/local/bin")):
            upper = self.base / f"over{number}"
            upper.mkdir()
            self.must("mount", "-t", "tmpfs", "none", upper)
            (upper / "upper").mkdir(), (upper / "work").mkdir()
            layers = f"lowerdir={point},upperdir={upper}/upper,workdir={upper}/work"
            if run("mount", "-t", "overlay", "none", "-o", layers, point).returncode != 0:
                pytest.skip("overlay mounts are not permitted here")
        for point in ("/mnt", "/srv"):
            if Path(point).is_dir():
                self.must("mount", "-t", "tmpfs", "none", point)
        self.must("mount", "--bind", self.base / "hosts", "/etc/hosts")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            # SIOCSIFFLAGS, IFF_UP (netdevice(7)).
            fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 1))

    def must(self, *words):
        result = run(*words)
        assert result.returncode == 0, f"{words}: {result.stderr}"

    def shell(self, script):
        path = f"{self.base}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path, "HOME": str(self.base / "home"), "LC_ALL": "C.UTF-8"}
        return run("bash", "-euc", script, env=environment, cwd=self.base)

    def try_(self, place, script):
        for word, meant in MEANT:
            script = script.replace(word, meant)
        result = self.shell(script)
        self.ran += 1
        if result.returncode != 0:
            self.failed.append(f"{place}: {script}: {result.stdout}{result.stderr}")

    @staticmethod
    def mounts():
        lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        return [fields[1] for fields in lines if fields[2] == "fuse.nfsrdma"]

    def without_mounts(self):
        for point in self.mounts():
            if point not in self.others:
                self.must(BIN / "nfsrdma", "umount", point)

    def with_mount(self):
        self.without_mounts()
        self.must(BIN / "nfsrdma", "mount", "server:/export", "/mnt")

    def run_all(self):
        exports = self.base / "exports"
        command = [BIN / "nfsrdma-responder", f"/export={exports}/export", f"/scratch={exports}/scratch"]
        # The ports at which clients look for them.
        command += ["--mount-port", "20048", "--portmap-port", "111"]
        child, _, _ = start_responder(command, self.base, 20049, 2049)
        try:
            self.blocks()
            self.spans()
            self.fstab()
        finally:
            self.without_mounts()
            child.kill()
            child.wait()
        assert not self.failed, "\n".join(self.failed)
        assert self.ran >= 20, f"only {self.ran} commands were found"

    def blocks(self):
        used = set()
        everything = list(blocks())
        # "From source" installs the program where the other commands expect it.
        everything.sort(key=lambda item: not any("/usr/local/bin/" in line for line in item[1]))
        for place, block in everything:
            here = []
            for line in commands(block):
                rule = elsewhere(line)
                used.add(rule)
                if rule is None and not LASTING.search(line):
                    here.append(line)
            if not here:
                continue
            if any("DIR" in line for line in here) and not any(" mount " in line for line in here):
                self.with_mount()
            else:
                self.without_mounts()
            self.try_(place, "\n".join(here))
        unused = set(ELSEWHERE) - used
        assert not unused, f"no document has {unused}"

    def spans(self):
        for place, span in spans():
            words = span.split()
            usage = self.shell(f"nfsrdma {words[1]} --help")
            if usage.returncode != 0:
                self.failed.append(f"{place}: {span}: {usage.stderr}")
                continue
            flags = [word for word in words[2:] if word.startswith("-")]
            for flag in flags:
                self.ran += 1
                letter = re.fullmatch(r"-([a-z])\1*", flag)
                shown = f"-{letter[1]}," if letter else flag
                if shown not in usage.stdout and f" {flag} " not in usage.stdout:
                    # After ';' or '|' the option belongs to another program.
                    if not re.search(r"[;|] .*" + re.escape(flag), span):
                        self.failed.append(f"{place}: {span}: nfsrdma {words[1]} has no {flag}")
            arguments = [word for word in words[2:] if not word.startswith("-")]
            if not arguments or "..." in span or "[" in span or LASTING.search(span):
                continue
            if words[1] in ("stats", "log", "umount"):
                self.with_mount()
            else:
                self.without_mounts()
            if "mountstats mountstats" in span:
                # `stats_read_by_mountstats_and_nfsiostat` tests the second half.
                span = span.split(";")[0]
            self.try_(place, span)

    def fstab(self):
        table = self.base / "fstab"
        for place, fields in fstab_lines():
            self.without_mounts()
            Path(fields[1]).mkdir(parents=True, exist_ok=True)
            table.write_text(" ".join(fields) + "\n")
            self.try_(place, f"mount -T {table} {fields[1]} && findmnt -t fuse.nfsrdma {fields[1]}")
