"""Fixtures for the tests of this suite."""

import os

import pytest

from reliability.support import BIN, Setup


@pytest.fixture(scope="session", autouse=True)
def programs():
    """The directory of our programs, also for those that tests start."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")
    os.environ["NFSRDMA_BIN"] = str(BIN)


@pytest.fixture
def setup():
    """A responder, and a mount of its export."""
    with Setup() as setup:
        yield setup


@pytest.fixture
def kills(request):
    return request.config.getoption("--kills")


@pytest.fixture
def callers(request):
    return request.config.getoption("--callers")


@pytest.fixture
def files(request):
    return request.config.getoption("--files")
