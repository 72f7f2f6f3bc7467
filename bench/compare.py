"""Another revision beside the working tree: its source in a directory of its own, gone afterwards."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .runner import ROOT


@contextmanager
def worktree(revision: str, root: Path = ROOT) -> Iterator[Path]:
    """The source of a revision. Raises SystemExit when git does not know it."""
    with tempfile.TemporaryDirectory(prefix="interlock-bench-") as directory:
        place = Path(directory) / "tree"
        done = _git(root, "worktree", "add", "--quiet", "--detach", str(place), revision)
        if done.returncode:
            raise SystemExit(f"bench: {done.stderr.strip()}")
        try:
            if not (place / "src" / "interlock" / "__init__.py").exists():
                raise SystemExit(f"bench: {revision} has no src/interlock that can be imported")
            yield place / "src"
        finally:
            _git(root, "worktree", "remove", "--force", str(place))


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
