"""Those that are to be told of something: known weakly, so that nobody lives for that."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """Others may come and go, in other threads, while some are told. (A WeakSet that is walked then raises RuntimeError.)"""

    def __init__(self) -> None:
        self._members: WeakValueDictionary[int, T] = WeakValueDictionary()

    def add(self, one: T) -> None:
        """From now on it is told. Once more is as good as once."""
        self._members[id(one)] = one

    def present(self) -> list[T]:
        """All that are there at this moment: the references are copied in one step of the interpreter."""
        return [one for reference in self._members.valuerefs() if (one := reference()) is not None]
