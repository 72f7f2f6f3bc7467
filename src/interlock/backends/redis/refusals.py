"""What it means to the caller when the server says no, or nothing that makes sense."""

from __future__ import annotations

from ...core.shown import shown
from ...errors import InterlockError, Unavailable, Unsupported, UsageError
from .packing import LOSS_KEY, ROLL_KEY, fence_key
from .resp import ErrorReply, Reply

# What a user needs: keys, channels, and commands, those inside the scripts too. Only a quorum needs the last six.
RULES = (
    "~NAME ~interlock:* &interlock:* +eval +evalsha +subscribe +ping +get +set +del +pttl +pexpire +time +incr +zadd +zrem "
    "+zrange +zcard +zpopmin +publish +hmget +hset +exists +info +zrandmember "
    "+zrevrange"
)


def refusal(where: str, reply: ErrorReply, name: str) -> InterlockError:
    """The server has answered with an error, so it has done nothing. What that means to the caller."""
    text = shown(reply.text.partition(", with args beginning with")[0])  # the rest may hold a token
    if "WRONGTYPE" in text:  # Redis before 7 wraps the code of an error inside a script
        return not_a_lock(where, name) if name else spoilt_roll(where)
    if text.startswith("INTERLOCK ROLL"):
        return spoilt_roll(where)
    if text.startswith("INTERLOCK"):
        return UsageError(
            f"the fence counter of '{name}' at {where} was overwritten by somebody; nothing was written. Delete the key "
            f"'{fence_key(name).decode()}': fences go on from the server's clock"
        )
    if reply.code == "LACKS":  # see preflight.lua
        return Unavailable(
            f"{where} does not let this user do all that locks need. Nothing was written; add to its ACL: "
            f"{text.removeprefix('LACKS ')}. In all it needs {RULES}",
            backend=where,
            cause="auth",
        )
    if denied(reply) or reply.code in ("NOAUTH", "WRONGPASS") or "unauthenticated" in text:  # too many arguments for a stranger
        return Unavailable(
            f"{where} refuses this user ({text}). Nothing was written; fix the user, the password or the ACL. It needs "
            f"{RULES}: the keys NAME and interlock:*, the channels interlock:*, and scripts with these commands",
            backend=where,
            cause="auth",
        )
    if reply.code in ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"):
        return Unsupported(f"{where} is a node of a Redis Cluster ({text}); this version locks on single nodes only")
    return Unavailable(f"{where} answered: {text}. Nothing was written", backend=where, cause="error")


def denied(reply: ErrorReply) -> bool:
    """Whether the server does not let this user do something. Inside a script the code is that of any error."""
    words = "user executing the script can't", "ACL failure in script"  # before Redis 7.2, and since; Valkey has the latter
    return reply.code == "NOPERM" or any(some in reply.text for some in words)


def not_a_lock(where: str, name: str) -> UsageError:
    """Under the lock's key is a list, a hash, …"""
    return UsageError(
        f"the key '{name}' at {where} holds something that is not a lock (a list, a hash, …); nothing was written. "
        "Choose another name for the lock, or remove that key"
    )


def spoilt_roll(where: str) -> UsageError:
    """Under one of the keys that make a server a node of a quorum is something else."""
    keys = ", ".join(key.decode() for key in (ROLL_KEY, ROLL_KEY + b":long", LOSS_KEY))
    return UsageError(
        f"one of the keys {keys} at {where} was overwritten by somebody (its type is wrong); nothing was written. Delete all "
        "of them: the node then waits until what it may have forgotten is over"
    )


def nonsense(where: str, reply: Reply) -> InterlockError:
    """An answer that is none."""
    return Unavailable(
        f"{where} gave an answer that no interlock script gives ({type(reply).__name__}); is a proxy in between?",
        backend=where,
        cause="error",
    )


def silent(where: str) -> Unavailable:
    """No reply in time."""
    text = f"{where} did not answer in time: is it overloaded, frozen or cut off?"
    return Unavailable(text, backend=where, cause="timeout")


def broken(what: str, where: str, why: str) -> Unavailable:
    """A connection (`what`) broke."""
    return Unavailable(f"{what} to {where} broke{': ' if why else ''}{why}", backend=where, cause="closed")
