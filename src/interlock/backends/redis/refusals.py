"""What it means to the caller when the server says no, or nothing that makes sense."""

from __future__ import annotations

from ...errors import InterlockError, Unavailable, Unsupported, UsageError
from .packing import fence_key
from .resp import ErrorReply, Reply


def refusal(where: str, reply: ErrorReply, name: str) -> InterlockError:
    """The server has answered with an error, so it has done nothing. What that means to the caller."""
    text = reply.text.partition(", with args beginning with")[0]  # the rest may hold a token
    if "WRONGTYPE" in text:  # Redis before 7 wraps the code of an error inside a script
        return not_a_lock(where, name)
    if text.startswith("INTERLOCK"):
        return UsageError(
            f"the fence counter of '{name}' at {where} was overwritten by somebody; nothing was written. Delete the key "
            f"'{fence_key(name).decode()}': fences go on from the server's clock"
        )
    if reply.code in ("NOAUTH", "WRONGPASS", "NOPERM") or "unauthenticated" in text:  # too many arguments for a stranger
        return Unavailable(
            f"{where} refuses this user ({text}). Nothing was written; fix the user, the password or the ACL (scripts, "
            f"the keys NAME and interlock:*, the channels interlock:*)",
            backend=where,
            cause="auth",
        )
    if reply.code in ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"):
        return Unsupported(f"{where} is a node of a Redis Cluster ({text}); this version locks on single nodes only")
    return Unavailable(f"{where} answered: {text}. Nothing was written", backend=where, cause="error")


def not_a_lock(where: str, name: str) -> UsageError:
    """Under the lock's key is a list, a hash, …"""
    return UsageError(
        f"the key '{name}' at {where} holds something that is not a lock (a list, a hash, …); nothing was written. "
        "Choose another name for the lock, or remove that key"
    )


def nonsense(where: str, reply: Reply) -> InterlockError:
    """An answer that is none."""
    return Unavailable(
        f"{where} gave an answer that no interlock script gives ({type(reply).__name__}); is a proxy in between?",
        backend=where,
        cause="error",
    )
