"""Those that are told at a fork and at the end: others come and go meanwhile."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakSet

import pytest

from interlock.runtime import forks
from interlock.runtime.registry import WeakRegistry


class One:
    """Somebody."""


def walked(crowd: WeakRegistry[One] | WeakSet[One]) -> set[int]:
    """Whom a walk finds while others come, between any two steps of the interpreter, as other threads may."""
    came: list[One] = []

    def come(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        frame.f_trace_opcodes = True
        if event == "opcode":
            came.append(One())
            crowd.add(came[-1])
        return come

    traced = sys.gettrace()
    sys.settrace(come)
    try:
        return {id(one) for one in (crowd.present() if isinstance(crowd, WeakRegistry) else list(crowd))}
    finally:
        sys.settrace(traced)
        assert came


def test_a_crowd_may_change_while_it_is_walked() -> None:
    stay = [One() for _ in range(20)]
    simple: WeakSet[One] = WeakSet(stay)
    with pytest.raises(RuntimeError):
        walked(simple)  # else this test shows nothing
    crowd: WeakRegistry[One] = WeakRegistry()
    for one in stay:
        crowd.add(one)
    assert {id(one) for one in stay} <= walked(crowd)


def test_nobody_lives_for_being_in_a_crowd() -> None:
    crowd: WeakRegistry[One] = WeakRegistry()
    one, other = One(), One()
    for somebody in (one, other, one):
        crowd.add(somebody)
    assert sorted(map(id, crowd.present())) == sorted((id(one), id(other)))
    del one, somebody
    gc.collect()
    assert crowd.present() == [other]


def test_whoever_comes_during_a_fork_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it could open a file in between, which the child would inherit."""
    crowd: WeakRegistry[forks.Guarded] = WeakRegistry()
    monkeypatch.setattr(forks, "_guarded", crowd)

    class Thing:
        def suspend(self, within: float) -> bool:
            return True

        def resume(self) -> None:
            """Nothing was put away."""

    thing = Thing()
    forks._before()
    try:
        thread = threading.Thread(target=forks.guard, args=(thing,))
        thread.start()
        thread.join(0.2)
        assert crowd.present() == []
    finally:
        forks._in_parent()
    thread.join(10)
    assert crowd.present() == [thing]
