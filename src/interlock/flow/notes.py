"""What must be said when something stays in the store: on the caller's error, or in the log.

Rules of the file: nothing here raises. A user's log filter or handler may, and no lease may be lost for that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import NotAcquired, Unavailable

NOTHING_LEFT = "Nothing is left behind"


def tell_left(error: BaseException, name: str, ttl: float, failure: BaseException) -> None:
    """Say on `error` that something stays in the store, because of a clean-up that ended with `failure`."""
    said = f"'{name}' may stay locked for up to {ttl:g} s"
    if not any(said in text for text in (str(error), *getattr(error, "__notes__", ()))):
        tell(error, f"{said}: the clean-up failed ({failure})")


def tell(error: BaseException, text: str) -> None:
    """Say on `error` what its caller should know of."""
    if isinstance(error, NotAcquired):
        error.args = (str(error.args[0]).replace(f"{NOTHING_LEFT}; try", "Try"),)
    if isinstance(error, Unavailable):
        error.tell(text)
    else:
        error.add_note(f"interlock: {text}")


def left_behind(name: str, ttl: float, failure: BaseException) -> None:
    """Something may stay in the store, and no error of a caller's can say so."""
    log(
        "warning",
        "'%s' may stay locked for up to %g s: what is of no use there could not be given back (%s)",
        name,
        ttl,
        failure,
        extra={"event": "left_behind", "lock": name, "seconds": ttl},
    )


def log(level: str, message: str, *args: object, **more: Any) -> None:
    """Say it."""
    import logging  # lazily: most keepers never say anything

    with suppress(Exception):
        getattr(logging.getLogger("interlock"), level)(message, *args, **more)
