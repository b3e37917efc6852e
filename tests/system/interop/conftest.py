"""What tests of this suite stand on."""

import pytest

from interop.guest import Guest
from interop.host import Knfsd


@pytest.fixture
def guest(failed):
    """A booted guest."""
    with Guest() as guest:
        yield guest
        if failed():
            guest.show_console()


@pytest.fixture
def knfsd(failed):
    """A guest whose knfsd serves over siw, reachable from the host."""
    with Knfsd() as server:
        yield server
        if failed():
            server.guest.show_console()
