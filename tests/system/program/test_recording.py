"""The recorded terminal of README.md can be recorded again with the current program."""

import xml.dom.minidom

import pytest

from program.support import *  # noqa: F403
from program.support import BIN

# What appears one after the other, in docs/demo.svg and in a new recording.
SHOWN = [
    "nfsrdma mount nas:/export /mnt",
    "nas:/export mounted on /mnt: ",
    "film.mkv",
    "nfsrdma top",
    "last minute: nas:/export on /mnt",
    "no connection to the server, ",
    "connection to server nas",
    "no byte was lost",
    "nfsrdma umount /mnt",
]


def texts(path):
    """The lines of an animation, in the order in which they first appear."""
    lines = xml.dom.minidom.parse(str(path)).getElementsByTagName("text")
    return [" ".join(span.firstChild.data for span in line.getElementsByTagName("tspan")) for line in lines]


def check(path):
    lines, begin = texts(path), 0
    for part in SHOWN:
        found = [number for number in range(begin, len(lines)) if part in lines[number]]
        assert found, f"{path}: {part!r} is not shown after {lines[begin]!r}"
        begin = found[0]


def test_the_recording_can_be_made_again(place):
    check(ROOT / "docs/demo.svg")
    if shutil.disk_usage(place.base).free < 2 << 30:
        pytest.skip("it needs 2 GB for temporary files")
    if run(*alone("--net", "true")).returncode != 0:
        pytest.skip("a network namespace is not permitted")
    svg, cast = place.base / "demo.svg", place.base / "demo.cast"
    environment = {**os.environ, "NFSRDMA_BIN": str(BIN), "TMPDIR": str(place.base)}
    expect(run(ROOT / "docs/record", "--svg", svg, "--cast", cast, "--size", "500", env=environment, limit=5 * LIMIT), 0)
    check(svg)
    head, *events = (json.loads(line) for line in cast.read_text().splitlines())
    assert (head["version"], head["width"], head["height"]) == (2, 80, 24), head
    assert [text for _, kind, text in events if kind == "m"][0] == "the server is killed: SIGKILL"
