"""Imported first by scripts that need pytest: goes on in the system's Python where this one has no pytest.

That happens where another Python comes first in PATH than the one that the system's package is for.
"""

import importlib.util
import os
import sys
from pathlib import Path

SYSTEM = "/usr/bin/python3"

# Nothing is left in the tree, by this process or by those that it starts.
sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

if importlib.util.find_spec("pytest") is None:
    if sys.executable == SYSTEM or not Path("/usr/lib/python3/dist-packages/pytest").exists():
        sys.exit("pytest is missing: apt install python3-pytest")
    os.execv(SYSTEM, [SYSTEM, "-B", *sys.argv])
