"""From `"order:{order_id}"` and a function's arguments to the name of a lock."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, TypeVar

from ..core import checks
from ..errors import UsageError

R = TypeVar("R")
NameMaker = Callable[[tuple[Any, ...], dict[str, Any]], str]


ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}", re.IGNORECASE)  # how Python shows an object that has no text of its own


def check_template(template: object) -> None:
    """Raises UsageError for what cannot be a template, such as the function when the parentheses were forgotten."""
    if not isinstance(template, str):
        raise UsageError("locked() takes the lock's name: write @client.locked('order:{order_id}') above the function")


def finished(result: R) -> R:
    """The result of a decorated call. Raises UsageError if it is work that has not run yet: it would run without the lock."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise UsageError(
            "the decorated function returned a coroutine or a generator, which would run after the lock is released"
        )
    return result


def name_maker(template: str, function: Callable[..., Any], colour: str) -> NameMaker:
    """How to name the lock for a call of `function`, which a client of `colour` decorates.

    Raises UsageError at once if the function is of the other colour or a generator, or if the template names something that
    is not an argument. The maker raises UsageError if the filled-in name may not be one, and TypeError, as the function would,
    for arguments that do not fit.
    """
    _check_colour(function, colour)
    signature = inspect.signature(function)
    fields = _fields(checks.unreserved(template))
    unknown = sorted(fields - set(signature.parameters))
    if unknown:
        raise UsageError(
            f"the template {template!r} names {', '.join(unknown)}, but {getattr(function, '__qualname__', function)} takes "
            f"{', '.join(signature.parameters) or 'no arguments'}"
        )
    if not fields:
        fixed = checks.name(template.format())
        return lambda args, kwargs: fixed

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return checks.name(_fill(template, bound.arguments))

    return make


def _check_colour(function: Callable[..., Any], colour: str) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{name} is a generator: its body would run after the lock is released")
    if inspect.iscoroutinefunction(function) and colour == "blocking":
        raise UsageError(f"{name} is async: decorate it with an AsyncClient's locked()")
    if not inspect.iscoroutinefunction(function) and colour == "asyncio":
        raise UsageError(f"{name} is not async: decorate it with a Client's locked()")


def _fill(template: str, arguments: Mapping[str, Any]) -> str:
    try:
        filled = Formatter().vformat(template, (), arguments)
    except (AttributeError, LookupError, ValueError, TypeError) as error:
        raise UsageError(f"the lock's name {template!r} cannot be filled in: {error}; nothing was locked") from error
    if ADDRESS.search(filled):
        raise UsageError(
            f"an argument puts a memory address into the lock's name {template!r}, another one each time; nothing was locked. "
            "Name an attribute, as in 'order:{order.id}', or give the class a __str__"
        )
    return filled


def _fields(template: str) -> set[str]:
    """The arguments that a template names. Raises UsageError for one that is malformed or counts instead of naming."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"the template {template!r} is malformed: {error}") from None
    fields = set()
    for _, field, spec, _ in parts:
        if field is None:
            continue
        if "{" in (spec or ""):
            raise UsageError(f"the template {template!r} nests fields; name each argument once")
        root = field.partition(".")[0].partition("[")[0]
        if not root.isidentifier():
            raise UsageError(f"the template {template!r} must name its arguments, as in 'order:{{order_id}}'")
        fields.add(root)
    return fields
