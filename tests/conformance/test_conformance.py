"""The shipped suite on every store that we ship, in both colours."""

from __future__ import annotations

import pytest

from interlock import Client
from interlock.backends.port import Capabilities
from interlock.testing.conformance import CASES, Case, cases_for, run_case
from interlock.testing.faces import COLOURS, Kit
from interlock.testing.lines import LINE_CASES
from interlock.testing.modes import MODE_CASES

from ..conftest import store_url


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case, colour: str, store: str) -> None:
    run_case(case, store, colour)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("case", LINE_CASES, ids=str)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "valkey", "redis"])  # what each store declares is pinned below
def test_a_line(case: Case, colour: str, kind: str, request: pytest.FixtureRequest) -> None:
    run_case(case, store_url(request, kind), colour)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("case", MODE_CASES, ids=str)
@pytest.mark.parametrize("kind", ["memory"])
def test_modes(case: Case, colour: str, kind: str, request: pytest.FixtureRequest) -> None:
    run_case(case, store_url(request, kind), colour)


def test_what_each_store_declares(store: str) -> None:
    declared = {
        "memory": Capabilities(processes=False, hosts=False, survives=False, foreign=False, lines=True, modes=True),
        "sqlite": Capabilities(processes=True, hosts=False, survives=True, foreign=False, lines=True),
        "redis": Capabilities(processes=True, hosts=True, survives=True, foreign=True, lines=True, light=True),
    }
    with Client(store) as client:
        assert client._context.backend.capabilities == declared[store.partition(":")[0]]


def test_a_case_that_needs_more_than_a_store_has_is_left_out_openly() -> None:
    async def body(kit: Kit) -> None: ...

    CASES.append(Case("needs hosts", body, needs="hosts"))
    try:
        assert "needs hosts" not in map(str, cases_for(Capabilities(True, False, True, True)))
        assert "needs hosts" in map(str, cases_for(Capabilities(True, True, True, True)))
    finally:
        CASES.pop()


@pytest.mark.parametrize("colour", COLOURS)
def test_the_suite_finds_a_store_that_lies(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite itself can fail: a store that grants to everybody does not pass."""
    from interlock.backends.memory import Memory

    monkeypatch.setattr(Memory, "holder", lambda self, name: None)
    failed = 0
    for case in CASES:
        try:
            run_case(case, "memory://liar", colour)
        except (AssertionError, Exception, BaseExceptionGroup):
            failed += 1
    assert failed > len(CASES) / 2
