"""The trees, the users' processes on both, and running a sequence of calls by them."""

import multiprocessing
import os
import shutil
import time
import traceback
from collections import Counter
from dataclasses import dataclass

import accepted
import kernel
import observe
from calls import LOOKING, Call, Place
from generate import USERS, Known
from kernel import libc
from observe import Tree, errno_name
from stands import Ground, Watch
from worker import Worker

CHECK = 250
"""After so many calls whole trees are compared."""
PATIENCE = 60
"""Seconds after which a call counts as hanging."""


@dataclass
class Difference:
    """A field that has two values: `errno`, `value`, `data`, `state` (one side has it and the other an error), a key of a
    state, or `names`."""

    call: str
    field: str
    mount: str
    local: str
    observed: bool = False
    """Whether another user than the caller saw it."""
    kind: str = ""
    """The type of the object, if it is a state."""
    where: str = ""
    may_hide: bool = False
    """Whether hidden names may have come and gone since the trees were begun."""
    removed: bool = False
    """Whether a path of the call begins in a directory that was removed."""
    succeeded: bool = False
    """Whether the call succeeded on the local file system."""

    def signature(self):
        """The text that differences of one kind share."""
        short = lambda text: text if len(text) < 20 and not any(map(str.isdigit, text)) else "..."
        named = self.field in ("errno", "state", "contents", "type")
        values = f" {short(self.mount)} instead of {short(self.local)}" if named else ""
        return f"{self.call} {self.field}{values}{', seen by another user' if self.observed else ''}"

    def harmless(self):
        """Whether the trees are alike nevertheless: the call failed on both sides, or only looks at objects."""
        if self.field == "errno" and self.call not in LOOKING:
            return self.mount != "OK" and self.local != "OK"
        if self.field == "state":  # One user cannot see it, but others can.
            return "EACCES" in (self.mount, self.local)
        return self.field == "contents" or (self.field in ("errno", "value", "data") and self.call in LOOKING)


def of_states(call, mount, local, **more):
    """The differences of two states."""
    if ("type" in mount) != ("type" in local):
        whole = lambda state: state.get("state") or f"a {state['type']}"
        return [Difference(call, "state", whole(mount), whole(local), **more)]
    kind, value = local.get("type", ""), lambda state, key: str(state.get(key, "nothing"))
    found = [(key, value(mount, key), value(local, key)) for key in {**mount, **local}]
    return [Difference(call, key, a, b, kind=kind, **more) for key, a, b in found if a != b]


def of_replies(step, mount, local, observed=False):
    """All fields in which two replies to `step` differ."""
    call, found = step.call.name, []
    compare = lambda field, a, b: found.append(Difference(call, field, str(a), str(b), observed)) if a != b else None
    compare("errno", errno_name(mount.errno), errno_name(local.errno))
    states = list(zip(mount.states, local.states))
    if mount.errno == local.errno:
        compare("value", mount.value, local.value)
        if isinstance(mount.data, dict):
            states.insert(0, (mount.data, local.data))
        else:
            compare("data", mount.data, local.data)
    for pair in states:
        found += of_states(call, *pair, observed=observed)
    return found


def of_trees(call, mount, local):
    found, gone = [], {"state": "not there"}
    for name in sorted({**mount.nodes, **local.nodes}):
        found += of_states(call, mount.nodes.get(name, gone), local.nodes.get(name, gone), where=repr(name))
    return found


class Stand(Ground):
    """The trees: an export, its mount, and a directory beside the export. The path of that is as long as the mount's, so that
    paths reach their length limit at the same names."""

    def __init__(self, directory, options, words):
        super().__init__("differential", directory)
        self.local = self.base / "loc"
        self.local.mkdir(0o755)
        self.server_checks = "permissions=server" in options.split(",")
        # An ACL with one user beside owner, group and others.
        acl = kernel.acl([(tag, 7, 10001 if tag == 2 else kernel.NO_ID) for tag in (1, 2, 4, 0x10, 0x20)])
        path, name = os.fsencode(self.local), observe.ACLS[True]
        self.acls = kernel.found(libc.setxattr, path, name, acl, len(acl), 0) is not None
        if self.acls:
            libc.removexattr(path, name)
        self.serve(*words)
        # Each hidden name that stays, and not one a minute (`accepted.leaves_hidden_name`).
        self.mounted = self.mount("mnt", options, RUST_LOG="info,nfsrdma_fs::fs::hidden=debug")

    def log_since(self, read):
        """The lines of the client's log after `read` bytes, and where they end."""
        log = self.log(self.mounted)
        if not log.exists():
            return [], read
        with log.open("rb") as file:
            file.seek(read)
            text = file.read(1 << 20)
        return text.decode(errors="replace").splitlines(), read + len(text)


