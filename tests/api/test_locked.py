"""The decorator: a name per call, filled in from the arguments, or an error before anything runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from interlock import AsyncClient, Client, LeaseLost, UsageError


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(f"memory://{uuid4().hex}") as client:
        yield client


def both(template: Any, function: Callable[..., Any], **options: Any) -> list[Callable[[], Any]]:
    """The decoration of one function in both colours, not yet done."""

    async def coloured(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    coloured.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return [
        lambda: Client("memory://").locked(template, **options)(function),
        lambda: AsyncClient("memory://").locked(template, **options)(coloured),
    ]


class Thing:
    """Has an attribute, and no text of its own."""

    def __init__(self, number: int) -> None:
        self.id = number


class Order(Thing):
    """Has a text of its own."""

    def __str__(self) -> str:
        return f"order-{self.id}"


# --- names ----------------------------------------------------------------------------------------------------------------


def plain(order_id: int) -> None: ...
def with_default(order_id: int = 5, *, day: str = "mon") -> None: ...
def with_object(order: Any) -> None: ...
def with_rest(first: int, *rest: Any, **named: Any) -> None: ...
def positional(order_id: int, /) -> None: ...
def two(a: Any, b: Any) -> None: ...


NAMES: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    ("order:{order_id}", plain, (7,), {}, "order:7"),
    ("order:{order_id}", plain, (), {"order_id": 7}, "order:7"),
    ("order:{order_id}", plain, ("a/b c",), {}, "order:a/b c"),
    ("order:{order_id:05d}", plain, (7,), {}, "order:00007"),
    ("order:{order_id!s:>4}", plain, (7,), {}, "order:   7"),
    ("order:{order_id!r}", plain, ("x",), {}, "order:'x'"),
    ("order:{order_id}", positional, (7,), {}, "order:7"),
    ("fixed", plain, (7,), {}, "fixed"),
    ("{order_id}:{day}", with_default, (), {}, "5:mon"),
    ("{order_id}:{day}", with_default, (6,), {"day": "tue"}, "6:tue"),
    ("{order_id}{order_id}", with_default, (6,), {}, "66"),
    ("{order.id}", with_object, (Thing(3),), {}, "3"),
    ("{order}", with_object, (Order(3),), {}, "order-3"),
    ("{order!s}", with_object, (Order(3),), {}, "order-3"),
    ("{order[id]}", with_object, ({"id": 3},), {}, "3"),
    ("{order[0]}", with_object, ([3, 4],), {}, "3"),
    ("{order[0].id}", with_object, ([Thing(8)],), {}, "8"),
    ("{order}", with_object, ((1, 2),), {}, "(1, 2)"),
    ("{order}", with_object, (None,), {}, "None"),
    ("{rest[1]}:{named[day]}", with_rest, (1, 2, 3), {"day": "mon"}, "3:mon"),
    ("{first}:{rest}", with_rest, (1, 2, 3), {}, "1:(2, 3)"),
]


@pytest.mark.parametrize(
    ("template", "function", "args", "kwargs", "name"), NAMES, ids=[f"{case[0]}-{case[4]}" for case in NAMES]
)
def test_the_name_is_filled_in_from_the_arguments(
    client: Client, template: str, function: Any, args: Any, kwargs: Any, name: str
) -> None:
    seen: list[str] = []

    @client.locked(template)
    @functools.wraps(function)
    def work(*a: Any, **k: Any) -> str:
        assert (a, k) == (args, kwargs), "the arguments pass as they came"
        seen.append(name if client.inspect(name).held else "not locked")
        return "result"

    assert work(*args, **kwargs) == "result"
    assert seen == [name]
    assert client.inspect(name).held is False


def test_the_asyncio_face_fills_in_names_too() -> None:
    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}") as client:

            @client.locked("order:{order.id}")
            async def pay(order: Thing, amount: int = 1) -> tuple[int, bool]:
                return amount, (await client.inspect("order:3")).held

            assert await pay(Thing(3), amount=2) == (2, True)
            assert (await client.inspect("order:3")).held is False

    asyncio.run(main())


def test_a_method_can_be_named_after_its_object(client: Client) -> None:
    class Account:
        def __init__(self, number: int) -> None:
            self.number = number

        @client.locked("account:{self.number}:{day}")
        def close(self, day: str) -> list[bool]:
            return [client.inspect(f"account:{number}:{day}").held for number in (1, 2)]

    assert Account(2).close("mon") == [False, True]
    assert Account(1).close(day="mon") == [True, False]


def test_a_classmethod_and_a_staticmethod_go_outside(client: Client) -> None:
    class Jobs:
        @classmethod
        @client.locked("jobs:{cls.__name__}:{n}")
        def one(cls, n: int) -> bool:
            return client.inspect(f"jobs:Jobs:{n}").held

        @staticmethod
        @client.locked("jobs:{n}")
        def two(n: int) -> bool:
            return client.inspect(f"jobs:{n}").held

    assert Jobs.one(4) is True
    assert Jobs().two(5) is True


def test_each_call_has_its_own_lock_and_the_same_one_excludes(client: Client) -> None:
    @client.locked("n:{n}", timeout=0)
    def nested(n: int, *inner: int) -> int:
        return nested(*inner) + 1 if inner else 1

    assert nested(1, 2, 3) == 3
    with pytest.raises(TimeoutError):
        nested(1, 1)


# --- metadata -------------------------------------------------------------------------------------------------------------


def test_the_function_keeps_its_face(client: Client) -> None:
    def report(day: str, *, deep: bool = False) -> str:
        """Report on a day."""
        return day

    report.tag = "nightly"  # type: ignore[attr-defined]
    guarded = client.locked("report:{day}")(report)
    assert (guarded.__name__, guarded.__doc__, guarded.__module__) == ("report", "Report on a day.", __name__)
    assert guarded.__qualname__ == report.__qualname__
    assert guarded.__wrapped__ is report  # type: ignore[attr-defined]
    assert guarded.tag == "nightly"  # type: ignore[attr-defined]
    assert inspect.signature(guarded) == inspect.signature(report)


def test_an_async_function_stays_one() -> None:
    @AsyncClient("memory://").locked("report:{day}")
    async def report(day: str) -> str:
        """Report on a day."""
        return day

    assert inspect.iscoroutinefunction(report)
    assert (report.__name__, report.__doc__) == ("report", "Report on a day.")


# --- refused at decoration ------------------------------------------------------------------------------------------------

BAD_TEMPLATES = {
    "an argument that is not there": ("order:{id}", "names id, but .* takes order_id"),
    "two of them": ("{x}{order_id}{y}", "names x, y"),
    "an attribute of nothing": ("{order.id}", "names order"),
    "by number": ("order:{0}", "must name its arguments"),
    "by order": ("order:{}", "must name its arguments"),
    "an attribute by order": ("order:{.id}", "must name its arguments"),
    "spaces": ("order:{ order_id }", "must name its arguments"),
    "unclosed": ("order:{order_id", "malformed"),
    "unopened": ("order:order_id}", "malformed"),
    "nested": ("order:{order_id:{order_id}}", "nests"),
    "literal braces": ("order:{{order_id}}", "brace"),
    "nothing": ("", "empty"),
    "an illegal name": ("a\nb", "cannot be read"),
    "one of interlock's own": ("interlock:roll", "begins with 'interlock:'"),
    "those of interlock's own": ("interlock:{order_id}", "begins with 'interlock:'"),
    "no string": (7, "takes the lock's name"),
    "nothing at all": (None, "takes the lock's name"),
}


@pytest.mark.parametrize(("template", "said"), BAD_TEMPLATES.values(), ids=BAD_TEMPLATES)
def test_a_template_that_cannot_work_is_refused_at_decoration(template: Any, said: str) -> None:
    for decorate in both(template, plain):
        with pytest.raises(UsageError, match=said):
            decorate()


def test_the_forgotten_parentheses_are_noticed_at_decoration(client: Client) -> None:
    with pytest.raises(UsageError, match="takes the lock's name"):

        @client.locked  # type: ignore[arg-type]
        def report(day: str) -> None: ...


def test_a_function_of_the_other_colour_is_refused() -> None:
    async def task() -> None: ...

    with pytest.raises(UsageError, match="task is async: decorate it with an AsyncClient"):
        Client("memory://").locked("x")(task)
    with pytest.raises(UsageError, match="plain is not async: decorate it with a Client"):
        AsyncClient("memory://").locked("x")(plain)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is async"):
        Client("memory://").locked("x")(functools.partial(task))


def test_a_generator_is_refused_in_both_colours() -> None:
    def rows() -> Iterator[int]:
        yield 1

    async def arows() -> Any:
        yield 1

    with pytest.raises(UsageError, match="rows is a generator"):
        Client("memory://").locked("x")(rows)
    with pytest.raises(UsageError, match=r"arows is (a generator|async)"):
        Client("memory://").locked("x")(arows)
    with pytest.raises(UsageError, match="arows is a generator"):
        AsyncClient("memory://").locked("x")(arows)
    with pytest.raises(UsageError, match=r"rows is (a generator|not async)"):
        AsyncClient("memory://").locked("x")(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"ttl": 0}, UsageError), ({"timeout": -1}, UsageError), ({"renew": 1}, UsageError)],
)
def test_options_that_cannot_work_are_refused_at_decoration(options: dict[str, Any], kind: type[Exception]) -> None:
    for client in (Client("memory://"), AsyncClient("memory://")):
        with pytest.raises(kind):
            client.locked("x", **options)


# --- refused at the call --------------------------------------------------------------------------------------------------

NO_NAMES: dict[str, tuple[str, Any]] = {
    "a line break": ("order:{order}", "7\n8"),
    "a brace": ("order:{order}", "{7}"),
    "a set, which is written with braces": ("order:{order}", {7}),
    "nothing": ("{order}", ""),
    "too long": ("order:{order}", "x" * 600),
    "emoji": ("order:{order}", "🔒"),
    "one of interlock's own": ("{order}", "interlock:roll"),
    "a surrogate": ("order:{order}", "\ud800"),
    "an object without a text": ("order:{order}", Thing(3)),
    "the same by repr": ("order:{order!r}", Thing(3)),
    "the same by str": ("order:{order!s}", Thing(3)),
    "such an object in a list": ("order:{order}", [Thing(3)]),
    "a function": ("order:{order}", plain),
    "a missing attribute": ("order:{order.number}", Thing(3)),
    "a missing key": ("order:{order[id]}", {}),
    "a missing index": ("order:{order[3]}", [1]),
    "a format that does not fit": ("order:{order:d}", "x"),
}


@pytest.mark.parametrize(("template", "value"), NO_NAMES.values(), ids=NO_NAMES)
def test_a_call_that_makes_no_name_is_refused_and_the_function_not_called(client: Client, template: str, value: Any) -> None:
    called: list[Any] = []

    @client.locked(template)
    def work(order: Any) -> None:
        called.append(order)

    with pytest.raises(UsageError):
        work(value)
    assert called == []


def test_wrong_arguments_are_the_type_error_of_the_function(client: Client) -> None:
    @client.locked("order:{order_id}")
    def work(order_id: int) -> None:
        raise AssertionError("not called")

    for call in (lambda: work(), lambda: work(1, 2), lambda: work(id=3)):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            call()


# --- the block around the call --------------------------------------------------------------------------------------------


def test_what_the_function_raises_comes_out_and_the_lock_is_free(client: Client) -> None:
    @client.locked("x")
    def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()
    assert client.inspect("x").held is False


def test_a_call_that_outlives_its_lease_says_so(client: Client) -> None:
    import time

    @client.locked("x", ttl=0.01, renew=False)
    def work() -> str:
        time.sleep(0.02)
        return "done"

    with pytest.raises(LeaseLost):
        work()


def test_the_options_of_the_decorator_are_those_of_the_lock(client: Client) -> None:
    @client.locked("x", ttl=100, timeout=0)
    def work() -> float | None:
        return client.inspect("x").remaining

    left = work()
    assert left is not None
    assert 90 < left <= 100
    with client.lock("x"), pytest.raises(TimeoutError):
        work()


def test_work_that_has_not_run_yet_is_not_let_out_of_the_lock() -> None:
    """A plain function that returns a coroutine or a generator: its body would run after the release."""

    async def later() -> None: ...

    with Client("memory://unfinished") as client:
        for make in (later, lambda: (n for n in range(3))):
            with pytest.raises(UsageError, match="would run after the lock is released"):
                client.locked("x")(lambda make=make: make())()
            assert not client.inspect("x").held
