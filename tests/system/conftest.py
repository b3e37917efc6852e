"""Options, signals and output of all suites."""

import signal
import sys

import pytest
from _pytest.assertion import util

# Leave no files in the source tree.
sys.dont_write_bytecode = True
# Rewrite assertions in the shared modules, too.
pytest.register_assert_rewrite("suites", "program", "reliability", "interop")

FAILED = pytest.StashKey[bool]()
status = None
"""The exit status of an interrupted run."""


class Terminated(KeyboardInterrupt):
    """SIGTERM. Like an interrupt, it ends the run and unwinds it, so that mounts, guests and directories are removed."""


def terminated(*_):
    # Only once, because the unwinding must not be interrupted.
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise Terminated


def pytest_addoption(parser):
    group = parser.getgroup("nfsrdma")
    group.addoption("--kills", type=int, default=40, metavar="N",
                    help="reliability: how often test_server_killed kills the server (40)")  # fmt: skip
    group.addoption("--files", type=int, default=10000, metavar="N",
                    help="reliability: how many files test_open_files opens (10000)")  # fmt: skip
    group.addoption("--callers", type=int, default=2000, metavar="N",
                    help="reliability: how many threads test_more_callers_than_buffers has (2000)")  # fmt: skip


def pytest_configure():
    signal.signal(signal.SIGTERM, terminated)
    # A shell makes its background jobs ignore these signals, and all programs started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_keyboard_interrupt(excinfo):
    global status
    # pytest also ends a run by an interrupt after an error of collection.
    number = {Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(excinfo.type)
    status = number and 128 + number


def pytest_sessionfinish(session):
    # The status that a shell would report; pytest's own would be 2.
    session.exitstatus = status or session.exitstatus


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call":
        item.stash[FAILED] = report.failed


LONG = 10_000
"""From this length on, texts and files' contents that differ are not compared line by line."""


def in_brief(left, right):
    same = next((at for at, pair in enumerate(zip(left, right)) if pair[0] != pair[1]), min(len(left), len(right)))
    return f"{len(left)} == {len(right)} of {type(left).__name__}: they differ at {same}, {left[same:][:40]!r} and {right[same:][:40]!r}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol():
    """Explains in brief how files' contents differ.

    pytest searches them for differing lines with difflib, which does not end within hours for some megabytes. It asks all
    plugins for an explanation, and so can be kept from that only here.
    """
    explain = util._reprcompare

    def briefly(op, left, right):
        if op == "==" and type(left) is type(right) in (bytes, str) and max(len(left), len(right)) >= LONG:
            return in_brief(left, right)
        return explain(op, left, right)

    util._reprcompare = explain and briefly
    yield
    util._reprcompare = explain


def pytest_report_teststatus(report):
    """One line for each test: its time, and what it recorded by `record_property("result", ...)`."""
    if report.when == "call" and not report.skipped:
        word = f"{report.outcome.upper()} ({report.duration:.1f} s)"
        result = dict(report.user_properties).get("result")
        if result and report.passed:
            word += f" {result}"
        return report.outcome, "." if report.passed else "F", word
    return None


def pytest_terminal_summary(config):
    writer = config.get_terminal_writer()
    if not writer.hasmarkup:
        # In a log, the reasons of failed and skipped tests are not cut.
        writer.fullwidth = 200


@pytest.fixture
def failed(request):
    """A function that tells a fixture at its end whether the test failed."""
    return lambda: request.node.stash.get(FAILED, True)
