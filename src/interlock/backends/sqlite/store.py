"""The verbs over one SQLite file, synchronous. Only this file, `node` and `line` know the queries.

Invariants
- Every verb is one transaction, inside the gate, in a file that is still at its path.
- The clock is read inside the transaction, so a wait at the gate shortens no lease and revives none.
- A grant draws its fence from the one counter of the file, in the transaction that stores it.
- Whoever is served in line is told after the commit, so nobody hears of a grant that is not in the file.
- `Shut` means that nothing was asked of the file. Any other error, and any interruption, ends in a rollback.

Used by one thread at a time; the transports see to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from ...core import fence as fences
from ...core.claim import Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, Unmarked, free
from ...core.fence import MAX_FENCE
from ...core.token import alias_of, owner_of
from ...errors import UsageError
from . import faults, inbox, line
from .database import Execute, size_of
from .file_lock import Budget
from .node import GOOD, LOOK, USED, StoreNode
from .session import whole
from .sweep import STEP, Walk, walked

# No RETURNING anywhere: SQLite builds a temporary table for it, which costs more than the statement itself.
HOLDER = "SELECT arrival, token, fence, expires FROM entries WHERE name = ?"
NOBODY: tuple[Any, ...] = (None, None, None, None)  # what HOLDER finds where there is none
COUNT = "UPDATE clock SET counter = ? WHERE id = 1"
GRANT = "INSERT INTO entries (name, arrival, token, fence, expires) VALUES (?, ?, ?, ?, ?)"
RENEW = "UPDATE entries SET expires = ?, fence = ? WHERE name = ? AND arrival = ?"
FORGET = "DELETE FROM entries WHERE name = ? AND arrival = ?"
RELEASE = """
    DELETE FROM entries WHERE name = ? AND token = ? AND expires > ? AND NOT EXISTS (SELECT 1 FROM line WHERE name = ?)
