"""The store's clock, as far as a client can tell.

It orders a line: those who wait are served in the order of their arrival, on the store's clock. It dates nothing: a grant is
dated on our own clock (`Announced.at`), because the store's clock may be set at any moment.

Rules of the file: pure. Every moment is an argument.
"""

from __future__ import annotations


class StoreClock:
    """How far the clock of one store is ahead of ours."""

    __slots__ = ("known", "offset")

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset
        self.known = False  # the store has told its time at least once; before that the offset is a guess

    def guess(self, offset: float) -> None:
        """Another guess. It counts until the store has told its time."""
        if not self.known:
            self.offset = offset

    def heard(self, sent_at: float, at: float, now: float) -> None:
        """The store's clock read `at` at some moment between `sent_at` and `now`.

        The offset changes no more than it must. Clients compare their offsets with each other, so a steady one orders best.
        """
        self.offset = min(max(self.offset, at - now), at - sent_at)
        self.known = True

    def there(self, moment: float) -> float:
        """A moment of our clock, on the store's."""
        return moment + self.offset
