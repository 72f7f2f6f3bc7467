"""The end of the interpreter: all threads are told first, waited for together, and then what they used is put away."""

from __future__ import annotations

import time

import pytest

from interlock.runtime import at_exit
from interlock.runtime.registry import WeakRegistry


class Work:
    """A thread that ends after a while."""

    def __init__(self, said: list[str], name: str, takes: float) -> None:
        self.said, self.name, self.takes = said, name, takes
        self.patience = -1.0

    def stop(self) -> None:
        self.said.append(f"stop {self.name}")

    def join(self, patience: float) -> None:
        self.patience = patience
        time.sleep(min(patience, self.takes))
        self.said.append(f"join {self.name}")


class Thing:
    """Something that was forgotten."""

    def __init__(self, said: list[str], fails: bool) -> None:
        self.said, self.fails = said, fails

    def rest(self, within: float) -> None:
        assert 0.0 <= within <= at_exit.AT_REST
        self.said.append("rest")
        if self.fails:
            raise OSError("intended")


def test_threads_end_together_before_anything_is_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_exit, "_working", WeakRegistry())
    monkeypatch.setattr(at_exit, "_restful", WeakRegistry())
    monkeypatch.setattr(at_exit, "AT_EXIT", 0.2)
    said: list[str] = []
    things = [Thing(said, True), Thing(said, False)]
    for thing in things:
        at_exit.rest_at_exit(thing)
    first, second, third = Work(said, "a", 0.05), Work(said, "b", 9.0), Work(said, "c", 9.0)
    for work in (first, second, third):
        at_exit.stop_at_exit(work)
    at_exit._end()
    assert said == ["stop a", "stop b", "stop c", "join a", "join b", "join c", "rest", "rest"]
    assert second.patience <= 0.15, "what the first took is gone"
    assert third.patience == 0.0, "they are waited for together"
