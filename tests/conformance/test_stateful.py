"""Every store answers as `memory` does: the same operations, drawn by Hypothesis, on both, answer by answer.

Fences of two stores are different numbers; what must agree is which grants share one and that new ones are higher. Time is
made to pass by shortening a lease to a few milliseconds and waiting it out.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from interlock.backends.port import Backend
from interlock.backends.registry import open_backend
from interlock.core.claim import Claim, Entry, Gone, Granted, Refused, Renewal
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.blocking import BlockingRuntime, run

NAMES = ["order:1", "order:1:fence", "étage ünïcode", "*"]
LONG = 1000.0


class Subject:
    """A store under comparison: its answers, with fences replaced by their rank among those it gave for the name."""

    def __init__(self, url: str, colour: str) -> None:
        self.step: Callable[[Coroutine[Any, Any, Any]], Any]
        if colour == "asyncio":
            self._runner = asyncio.Runner()
            self.step = self._runner.run
            runtime: Any = AsyncioRuntime()
        else:
            self._runner = None
            self.step = run
            runtime = BlockingRuntime()
        self.backend: Backend = open_backend(url, runtime)
        self.fences: dict[str, list[int]] = {}

    def rank(self, name: str, fence: int | None) -> int | None:
        seen = self.fences.setdefault(name, [])
        if fence in seen or not fence:
            return seen.index(fence) if fence else fence
        assert not seen or fence > seen[-1], f"{fence} after {seen[-1]}"
        assert fence < 2**53
        seen.append(fence)
        return len(seen) - 1

    def plain(self, name: str, answer: Any) -> Any:
        match answer:
            case Granted(fence, ttl):
                return "granted", self.rank(name, fence), ttl
            case Refused(after, owner):
                return "refused", round(after, -2), owner
            case Gone(taken):
                return "gone", taken
            case Entry(name, held, owner, remaining, fence):
                return name, held, owner, round(remaining, -2), self.rank(name, fence)
        return answer

    def close(self) -> None:
        self.step(self.backend.close())
        if self._runner is not None:
            self._runner.close()


def machine(url: Callable[[], str], colour: str) -> type[RuleBasedStateMachine]:
    class Comparison(RuleBasedStateMachine):
        @initialize()
        def open(self) -> None:
            run_id = uuid.uuid4().hex  # names of its own in each run: the store is not emptied in between
            self.names = [f"{run_id}:{name}" for name in NAMES]
            self.tokens = [f"{uuid.uuid4().hex}~host:{n}" for n in range(3)]
            self.subjects = [Subject(f"memory://{run_id}", "blocking"), Subject(url(), colour)]

        def ask(self, name: str, question: Callable[[Backend], Coroutine[Any, Any, Any]]) -> Any:
            spec, store = (s.plain(name, s.step(question(s.backend))) for s in self.subjects)
            assert store == spec
            return spec

        @rule(n=st.integers(0, 3), t=st.integers(0, 2), ttl=st.sampled_from([LONG, 2 * LONG]))
        def claim(self, n: int, t: int, ttl: float) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.claim(Claim(name, self.tokens[t], ttl), 5.0))

        @rule(n=st.integers(0, 3), t=st.integers(0, 2), ttl=st.sampled_from([LONG, 3 * LONG]))
        def extend(self, n: int, t: int, ttl: float) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.extend(name, self.tokens[t], ttl, 5.0))

        @rule(
            batch=st.lists(
                st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([LONG, 4 * LONG]), st.booleans()), max_size=6
            )
        )
        def renew(self, batch: list[tuple[int, int, float, bool]]) -> None:
            """A batch of holders and strangers, some of them twice, some with a fence that is to be raised."""
            answers = []
            for subject in self.subjects:
                tops = {n: max(subject.fences.get(self.names[n]) or [0]) for n in range(4)}
                leases = [
                    Renewal(self.names[n], self.tokens[t], ttl, tops[n] + (3000 if raised else 0))
                    for n, t, ttl, raised in batch
                ]
                given = subject.step(subject.backend.renew(leases, 5.0))
                assert len(given) == len(leases)
                answers.append([subject.plain(lease.name, answer) for lease, answer in zip(leases, given, strict=True)])
            assert answers[0] == answers[1]

        @rule(n=st.integers(0, 3), t=st.integers(0, 2))
        def raise_fence(self, n: int, t: int) -> None:
            name = self.names[n]
            answers = []
            for subject in self.subjects:
                top = max(subject.fences.get(name) or [0])
                answer = subject.step(subject.backend.extend(name, self.tokens[t], LONG, 5.0, fence=top + 5000))
                assert isinstance(answer, Gone) or answer.fence == top + 5000
                answers.append(subject.plain(name, answer))
            assert answers[0] == answers[1]

        @rule(n=st.integers(0, 3), t=st.integers(0, 2))
        def release(self, n: int, t: int) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.release(name, self.tokens[t], 5.0))

        @rule(n=st.integers(0, 3), t=st.integers(0, 2))
        def lapse(self, n: int, t: int) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.extend(name, self.tokens[t], 0.01, 5.0))
            time.sleep(0.015)

        @rule(n=st.integers(0, 3))
        def inspect(self, n: int) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.inspect(name, 5.0))

        def teardown(self) -> None:
            for subject in getattr(self, "subjects", []):
                for name in self.names:
                    for token in self.tokens:
                        subject.step(subject.backend.release(name, token, 5.0))
                subject.close()

    return Comparison


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_the_store_answers_as_memory_does(store: str, colour: str) -> None:
    run_state_machine_as_test(
        machine(lambda: store, colour),
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_comparison_finds_a_store_that_forgets_its_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can fail: a store whose fence starts again after a release is found."""
    from interlock.backends import memory

    real = memory.MemoryBackend.release

    async def forgetful(self: Any, name: str, token: str, within: float) -> bool:
        done = await real(self, name, token, within)
        if done and self.address.endswith("forgetful"):
            self._memory.last_fence -= 1
        return done

    monkeypatch.setattr(memory.MemoryBackend, "release", forgetful)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            machine(lambda: "memory://forgetful", "blocking"),
            settings=settings(
                max_examples=200,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],  # to find it is enough here, no need to shrink it
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
