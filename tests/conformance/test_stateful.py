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
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from interlock.backends.port import Backend
from interlock.backends.registry import open_backend
from interlock.core.claim import Announced, Claim, Entry, Gone, Granted, Handed, Place, Refused, Renewal
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
        self.backend: Any = open_backend(url, runtime)
        self.now = runtime.now
        self.inbox = ""
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
            case Handed(held, heir):
                return "handed", held, self.plain(name, heir)
            case Announced(name, token, fence, ttl):
                return "announced", name, token, self.rank(name, fence), ttl
            case Gone(taken):
                return "gone", taken
            case Entry(name, held, owner, remaining, fence, _, waiting, waiters):
                line = [waiter.owner for waiter in waiting]
                return name, held, owner, round(remaining, -2), self.rank(name, fence), line, waiters
        return answer

    def heard(self, wait: float) -> list[Any]:
        return [self.plain(one.name, one) for one in self.step(self.backend.hear(self.now() + wait))]

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
            self.lines = self.subjects[1].backend.capabilities.lines
            if self.lines:
                for subject in self.subjects:
                    subject.inbox = subject.step(subject.backend.open_inbox(5.0))

        def ask(self, name: str, question: Callable[[Backend], Coroutine[Any, Any, Any]]) -> Any:
            spec, store = (s.plain(name, s.step(question(s.backend))) for s in self.subjects)
            assert store == spec
            if self.lines:
                told = self.subjects[0].heard(0.0)
                assert self.subjects[1].heard(5.0 if told else 0.0) == told
            return spec

        def token(self, n: int, t: int) -> str:
            """A token is used for one name only."""
            return f"{self.tokens[t]}:{n}"

        def place(self, backend: Backend, arrival: int) -> Place:
            (inbox,) = (subject.inbox for subject in self.subjects if subject.backend is backend)
            return Place(arrival, inbox, LONG)

        @precondition(lambda self: self.lines)
        @rule(n=st.integers(0, 1), t=st.integers(0, 2), arrival=st.integers(1, 9))
        def stand(self, n: int, t: int, arrival: int) -> None:
            name, token = self.names[n], self.token(n, t)
            self.ask(name, lambda b: b.claim(Claim(name, token, LONG, self.place(b, arrival)), 5.0))

        @precondition(lambda self: self.lines)
        @rule(
            n=st.integers(0, 1),
            t=st.integers(0, 2),
            other=st.integers(1, 2),
            arrival=st.integers(1, 9),
            before=st.integers(0, 9),
        )
        def hand_over(self, n: int, t: int, other: int, arrival: int, before: int) -> None:
            name, token, heir = self.names[n], self.token(n, t), self.token(n, (t + other) % 3)
            self.ask(
                name,
                lambda b: b.hand_over(name, token, Claim(name, heir, 2 * LONG, self.place(b, arrival)), before, 5.0),
            )

        @precondition(lambda self: self.lines)
        @rule(n=st.integers(0, 1), t=st.integers(0, 2), arrival=st.integers(1, 9))
        def keep(self, n: int, t: int, arrival: int) -> None:
            """Hand over to itself. Whether it held the name is not asked: Redis does not tell it there."""
            name, token = self.names[n], self.token(n, t)

            async def hand_over(backend: Any) -> Any:
                heir = Claim(name, token, 2 * LONG, self.place(backend, arrival))
                return (await backend.hand_over(name, token, heir, arrival, 5.0)).heir

            self.ask(name, hand_over)
            self.inspect(n)

        @precondition(lambda self: self.lines)
        @rule(n=st.integers(0, 1), t=st.integers(0, 2), arrival=st.integers(1, 9))
        def retreat(self, n: int, t: int, arrival: int) -> None:
            name, token = self.names[n], self.token(n, t)
            for subject in self.subjects:
                place = self.place(subject.backend, arrival)
                subject.step(subject.backend.retreat(Claim(name, token, LONG, place), LONG, 5.0))
            self.inspect(n)

        @precondition(lambda self: self.lines)
        @rule(n=st.integers(0, 1), t=st.integers(0, 2))
        def undo(self, n: int, t: int) -> None:
            name, token = self.names[n], self.token(n, t)
            self.ask(name, lambda b: b.undo(name, token, 5.0))
            self.inspect(n)

        @rule(n=st.integers(0, 3), t=st.integers(0, 2), ttl=st.sampled_from([LONG, 2 * LONG]))
        def claim(self, n: int, t: int, ttl: float) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.claim(Claim(name, self.token(n, t), ttl), 5.0))

        @rule(n=st.integers(0, 3), t=st.integers(0, 2), ttl=st.sampled_from([LONG, 3 * LONG]))
        def extend(self, n: int, t: int, ttl: float) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.extend(name, self.token(n, t), ttl, 5.0))

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
                    Renewal(self.names[n], self.token(n, t), ttl, tops[n] + (3000 if raised else 0))
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
                answer = subject.step(subject.backend.extend(name, self.token(n, t), LONG, 5.0, fence=top + 5000))
                assert isinstance(answer, Gone) or answer.fence == top + 5000
                answers.append(subject.plain(name, answer))
            assert answers[0] == answers[1]

        @rule(n=st.integers(0, 3), t=st.integers(0, 2))
        def release(self, n: int, t: int) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.release(name, self.token(n, t), 5.0))

        @rule(n=st.integers(0, 3), t=st.integers(0, 2))
        def lapse(self, n: int, t: int) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.extend(name, self.token(n, t), 0.01, 5.0))
            time.sleep(0.015)

        @rule(n=st.integers(0, 3))
        def inspect(self, n: int) -> None:
            name = self.names[n]
            self.ask(name, lambda b: b.inspect(name, 5.0))

        def teardown(self) -> None:
            for subject in getattr(self, "subjects", []):
                for n, name in enumerate(self.names):
                    for _ in range(2):  # the first round may serve somebody
                        for t in range(3):
                            subject.step(subject.backend.release(name, self.token(n, t), 5.0))
                subject.close()

    return Comparison


@pytest.mark.timeout(300)  # a hundred files on a disk that may be slow
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
    from interlock.backends.memory import backend as memory

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
