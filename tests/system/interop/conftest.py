"""Fixtures for the tests of this suite."""

import pytest
from _pytest.runner import runtestprotocol

from interop.guest import Guest, GuestCrash
from interop.host import Knfsd

CRASH = pytest.StashKey[str]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    if call.excinfo and call.excinfo.errisinstance(GuestCrash):
        item.stash[CRASH] = str(call.excinfo.value)
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Like pytest's own, but a test whose emulated guest crashed runs once more, in a new guest."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if crash := item.stash.get(CRASH, None):
        print(f"  once more, since the emulated guest crashed: {crash}", flush=True)
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


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
