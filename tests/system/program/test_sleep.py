"""What systemd's hook (packaging/sleep) has the mounts do before and after the machine sleeps."""

import contextlib
import os
import time

from program.support import *  # noqa: F403
from program.wire import Relay

TIMEO = 60
"""The default, in seconds."""


class Forgetful(Relay):
    """Forgets its connections when it is told to, without a word; others can be made."""

    forgotten = 0

    def forget(self):
        self.forgotten = len(self.peers)

    def pump(self, source, sink, kept):
        number = len(self.peers)
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if number > self.forgotten:
                    sink.sendall(piece)


def test_what_was_written_is_at_the_server_before_the_machine_sleeps():
    with Server() as server:
        server.mount_well()
        with open(server.mnt / "draft", "w") as draft:
            draft.write("words")
            draft.flush()
            expect(nfsrdma("sleep", "pre"), 0)
            assert (server.export / "draft").read_text() == "words"
            draft.write(" more")
        assert (server.export / "draft").read_text() == "words more"


def test_a_connection_that_was_forgotten_costs_no_time_out_after_the_sleep():
    with Server() as server, Forgetful(server.port) as relay:
        (server.export / "file").write_text("text")
        relayed = server.options("nosharecache").replace(f"port={server.port},", f"port={relay.port},", 1)
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", relayed), 0)
        assert (server.mnt / "file").read_text() == "text"
        relay.forget()
        before = len(relay.peers)
        # One call that is under way, and one that is made later.
        early = Call(os.statvfs, server.mnt)
        begin = time.monotonic()
        expect(nfsrdma("sleep", "post"), 0)
        (server.export / "later").write_text("text")
        assert (server.mnt / "later").read_text() == "text"
        early.end()
        assert time.monotonic() - begin < TIMEO / 2
        assert len(relay.peers) > before


def test_the_machine_sleeps_without_a_server_that_is_silent():
    with Server() as server:
        server.mount_well()
        # A program of its own has the file: our children would close it, and wait for the server.
        script = "import os, sys; os.write(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), b'words'); print(flush=True); input()"
        words = [sys.executable, "-c", script, server.mnt / "draft"]
        writer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with writer:
            assert writer.stdout.readline() == b"\n"
            server.pause()
            asker = subprocess.Popen(["stat", server.mnt / "other"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            begin = time.monotonic()
            said = nfsrdma("sleep", "pre")
            assert time.monotonic() - begin < 20
            expect(said, 0, f"{server.mnt}: ", " are not at the server yet, and are written after the sleep")
            # By now that program has waited for more than ten seconds.
            expect(nfsrdma("sleep", "pre"), 0, f"'nfsrdma umount -f {server.mnt}' ends that")
            server.child.send_signal(signal.SIGCONT)
            expect(nfsrdma("sleep", "post"), 0)
            writer.communicate(b"\n", timeout=LIMIT)
            asker.wait(LIMIT)
        assert (server.export / "draft").read_text() == "words"


def test_a_mount_whose_process_is_frozen_holds_nobody_up():
    with Server() as server, Relay(server.port) as relay:
        relayed = server.options().replace(f"port={server.port},", f"port={relay.port},", 1)
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", relayed), 0)
        before = len(relay.peers)
        begin = time.monotonic()
        with asleep(*servers_of(server.mnt)):
            expect(nfsrdma("sleep", "pre"), 0, f"{server.mnt}: its process does not answer")
            expect(nfsrdma("sleep", "post"), 0)
        assert time.monotonic() - begin < 10
        # It does what it was asked for meanwhile.
        until(lambda: len(relay.peers) > before, "a new connection")
