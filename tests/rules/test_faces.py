"""The two faces, blocking and asyncio, offer the same and say the same."""

from __future__ import annotations

import inspect
from typing import Any

from .signatures import DOORS, members, signature_of
from .source import Complaints, report


def face_rule(blocking: type, asyncio_: type, store_call: str = "run") -> Complaints:
    """How two faces differ, beyond the colour. `store_call` is the global by which the blocking one reaches the store."""
    ours, theirs = members(blocking), {DOORS.get(name, name): value for name, value in members(asyncio_).items()}
    who = f"{blocking.__name__}/{asyncio_.__name__}"
    complaints = [f"{who}: {name} is in one face only" for name in sorted(ours.keys() ^ theirs.keys())]
    if _docs(blocking) != _docs(asyncio_):
        complaints.append(f"{who}: the docstrings of the classes differ")
    pairs = {name: (ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}
    pairs["__init__"] = (vars(blocking).get("__init__"), vars(asyncio_).get("__init__"))
    for name, (one, two) in sorted(pairs.items()):
        if one is two:
            continue  # inherited from the same base
        if type(one) is not type(two):
            complaints.append(f"{who}: {name} is a {type(one).__name__} here and a {type(two).__name__} there")
            continue
        if _docs(one) != _docs(two):
            complaints.append(f"{who}: the docstrings of {name} differ")
        if isinstance(one, property):
            one, two = one.fget, two.fget
        if not inspect.isfunction(one):
            continue
        here, there = signature_of(one), colourless(signature_of(two))
        if here != there:
            complaints.append(f"{who}: {name}{here} here, {name}{there} there")
        needs_store = store_call in one.__code__.co_names or name in DOORS
        if inspect.iscoroutinefunction(one):
            complaints.append(f"{who}: {name} of the blocking face is async")
        if inspect.iscoroutinefunction(two) != needs_store:
            complaints.append(
                f"{who}: {name} {'needs' if needs_store else 'does not need'} the store, the async face says otherwise"
            )
    return complaints


def colourless(signature: str) -> str:
    for coloured, plain in [("Coroutine[Any, Any, R]", "R"), ("Awaitable[R]", "R"), ("Async", "")]:
        signature = signature.replace(coloured, plain)
    return signature


def _docs(thing: Any) -> str | None:
    return inspect.cleandoc(thing.__doc__) if thing.__doc__ else None


def test_both_faces_say_the_same() -> None:
    import interlock

    pairs = [
        (interlock.Client, interlock.AsyncClient),
        (interlock.Lock, interlock.AsyncLock),
        (interlock.Lease, interlock.AsyncLease),
    ]
    complaints = [complaint for pair in pairs for complaint in face_rule(*pair)]
    assert not complaints, report(complaints)


def test_a_lease_of_either_face_has_what_the_design_promises() -> None:
    import interlock

    for cls in (interlock.Lease, interlock.AsyncLease):
        assert {"name", "token", "fence", "ttl", "remaining", "state", "lost", "check", "extend", "release"} <= members(
            cls
        ).keys()


def run(work: object) -> object:
    """Stands for the blocking runtime in the fake faces below."""
    return work


class Face:
    """A face."""

    def __init__(self, ttl: float = 1.0) -> None: ...

    @property
    def name(self) -> str:
        """Its name."""
        return ""

    def ask(self, timeout: float | None = None) -> Face:
        """Ask the store."""
        return run(timeout)  # type: ignore[return-value]

    def plain(self) -> None:
        """No store."""

    def __enter__(self) -> Face:
        """In."""
        return self


class AsyncFace:
    """A face."""

    def __init__(self, ttl: float = 1.0) -> None: ...

    @property
    def name(self) -> str:
        """Its name."""
        return ""

    async def ask(self, timeout: float | None = None) -> AsyncFace:
        """Ask the store."""
        return self

    def plain(self) -> None:
        """No store."""

    async def __aenter__(self) -> AsyncFace:
        """In."""
        return self


def test_twin_faces_are_told_from_others() -> None:
    async def ask_without_timeout(self) -> AsyncFace:
        """Ask the store."""

    async def ask_with_another_default(self, timeout: float | None = 1) -> AsyncFace:
        """Ask the store."""

    async def ask_with_another_type(self, timeout: float = None) -> AsyncFace:  # noqa: RUF013
        """Ask the store."""

    async def ask_by_keyword(self, *, timeout: float | None = None) -> AsyncFace:
        """Ask the store."""

    async def ask_in_other_words(self, timeout: float | None = None) -> AsyncFace:
        """Ask."""

    def ask_at_once(self, timeout: float | None = None) -> AsyncFace:
        """Ask the store."""

    async def plain_async(self) -> None:
        """No store."""

    def init_with_less(self) -> None: ...

    def caught(**changes: Any) -> Complaints:
        members = {name: value for name, value in vars(AsyncFace).items() if name not in ("__dict__", "__weakref__")}
        return face_rule(Face, type("AsyncFace", (), {name: value for name, value in (members | changes).items() if value}))

    assert caught() == []
    assert caught(ask=None) == ["Face/AsyncFace: ask is in one face only"]
    assert caught(extra=ask_at_once) == ["Face/AsyncFace: extra is in one face only"]
    assert caught(__aenter__=None) == ["Face/AsyncFace: __enter__ is in one face only"]
    for changed in (ask_without_timeout, ask_with_another_default, ask_with_another_type, ask_by_keyword):
        assert len(caught(ask=changed)) == 1, changed
    assert caught(ask=ask_in_other_words) == ["Face/AsyncFace: the docstrings of ask differ"]
    assert caught(ask=ask_at_once) == ["Face/AsyncFace: ask needs the store, the async face says otherwise"]
    assert caught(plain=plain_async) == ["Face/AsyncFace: plain does not need the store, the async face says otherwise"]
    assert len(caught(__init__=init_with_less)) == 1
    assert caught(name=ask_at_once) == ["Face/AsyncFace: name is a property here and a function there"]
    assert caught(__doc__="Another.") == ["Face/AsyncFace: the docstrings of the classes differ"]
