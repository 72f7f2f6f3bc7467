"""`python -m tests.rules --write` pins the public names as they are now."""

from __future__ import annotations

import sys

from .source import ROOT

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    from .signatures import public_lines
    from .test_names import PINNED

    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.rules --write   (pins the public names as they are now)")
    PINNED.write_text("\n".join(public_lines()) + "\n")
    print(f"{PINNED.name} has {len(public_lines())} names")