class Hand:
    """The process of one user on one tree."""

    def __init__(self, user):
        self.connection, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.connection.close()
                Worker(*USERS[user], theirs).serve()
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        theirs.close()

    def ask(self, *request):
        self.connection.send(request)
        return self.connection.recv()


class Session:
    def __init__(self, stand, users):
        self.stand, self.number, self.log_read, self.calls = stand, 0, 0, 0
        self.mount, self.local = ([Hand(user) for user in range(users)] for _ in range(2))
        self.accepted, self.made, self.good = Counter(), Counter(), Counter()
        """How often a row accepted a difference; how often each call was made, and succeeded."""
        self.may_hide = self.lost = False
        """Whether a name was removed from a file that may be open, since the trees were begun; whether permission was lost at
        some time: the log reports it later."""
        self.watch = Watch(PATIENCE, stand.keep_logs)
        self.note = self.watch.note

    def both(self, user, *request):
        for hands in (self.mount, self.local):
            hands[user].connection.send(request)
        return self.mount[user].connection.recv(), self.local[user].connection.recv()

    def begin(self, mount, local):
        self.note("the beginning")
        for hands, root in ((self.mount, mount), (self.local, local)):
            for hand in hands:
                hand.ask("begin", root, hands is self.mount, self.stand.server_checks)

    def run(self, source):
        """Makes the calls of `source`, a function of what is known, in a new directory of both trees, until it has no more or
        the trees differ. Returns the steps and the differences, each with the number of calls made until then."""
        self.number += 1
        name = f"e{self.number}"
        # The root is two levels down, so that a link may lead out of it, but not out of the mount.
        roots = [base / name / "t" for base in (self.stand.mounted, self.stand.local)]
        for root in roots:
            root.mkdir(parents=True)
            root.chmod(0o777)
        self.begin(*roots)
        self.may_hide, known, steps, found, end = False, Known(), [], [], False
        while not end:
            step, differences = source(known), []
            end = step is None
            if step:
                self.may_hide |= known.may_hide()
                made, differences = self.step(step, name)
                known.note(step, made)
                steps.append(step)
            diverged = any(not difference.harmless() for difference in differences)
            if not diverged and (end or len(steps) % CHECK == 0):
                trees = self.trees(name, steps[-1] if steps else None)
                differences, diverged = differences + trees, bool(trees)
            found += [(len(steps), difference) for difference in differences]
            end |= diverged
        self.begin("", "")
        return steps, found + [(len(steps), difference) for difference in self.clean(name)]

    def step(self, step, name):
        """Makes one call on both trees. Returns the local result, and the differences."""
        self.note(step)
        self.calls += 1
        call = step.call
        if accepted.refusable(call, self.stand.server_checks):
            mount = self.mount[step.user].ask("do", call)
            hidden = lambda: Tree(self.stand.export / name).only_hidden
            if row := accepted.refused(call, mount, hidden):
                return mount, self.after_refusal(row, step, mount)
            local = self.local[step.user].ask("do", call)
        else:
            mount, local = self.both(step.user, "do", call)
        self.made[call.name] += 1
        self.good[call.name] += local.errno == 0
        found = of_replies(step, mount, local)
        if call.name == "fchdir" and mount.errno != local.errno:
            # One worker is in the directory and the other one is not: "the ACL of a removed directory".
            self.both(step.user, "do", Call("chdir", place=Place("/", "")))
        if (places := step.observed()) and step.observer < len(self.mount):
            found += of_replies(step, *self.both(step.observer, "observe", places, step.contents), observed=True)
        for difference in found:
            difference.removed, difference.succeeded = local.removed, local.errno == 0
        return local, self.not_accepted(step, found)

    def after_refusal(self, row, step, mount):
        self.accepted[row.name] += 1
        self.lost |= mount.lost
        if mount.refused is not None:
            # The data stays in the kernel's cache until the file is next opened, or until the mount notifies the kernel, which
            # nobody waits for. Those of other users are told of it, too, as where the kernel has written the data back.
            file = os.open(f"/proc/{self.mount[step.user].pid}/fd/{mount.refused}", os.O_RDONLY)
            ino = os.fstat(file).st_ino
            os.close(file)
            for hand in self.mount:
                hand.ask("sync", ino)
        if not row.changes_nothing:
            return []
        # It is not made on the local file system, and must have had no effect here.
        local = self.local[step.user].ask("look", step.call)
        local.errno, local.value, local.data = mount.errno, mount.value, mount.data
        return self.not_accepted(step, of_replies(step, mount, local))

    def not_accepted(self, step, found):
        rest = []
        for difference in found:
            difference.may_hide = self.may_hide
            row = accepted.LEFT_NAME if self.counts_left_names(difference) else None
            row = row or (accepted.tolerated(step, difference, self.stand.server_checks) if step else None)
            if row:
                self.accepted[row] += 1
            else:
                rest.append(difference)
        return rest

    def counts_left_names(self, difference):
        """Whether the mount shows no more links than those of hidden names that, by the client's log, could not be removed;
        these are ordinary names from then on."""
        if difference.field != "nlink" or not (difference.mount.isdigit() and difference.local.isdigit()):
            return False
        more = int(difference.mount) - int(difference.local)
        return 0 < more <= sum(map(accepted.leaves_hidden_name, self.stand.log_since(self.log_read)[0]))

    def trees(self, name, last):
        """Compares whole trees: the mount's with the local one, and then with the exported directory."""
        self.note("comparing trees")
        local = Tree(self.stand.local / name)
        found = of_trees("tree", Tree(self.stand.mounted / name), local)
        found = found or of_trees("server's tree", Tree(self.stand.export / name, hidden_links=True), local)
        return self.not_accepted(last, found)

    def clean(self, name):
        """Removes both trees. All files are closed, so no hidden name may be left."""
        self.note("removing the trees")
        export, found = self.stand.export / name, []
        differs = lambda field, mount: found.append(Difference("end", field, mount, ""))
        # A FUSE file system learns of a close later.
        limit = time.monotonic() + 5
        while (left := Tree(export).hidden) and time.monotonic() < limit:
            time.sleep(0.002)
        said, self.log_read = self.stand.log_since(self.log_read)
        if left and left <= sum(map(accepted.leaves_hidden_name, said)):
            self.accepted[accepted.LEFT_NAME] += 1
        elif left:
            differs("hidden names are left", f"{left}; the log: {[line for line in said if 'unlinked' in line]}")
        for line in said:
            if ("panicked" in line or "ERROR" in line) and not (self.lost and accepted.refused_data(line)):
                differs("the client's log", line)
                break
        errors = []

        def failed(_, path, error):
            # A hidden name may go by itself meanwhile.
            if not isinstance(error[1], FileNotFoundError) and not os.path.basename(path).startswith(".nfs"):
                errors.append(f"{path}: {error[1]}")

        for base in (self.stand.mounted, self.stand.local):
            shutil.rmtree(base / name, onerror=failed)
        if errors or any((base / name).exists() for base in (self.stand.mounted, self.stand.local)):
            differs("the tree cannot be removed", f"{errors}; {Tree(export).nodes}")
            shutil.rmtree(export, ignore_errors=True)
        return found

    def again(self, steps, signature):
        """The steps until a difference with this signature; None if there is none."""
        rest = iter(steps)
        steps, found = self.run(lambda _: next(rest, None))
        return next((steps[:at] for at, difference in found if difference.signature() == signature), None)

    def shrink(self, steps, signature, seconds):
        """Looks for a shorter sequence of calls that has a difference with the same signature."""
        end = time.monotonic() + seconds
        best = self.again(steps, signature)
        size = len(best) if best else 0
        while size and time.monotonic() < end:
            size, at, before = -(-size // 2), 0, len(best)
            while at < len(best) and time.monotonic() < end:
                shorter = self.again(best[:at] + best[at + size :], signature)
                best, at = (shorter, at) if shorter else (best, at + size)
            if size == 1 and len(best) == before:
                break
        return best
