"""Names that another mount has removed, made or replaced: what the kernel wants checked is asked of the server."""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil

import pytest

from program.support import *  # noqa: F403

AT_FDCWD, RENAME_NOREPLACE = -100, 1


@contextlib.contextmanager
def two(options, *words):
    """A server and its two mounts."""
    with Server(*words) as server:
        server.mount_well(options)
        other = server.base / "other"
        other.mkdir()
        expect(server.mount(options, at=other), 0)
        yield server.mnt, other


def exclusive(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def made_by(here):
    """The calls that make a name which must not exist."""
    return {
        "exclusive": exclusive,
        "fifo": os.mkfifo,
        "link": lambda path: os.link(here / "file", path),
        "mkdir": os.mkdir,
        "symlink": lambda path: os.symlink("file", path),
    }


def knows(path):
    """Twice, because a reply that shows a change of the directory is not kept."""
    assert os.path.lexists(path) and os.path.lexists(path)


def remove(path):
    (os.rmdir if path.is_dir() and not path.is_symlink() else os.unlink)(path)


OPTIONS = ["", "actimeo=3600", "lookupcache=positive", "lookupcache=none", "noac", "acdirmin=60,noacl"]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_name_that_another_mount_removed_can_be_made_at_once(options):
    with two(options) as (here, there):
        (here / "file").write_text("")
        making = made_by(here)
        for before in making:
            for name, make in making.items():
                path = f"{name}-after-{before}"
                made_by(there)[before](there / path)
                knows(here / path)
                remove(there / path)
                make(here / path)


def no_replace(source, target):
    result = ctypes.CDLL(None, use_errno=True).renameat2(
        AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), RENAME_NOREPLACE
    )
    return ctypes.get_errno() if result else 0


@pytest.mark.parametrize("options", OPTIONS)
def test_names_are_made_in_a_directory_that_another_mount_replaced(options):
    """A walk comes to the directory that was. After ESTALE the kernel walks again, but not if a LOOKUP before the call says so."""
    with two(options) as (here, there):
        (here / "file").write_text("")
        making = {**made_by(here), "stat": lambda path: os.stat(path.with_name("there"))}
        for how, make in making.items():
            for deep in ("", "deep/deeper"):
                for name in (how, "new"):
                    (there / name / deep).mkdir(parents=True)
                knows(here / how / deep)
                (there / "new" / deep / "there").write_text("")
                (there / how).rename(there / "old")
                (there / "new").rename(there / how)
                shutil.rmtree(there / "old")
                make(here / how / deep / "made")
                assert how == "stat" or os.path.lexists(there / how / deep / "made"), how
                shutil.rmtree(there / how)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_rename_leads_over_what_is_there_and_not_over_what_was(options):
    with two(options) as (here, there):
        export = here.parent / "export"
        # What is a directory no more is replaced by a file, and the other way round.
        for old, new in ((os.mkdir, exclusive), (exclusive, os.mkdir)):
            for replaced in (False, True):
                name = f"{old.__name__}-{replaced}"
                old(there / name)
                knows(here / name)
                remove(there / name)
                if replaced:
                    new(there / name)
                new(here / "source")
                os.rename(here / "source", here / name)
                assert not os.path.lexists(here / "source") and os.path.lexists(export / name)
        # NFSv3 cannot promise that it replaces nothing. But that is what is said, not that the name exists.
        exclusive(there / "target")
        knows(here / "target")
        remove(there / "target")
        exclusive(here / "other-source")
        assert no_replace(here / "other-source", here / "target") == errno.EINVAL


def test_what_a_large_listing_has_shown_can_be_made_once_it_is_removed():
    with two("actimeo=3600") as (here, there):
        (here / "file").write_text("")
        (there / "d").mkdir()
        names = [f"name-{number}" for number in range(1000)]
        for name in names:
            exclusive(there / "d" / name)
        assert len(os.listdir(here / "d")) == len(names)
        for make in made_by(here).values():
            remove(there / "d" / names[-1])
            make(here / "d" / names.pop())


def test_what_is_beside_a_locked_file_can_be_made_once_it_is_removed():
    """A mailbox has both kinds of locks."""
    with two("actimeo=3600") as (here, there):
        (here / "file").write_text("")
        with open(here / "file", "r+b") as box:
            fcntl.lockf(box, fcntl.LOCK_EX)
            for name, make in made_by(here).items():
                exclusive(there / name)
                knows(here / name)
                remove(there / name)
                make(here / name)


def test_a_file_that_another_mount_replaced_is_opened_and_one_it_made_is_not_made_again():
    with two("actimeo=3600") as (here, there):
        exclusive(there / "replaced")
        assert not os.path.lexists(here / "made") and not os.path.lexists(here / "made")
        knows(here / "replaced")
        (there / "made").write_text("made there")
        (there / "new").write_text("new")
        os.rename(there / "new", there / "replaced")
        descriptor = os.open(here / "made", os.O_CREAT | os.O_RDWR)
        assert os.read(descriptor, 100) == b"made there"
        os.close(descriptor)
        with pytest.raises(FileExistsError):
            exclusive(here / "replaced")
        assert (here / "replaced").read_text() == "new"


def test_trees_deeper_than_a_path_are_long():
    """By descriptors of directories. No system call takes a path of 5,000 bytes."""
    with Server() as server:
        server.mount_well()
        at = os.open(server.mnt, os.O_PATH)
        try:
            for level in range(25):
                name = f"{level:0200}"
                os.mkdir(name, dir_fd=at)
                below = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = below
            with open(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at), "w") as file:
                file.write("deep")
            # After a restart the server has only the handles.
            server.stop()
            server.start()
            os.rename("file", "renamed", src_dir_fd=at, dst_dir_fd=at)
            with opening(".", os.O_RDONLY, dir_fd=at) as folder:
                assert os.listdir(folder) == ["renamed"]
        finally:
            os.close(at)

        def names(top):
            return [(folders, files) for _, folders, files, _ in os.fwalk(dir_fd=top)]

        # Another mount has nothing of it in memory, and the server's own side has it as well.
        expect(nfsrdma("umount", server.mnt), 0)
        server.mount_well()
        for top in (server.mnt, server.export):
            with opening(top, os.O_RDONLY) as folder:
                found = names(folder)
                assert len(found) == 26 and found[-1] == ([], ["renamed"]), found[-1]
        shutil.rmtree(server.mnt / f"{0:0200}")
        assert not os.listdir(server.export)
