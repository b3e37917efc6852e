"""Fixtures for the tests of this suite."""

import pytest

from program.support import Place, Server, root
from program.users import A, B, C


@pytest.fixture
def place():
    """A directory with an empty mount point."""
    with Place() as place:
        yield place


@pytest.fixture
def server(request):
    """A place with a responder, whose further arguments are those of the mark `responder`."""
    marker = request.node.get_closest_marker("responder")
    with Server(*(marker.args if marker else ())) as server:
        yield server


@pytest.fixture
def mount(request, server):
    """The server, with its export mounted on its mount point; the parameter of the fixture is the mount options."""
    server.mount_well(getattr(request, "param", ""))
    return server.mnt


@pytest.fixture
def users():
    """Three users other than root, who share no group."""
    root()
    return A, B, C


@pytest.fixture(params=["resends", "older kernel"])
def kernels(request, monkeypatch):
    """The kernel as it is, and taken for one before Linux 6.9, which does not give unanswered requests again."""
    if request.param == "older kernel":
        monkeypatch.setenv("NFSRDMA_MASK", "resend")
