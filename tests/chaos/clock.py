"""Wall clocks that jump, one for each node. See skew.c."""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("skew.c")


def build(directory: Path) -> Path:
    """Compile the shim. Raises with the compiler's words if that cannot be done."""
    shim = directory / "skew.so"
    subprocess.run(["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", shim, SOURCE], check=True)
    return shim


class Clock:
    """The wall clock of one node."""

    def __init__(self, shim: Path, file: Path) -> None:
        file.write_bytes(struct.pack("q", 0))
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(shim), "CHAOS_CLOCK": str(file)}

        self.off = 0.0  # seconds

    def set(self, seconds: float) -> None:
        """From now on it is so many seconds off."""
        self.off = seconds
        self._page[:] = struct.pack("q", round(seconds * 1e9))
