"""What tests of this suite stand on."""

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
    """The same, with a responder; its further arguments are those of the mark `responder`."""
    marker = request.node.get_closest_marker("responder")
    with Server(*(marker.args if marker else ())) as server:
        yield server


@pytest.fixture
def mount(request, server):
    """The export of `server` is mounted on its mount point, with the options that are the fixture's parameter."""
    server.mount_well(getattr(request, "param", ""))
    return server.mnt


@pytest.fixture
def users():
    """Three who are not root, and have nothing to do with each other."""
    root()
    return A, B, C
