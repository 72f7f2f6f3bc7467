"""Which run of the kernel this is.

The store keeps expiries on a clock that starts again with the machine, so it must know whether the numbers that it finds
were written during this boot.
"""

from __future__ import annotations

from ...errors import Unsupported

BOOT_ID = "/proc/sys/kernel/random/boot_id"
OFFSETS = "/proc/self/timens_offsets"


def boot_id(boot_id_file: str = BOOT_ID, offsets_file: str = OFFSETS) -> str:
    """The identity of the clock that this process reads: the same for all processes that may compare its readings.

    Raises Unsupported where the system does not tell.
    """
    boot = _read(boot_id_file).strip()
    if not boot:
        raise Unsupported(
            f"this system does not tell which boot it runs ({boot_id_file} cannot be read), so leases in an SQLite file could "
            "not be told from those of an earlier boot; nothing was written. Use redis:// or memory://"
        )
    # A process in a time namespace of its own reads a shifted clock, which is another clock as far as leases go.
    for line in _read(offsets_file).splitlines():
        clock, *offset = line.split()
        if clock == "boottime" and any(int(number) for number in offset):
            return f"{boot}+{':'.join(offset)}"
    return boot


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""
