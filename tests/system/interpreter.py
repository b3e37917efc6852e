"""Scripts that need pytest import this first. If this Python has no pytest, it restarts the script with the system's
Python.

That is necessary where PATH has another Python before the one of the system's package.
"""

import importlib.util
import os
import sys
from pathlib import Path

SYSTEM = "/usr/bin/python3"

# Leave no files in the source tree, neither from this process nor from those that it starts.
sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

if importlib.util.find_spec("pytest") is None:
    if sys.executable == SYSTEM or not Path("/usr/lib/python3/dist-packages/pytest").exists():
        sys.exit("pytest is missing: apt install python3-pytest")
    os.execv(SYSTEM, [SYSTEM, "-B", *sys.argv])
