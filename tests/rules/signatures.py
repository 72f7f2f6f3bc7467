"""What a class offers, spelled the same under every Python."""

from __future__ import annotations

import inspect
from typing import Any

DOORS = {"__enter__": "__enter__", "__exit__": "__exit__", "__aenter__": "__enter__", "__aexit__": "__exit__"}


def signature_of(function: Any) -> str:
    """Parameters with their annotations and defaults, spelled the same under every Python."""
    parts: list[str] = []
    signature = inspect.signature(function)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for index, parameter in enumerate(signature.parameters.values()):
        if (
            parameter.kind is parameter.KEYWORD_ONLY
            and parameter.VAR_POSITIONAL not in kinds
            and kinds.index(parameter.kind) == index
        ):
            parts.append("*")
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_spelled(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
        if parameter.kind is parameter.POSITIONAL_ONLY and kinds[index + 1 : index + 2] != [parameter.kind]:
            parts.append("/")
    returns = "" if signature.return_annotation is signature.empty else f" -> {_spelled(signature.return_annotation)}"
    return f"({', '.join(parts)}){returns}"


def _spelled(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def members(cls: type) -> dict[str, Any]:
    """What a class offers that is its own or an ancestor's of ours: public names, and the doors of a `with` block."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "interlock" or base is cls:
            public = {name: value for name, value in vars(base).items() if not name.startswith("_") or name in DOORS}
            found |= {name: getattr(value, "__wrapped__", value) for name, value in public.items()}
    return found


def class_lines(name: str, cls: type) -> list[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    lines = [f"{name}: class({bases})"]
    if hasattr(cls, "_fields"):
        hints = cls.__annotations__
        lines += [f"{name}.{field}: field {getattr(hints[field], '__forward_arg__', hints[field])}" for field in cls._fields]
        return lines
    if inspect.isfunction(cls.__init__):
        lines.append(f"{name}.__init__{signature_of(cls.__init__)}")
    for member, value in members(cls).items():
        if isinstance(value, property):
            lines.append(f"{name}.{member}: property{signature_of(value.fget)[len('(self)') :]}")
        elif inspect.isfunction(value):
            how = "async " if inspect.iscoroutinefunction(value) else ""
            lines.append(f"{name}.{member}: {how}method{signature_of(value)}")
        else:
            lines.append(f"{name}.{member}: {type(value).__name__}")
    return lines


def public_lines() -> list[str]:
    import interlock

    lines = []
    for name in interlock.__all__:
        value = getattr(interlock, name)
        if isinstance(value, type):
            lines += class_lines(name, value)
        elif inspect.isfunction(value):
            lines.append(f"{name}: function{signature_of(value)}")
        else:
            lines.append(f"{name}: {type(value).__name__}")
    return sorted(lines)
