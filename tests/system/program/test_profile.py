"""`nfsrdma profile`: who loads the server, by user, process, procedure and path."""

import json
import subprocess
import sys

from program.support import *  # noqa: F403
from program.support import BIN, NOBODY

READER = """
import os, sys
while True:
    for name in os.listdir(sys.argv[1]):
        file = os.open(f"{sys.argv[1]}/{name}", os.O_RDONLY)
        os.pread(file, 4096, 0)
        os.close(file)
"""


def test_profile_tells_who_loads_the_server():
    root()
    with Server() as server:
        folder = server.export / "folder"
        folder.mkdir(mode=0o755)
        for name in ("first", "second"):
            (folder / name).write_bytes(b"x" * 4096)
        server.mount_well("actimeo=0,allow_other")
        words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-S", "-c", READER]
        with running(*words, server.mnt / "folder") as child:
            until(lambda: procedures(server)["GETATTR"]["calls"] > 50, "a load")
            result = nfsrdma("profile", "--json", "-d", "1", "-n", "2", server.mnt)
            expect(result, 0)
            intervals = [json.loads(line) for line in result.stdout.splitlines()]
            assert len(intervals) == 2
            last = intervals[-1]
            assert last["mount"] == str(server.mnt) and last["calls"] > 0 and last["time_ns"] > 0
            assert last["by"].keys() == {"user", "process", "operation", "path"}
            first = {what: shares[0] for what, shares in last["by"].items()}
            assert first["user"]["name"] == "nobody", last["by"]["user"]
            assert first["process"]["name"].split()[-1] == str(child.pid), last["by"]["process"]
            assert {"GETATTR"} <= {one["name"] for one in last["by"]["operation"]}
            assert any(one["name"].startswith("/folder") for one in last["by"]["path"]), last["by"]["path"]
            for table in ("user", "process", "operation"):
                assert sum(one["calls"] for one in last["by"][table]) == last["calls"], (table, last)
            text = nfsrdma("profile", "-d", "1", "-n", "1", "--by", "path,user", "--rows", "1", server.mnt)
            expect(text, 0, f"{server.mnt}: ", "calls/s", "PATH", "USER", "nobody")
            assert "PROCESS" not in text.stdout


def test_profile_ends_with_the_mount_and_refuses_others():
    with Server() as server:
        server.mount_well()
        expect(as_nobody(BIN / "nfsrdma", "profile", "-n", "1", server.mnt), 1, "only root and the user who mounted it may ask")
        expect(nfsrdma("profile", server.base), 1, "is not an nfsrdma mount")
        words = [BIN / "nfsrdma", "profile", "--json", "-d", "1", server.mnt]
        with running(*words, stdout=subprocess.PIPE, text=True) as child:
            assert json.loads(child.stdout.readline())["calls"] == 0
            expect(nfsrdma("umount", server.mnt), 0)
            child.stdout.read()
            assert child.wait(LIMIT) == 0
