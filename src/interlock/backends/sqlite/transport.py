"""How a call gets to the store: what each colour's transport must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Transport(Protocol):
    """How a call gets to the store, in one colour. Calls run one at a time, in the order of their handing over."""

    async def run(self, verb: Callable[..., T], args: tuple[Any, ...], within: float, clean_up: bool) -> T:
        """`verb(*args, budget)`. Raises what it raises, Shut if it never ran, Unavailable if it may still be running.

        A `clean_up` is not given up at a cancellation, and runs even when its time is over.
        """

    def pause(self, within: float) -> bool:
        """Wait until no call runs, and let none begin. False: one does not end, or it is this very thread's."""

    def go_on(self) -> None:
        """The end of a pause, in the same thread."""

    def retire(self, last: Callable[[], None], within: float) -> None:
        """The interpreter ends: run `last` if every call has ended by then. Other threads begin nothing after it.

        One that opened the file again would be frozen, perhaps inside the gate, and others would find it shut until the
        process is gone.
        """

    async def close(self, last: Callable[[], None]) -> None:
        """Run `last` after everything else, and stop. Leaves no thread behind.

        If some call does not end, or is this very thread's, `last` follows when it has ended.
        """
