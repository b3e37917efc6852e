"""Fixtures for the tests of this suite."""

import pytest

from interop.guest import isolate
from interop.host import Knfsd


def pytest_configure(config):
    # Not to list the tests.
    if not config.option.collectonly:
        isolate()


@pytest.fixture
def knfsd(failed):
    """A guest whose knfsd serves over siw, reachable from the host."""
    with Knfsd() as server:
        yield server
        if failed():
            server.guest.show_console()