"""
NOTE = "UPDATE clock SET horizon = min(horizon, ?), low = min(low, ?) WHERE id = 1"
NEXT = "SELECT name, arrival, expires FROM entries WHERE (name, arrival) > (?, ?) ORDER BY name, arrival LIMIT ?"
SWEPT = "UPDATE clock SET horizon = ?, low = ?, hand_name = ?, hand_arrival = ? WHERE id = 1"


class Store(StoreNode):
    """The leases in one file."""

    # The verbs; see `port.Backend` for what they mean. Each raises Shut, Unavailable or UsageError. They are written flat on
    # purpose: a lock costs forty microseconds here, and ten of them would go into handing arguments down.

    def claim(self, claim: Claim, budget: Budget) -> Granted | Refused:
        """One claim."""
        answer = self._claim(claim, None, budget)
        assert not isinstance(answer, Unmarked)  # noqa: S101 - only a vote can be refused for that
        return answer

    def vote(self, claim: Claim, proposal: int, budget: Budget) -> Granted | Refused | Unmarked:
        """One claim as a node of a quorum."""
        return self._claim(claim, proposal, budget)

    @whole
    def _claim(self, claim: Claim, proposal: int | None, budget: Budget) -> Granted | Refused | Unmarked:
        database = self._enter(budget)
        execute = database.execute
        found = self._begin(database, budget, claim.name)
        seed = 0
        if proposal is not None:
            good = execute(GOOD, (self.nodes,)).fetchone()
            if good is None:
                execute("ROLLBACK")
                return Unmarked()
            (seed,) = good
            execute(USED)
        answer = self._admit(execute, found, claim, proposal, self._now(), seed)
        execute("ROLLBACK" if type(answer) is Refused and claim.place is None else "COMMIT")
        return answer

    def _admit(
        self, execute: Execute, found: tuple[Any, ...], claim: Claim, proposal: int | None, now: float, seed: int = 0
    ) -> Granted | Refused:
        """Decide on a claim, inside a transaction. `found` is the row of LOOK. A fence that is not above `seed` is too old."""
        name, token, ttl, place = claim[:4]
        _, counter, horizon, low, hand, hand_arrival, waits, arrival, holder, fence, expires = found
        if arrival is not None and expires > now and holder != token:
            if place is not None:
                line.join(execute, name, token, place, expires)
            refused = Refused(expires - now, owner_of(holder), (), now, fence=counter)
            return refused._replace(holder=alias_of(holder)) if self.nodes else refused
        if waits:
            execute(line.LEAVE, (name, token))
        ends = now + ttl
        if arrival is not None:
            if expires > now and fence > seed:
                execute(RENEW, (ends, fence, name, arrival))
                if ends < horizon or ends < low:
                    execute(NOTE, (ends, ends))
                return Granted(fence, ttl)
            execute(FORGET, (name, arrival))
        fence = counter + 1
        if proposal is not None:
            fence = fences.propose(fence, proposal, self._wall_ms())
        if fence > MAX_FENCE:
            raise faults.no_fence_left(self.address)
        execute(COUNT, (fence,))
        execute(GRANT, (name, fence, token, fence, ends))
        if ends < horizon or ends < low:
            execute(NOTE, (ends, ends))
        if now >= horizon:
            self._sweep(execute, Walk(horizon, min(low, ends), hand, hand_arrival), now)
        self._seen = fence
        return Granted(fence, ttl)

    def extend(self, lease: Renewal, budget: Budget) -> Granted | Gone:
        """One extension."""
        return self.renew((lease,), budget)[0]

    @whole
    def renew(self, leases: Sequence[Renewal], budget: Budget) -> list[Granted | Gone]:
        """Many extensions."""
        if not leases:
            return []
        if (highest := max(lease.fence for lease in leases)) > MAX_FENCE:
            raise UsageError(f"a fence is below 2**53, {highest} is not; nothing was written")
        database = self._enter(budget)
        execute = database.execute
        _, counter, horizon, low, _, _, _, *found = self._begin(database, budget, leases[0].name)  # the first comes with it
        now = self._now()
        answers: list[Granted | Gone] = []
        high, soonest = counter, inf
        for name, token, ttl, fence in leases:
            arrival, holder, stored, expires = found or execute(HOLDER, (name,)).fetchone() or NOBODY
            found = []
            if holder != token or expires <= now:
                answers.append(Gone(taken=arrival is not None and expires > now))
                continue
            raised = max(stored, fence)
            execute(RENEW, (now + ttl, raised, name, arrival))
            answers.append(Granted(raised, ttl))
            high, soonest = max(high, raised), min(soonest, now + ttl)
        if high > counter:
            execute(COUNT, (high,))
            self._seen = max(self._seen, high)
        if soonest < horizon or soonest < low:
            execute(NOTE, (soonest, soonest))
        execute("COMMIT")
        return answers

    @whole
    def release(self, name: str, token: str, budget: Budget, *, proposal: int = 0) -> bool:
        """One release."""
        database = self._enter(budget)
        # A single statement is its own transaction, and cheaper than BEGIN and COMMIT around one.
        if self._patiently(database, budget, RELEASE, (name, token, self._now(), name)).rowcount:
            return True
        execute = database.execute
        found = self._begin(database, budget, name)
        held, served = self._vacate(execute, found, name, token, self._now(), proposal)
        if not held:
            execute(line.LEAVE, (name, token))
        execute("COMMIT")
        if served is not None:
            database.leave()  # whoever is stopped from here on keeps nobody waiting
            inbox.send(*served)
        return held

    @whole
    def hand_over(
        self, name: str, token: str, heir: Claim, before: int, budget: Budget, *, proposal: int = 0
    ) -> Handed | Unmarked:
        """One release and the heir's claim."""
        database = self._enter(budget)
        execute = database.execute
        found, now = self._begin(database, budget, name), self._now()
        if found[8] == token and found[-1] > now:
            execute(line.LEAVE, (name, heir.token))  # or it might be served in its own absence
        held, served = self._vacate(execute, found, name, token, now, proposal, before, token if token == heir.token else "")
        if not held and token != heir.token:  # else it is a claim, and keeps its place
            execute(line.LEAVE, (name, token))
        answer: Granted | Refused | Unmarked = Unmarked()
        if not self._forgetful(execute):
            if self.nodes:
                execute(USED)
            look = execute(LOOK, (heir.name, heir.name)).fetchone()
            answer = self._admit(execute, look, heir, proposal if self.nodes else None, now)
        execute("COMMIT")
        if served is not None:
            database.leave()  # whoever is stopped from here on keeps nobody waiting
            inbox.send(*served)
        return answer if isinstance(answer, Unmarked) else Handed(held, answer)

    @whole
    def retreat(self, claim: Claim, longest: float, budget: Budget) -> int:
        """Give back and stand in line."""
        database = self._enter(budget)
        execute = database.execute
        _, counter, *_, arrival, holder, _, _ = self._begin(database, budget, claim.name)
        if holder == claim.token:
            execute(FORGET, (claim.name, arrival))
        if claim.place is not None:
            line.join(execute, claim.name, claim.token, claim.place, self._now() + longest)
        execute("COMMIT")
        return int(counter)

    def _vacate(
        self,
        execute: Execute,
        found: tuple[Any, ...],
        name: str,
        token: str,
        now: float,
        proposal: int,
        before: int = line.EVERYBODY,
        own: str = "",
    ) -> tuple[bool, tuple[str, Announced] | None]:
        """End the token's lease and write the name for the next in line who arrived before `before`, inside a transaction.

        Whether it held the name; and whom to tell what, after the commit. With `own`, which is the token, it is kept unless
        somebody stands before it.
        """
        _, counter, *_, waits, arrival, holder, _, expires = found
        if holder != token:
            return False, None
        if expires <= now:
            execute(FORGET, (name, arrival))
            return False, None
        serves = waits and counter < MAX_FENCE and not self._forgetful(execute)
        waiter = line.following(execute, name, before, own) if serves else None
        if not own or waiter is not None:
            execute(FORGET, (name, arrival))
        if waiter is None:
            return True, None
        if self.nodes:
            execute(USED)
        claim = Claim(name, waiter.token, waiter.ttl)
        granted = self._admit(execute, (*found[:7], *NOBODY), claim, proposal if self.nodes else None, now)
        assert isinstance(granted, Granted)  # noqa: S101 - nobody has it
        return True, (waiter.inbox, Announced(name, waiter.token, granted.fence, granted.ttl, now))

    @whole
    def inspect(self, name: str, budget: Budget) -> Entry:
        """One look. Makes no file: where there is none, nobody holds anything."""
        if self._database is None and not self._closed and not size_of(self._place.prepare(make=False)):
            return free(name)
        database = self._enter(budget)
        *_, arrival, holder, fence, expires = self._begin(database, budget, name)
        now = self._now()
        waiting, waiters = line.shown(database.execute, name, now)
        database.execute("ROLLBACK")
        held = arrival is not None and expires > now
        entry = Entry(name, True, owner_of(holder), expires - now, fence) if held else free(name)
        return entry._replace(waiting=waiting, waiters=waiters)

    def _sweep(self, execute: Execute, walk: Walk, now: float) -> None:
        rows = execute(NEXT, (walk.hand_name, walk.hand_arrival, STEP)).fetchall()
        further, dead = walked(walk, rows, now)
        for name, arrival in dead:
            execute(FORGET, (name, arrival))
        if len(rows) < STEP:  # the walk is over: the line comes last
            further = further._replace(horizon=min(further.horizon, line.sweep(execute, now)))
        execute(SWEPT, further)
