"""The token: a random secret, then what its holder says of itself in public.

    <32 hex digits>~<owner>              for example  9f…c1~web-7:4242
    <32 hex digits>~<owner> (<note>)     for example  9f…c1~web-7:4242 (deploy 812)

It is the lock's value in the store, so anybody who can read the store sees who holds the lock at no extra cost. The random
part is the secret; `owner_of` is the only way to a part of a token that may be shown.
"""

from __future__ import annotations

RANDOM_DIGITS = 32
ALIAS_DIGITS = 16
SEPARATOR = "~"
_HEX = frozenset("0123456789abcdef")


def compose(random_hex: str, owner: str, note: str = "") -> str:
    """A token from 32 random hex digits, the owner's public facts and, if any, its note."""
    return f"{random_hex}{SEPARATOR}{owner} ({note})" if note else f"{random_hex}{SEPARATOR}{owner}"


def is_ours(token: str) -> bool:
    """Whether a value found in a store was written by interlock."""
    head = token[:RANDOM_DIGITS]
    return len(head) == RANDOM_DIGITS and token[RANDOM_DIGITS : RANDOM_DIGITS + 1] == SEPARATOR and _HEX.issuperset(head)


def alias_of(token: str) -> str:
    """What tells a token from others and does not give it away."""
    from hashlib import sha1  # lazily: only nodes of a quorum need it

    return sha1(token.encode(), usedforsecurity=False).hexdigest()[:ALIAS_DIGITS]


def owner_of(token: str) -> str:
    """The public part of a token; "" for a value that a foreign client wrote."""
    return token[RANDOM_DIGITS + 1 :] if is_ours(token) else ""
