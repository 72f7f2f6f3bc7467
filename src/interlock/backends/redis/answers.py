"""What the scripts' replies mean. None: no script of ours says that."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.claim import Entry, Gone, Granted, Renewal, Waiting, free
from ..port import NodeStatus
from .packing import given, number, roll_of, seconds, text, waits_of
from .resp import Reply

GONE, NOT_A_LOCK = -1, -3  # what extend.lua says of a lease, unless it gives its fence or says that somebody else has it


def extensions(reply: Reply, size: int) -> list[int] | None:
    """What extend.lua says of so many leases."""
    match reply:
        case [*said, _]:
            numbers = [number for number in said if isinstance(number, int)]
            if len(numbers) == len(said) == size:
                return numbers
    return None


def extended(lease: Renewal, said: int) -> Granted | Gone:
    """What extend.lua says of this lease."""
    return Granted(said, given(lease.ttl)) if said >= 0 else Gone(taken=said != GONE)


def inspected(name: str, reply: Reply) -> Entry | None:
    """What inspect.lua says."""
    match reply:
        case [int(held), int(left), bytes(owner), bytes(fence), int(waiters), [*line], _]:
            entry = Entry(name, True, text(owner), seconds(left), number(fence)) if held else free(name)
            return entry._replace(waiting=_queue(line), waiters=waiters)
    return None


def _queue(line: Sequence[object]) -> tuple[Waiting, ...]:
    """Public facts and microseconds, in turns. Anybody may have written to the line."""
    pairs = zip(line[::2], line[1::2], strict=False)
    return tuple(
        Waiting(text(who), (number(since) or 0) / 1e6)
        for who, since in pairs
        if isinstance(who, bytes) and isinstance(since, bytes)
    )


def standing(reply: Reply) -> NodeStatus | None:
    """What roll.lua says."""
    match reply:
        case [
            int(there),
            int(good),
            *words,
            int(held),
            bytes(name),
            bytes(loss),
            bytes(run),
            bytes(role),
            bytes(policy),
            [*noted],
            _,
        ] if len(words) == 6 or not there:
            trouble = []
            if role == b"slave":
                trouble.append("is a replica: it may vote for leases that its primary never heard of")
            if policy not in (b"", b"noeviction"):
                trouble.append(f"may evict locks (maxmemory-policy {text(policy)}): set it to noeviction")
            roll, state = roll_of(words) if there else None, text(loss)
            replica, renewed = role == b"slave", text(name)
            known, facts = waits_of(noted), tuple(trouble)
            return NodeStatus(roll, good == 1, held / 1000, state, text(run), replica, facts, renewed, known)
    return None
