"""Servers with habits of their own, and connections that end: by tests/responder's options that imitate them."""

import json
import os
import shutil

from support import *  # noqa: F403


def connections(server):
    """The counters of the first connection slot."""
    (link,) = json.loads(stats(server, "--json"))["connections"]
    return link["counters"]


@case
def direct_writes_at_depth_keep_the_connection():
    if not shutil.which("fio"):
        raise Skip("needs fio")
    with Server() as server:
        server.mount_well()
        result = run(
            "fio", "--name=w", f"--filename={server.mnt}/data", "--direct=1", "--rw=randwrite", "--bs=16k",
            "--iodepth=32", "--ioengine=libaio", "--size=64m", "--io_size=1600m", "--norandommap=1",
            "--output-format=json",
            limit=300,
        )  # fmt: skip
        expect(result, 0)
        (job,) = json.loads(result.stdout)["jobs"]
        assert job["error"] == 0 and job["write"]["total_ios"] >= 100_000, job["write"]["total_ios"]
        counters = connections(server)
        assert (counters["connects"], counters["resends"]) == (1, 0), counters
