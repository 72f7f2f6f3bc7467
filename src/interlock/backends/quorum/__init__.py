"""A quorum: a backend made of an odd number of independent backends. See `backend`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ...errors import UsageError
from ...runtime.base import Runtime
from ..port import Member
from .backend import QuorumBackend

__all__ = ["QuorumBackend", "check_list", "open_quorum"]


def open_quorum(members: Sequence[Member], runtime: Runtime) -> QuorumBackend:
    """A quorum of these. Raises UsageError for one node, or for one address twice; warns of an even number."""
    check_list([member.address for member in members])
    return QuorumBackend(members, runtime)


def check_list(addresses: Sequence[str], stacklevel: int = 5) -> None:
    """Raises UsageError for one node, or for one address twice; warns of an even number."""
    if len(addresses) < 2:
        raise UsageError("one node in a list is no quorum; give its URL without the list, or give three or five nodes")
    if len(set(addresses)) < len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise UsageError(f"{twice} is in the list twice, so its vote would count twice; give independent nodes")
    if (size := len(addresses)) % 2 == 0:
        warnings.warn(
            f"interlock: a quorum of {size} nodes survives the loss of no more nodes than one of {size - 1}; use an odd number",
            RuntimeWarning,
            stacklevel=stacklevel,
        )
