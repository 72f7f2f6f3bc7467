"""What an acquire asks for."""

from __future__ import annotations

from ..core.lease import FIXED, Policy


class Attempt:
    """A name, and the terms on which it is asked for. One for all acquires of a lock: only the timeout differs."""

    __slots__ = ("fair", "name", "note", "policy", "stored", "ttl")

    def __init__(self, name: str, ttl: float, policy: Policy = FIXED, note: str = "", fair: bool = False) -> None:
        self.name = name
        self.ttl = ttl  # how long its holder may believe in a grant
        self.stored = policy.stored(ttl)  # how long the store keeps a grant
        self.policy = policy
        self.note = note
        self.fair = fair
