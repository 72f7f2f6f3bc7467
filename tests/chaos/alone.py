"""One run in a process, and a network, of its own: `python -m tests.chaos.alone PLAN HISTORY`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .__main__ import one_run
from .controller import Plan
from .journal import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    given = json.loads(sys.argv[1])
    one_run(Plan(**{**given, "kinds": tuple(given["kinds"])}), Path(sys.argv[2]))
