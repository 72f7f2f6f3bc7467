"""A simulated client: the shipped flows and keeper on simulated members, and tasks that use the lock as people do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from ...backends.quorum import open_quorum
from ...core.claim import Announced
from ...core.lease import Hold, Policy, margin
from ...errors import AcquireTimeout, InterlockError
from ...flow import acquire as acquiring
from ...flow import hold as holding
from ...flow.attempt import Attempt
from ...flow.closing import close
from ...flow.context import Context
from ...flow.extend import extend
from ...flow.renewing.keeper import Keeper
from .kernel import Aim, Future, Process, Struck
from .member import SimMember
from .runtime import SimRuntime
from .wire import Link

if TYPE_CHECKING:
    from .world import World

DAWDLING, DAWDLE = 0.25, 0.004  # how often a listener is slow, and at most how slow
TRIES = 24  # of somebody who does not wait in line but tries again and again: it is there at the moment a lease ends
PATIENCE = 60  # questions without an answer, after the faults are over, before somebody is called stuck


class Client:
    """One process with a client in it."""

    def __init__(self, world: World, process: Process, runtime: SimRuntime) -> None:
        self.world, self.process, self.runtime = world, process, runtime
        self.links = [Link(world.network, process, node) for node in world.nodes]
        self.face = Face(self, "")
        self.faces = [self.face]

    @property
    def context(self) -> Context:
        """That of the client as it is now."""
        return self.face.context

    async def close(self) -> None:
        """See `Face.close`."""
        await self.face.close()

    def reopen(self) -> Face:
        """Those who come from now on find another client in its place. The one before, which is to be closed."""
        before = self.face
        self.face = Face(self, f"#{len(self.faces)}")
        self.faces.append(self.face)
        return before


class Face:
    """What `AsyncClient` is: a context and its keeper. `tokens` are those that it has made."""

    def __init__(self, client: Client, number: str) -> None:
        world, runtime = client.world, client.runtime.another()
        self.tokens: set[str] = set()
        minted = runtime.minted

        def mint(token: str) -> None:
            self.tokens.add(token)
            minted(token)

        runtime.minted = mint
        members = [SimMember(link, runtime, number) for link in client.links]
        backend = members[0] if len(members) == 1 else open_quorum(members, runtime)
        plan, backend = world.plan, _dawdling(backend, runtime, world.kernel.random)
        self.context = Context.of(backend, runtime, plan.request_timeout, plan.drift)
        self.keeper = Keeper(self.context)

    async def close(self) -> None:
        """As `AsyncClient.close`."""
        await close(self.context, self.keeper)


def _dawdling(backend: Any, runtime: SimRuntime, random: Random) -> Any:
    """Its listener does not always get on at once with what it has heard: it may be a thread, and others run."""
    hear = backend.hear

    async def slowly(until: float) -> Sequence[Announced]:
        heard: Sequence[Announced] = await hear(until)
        if heard and random.random() < DAWDLING:
            await runtime.sleep(random.random() * DAWDLE)
        return heard

    backend.hear = slowly
    return backend


class Actor:
    """One task of a client: takes the lock, touches the counter, gives the lock back; again and again."""

    def __init__(self, client: Client, number: int) -> None:
        self.client, self.world = client, client.world
        self.name = f"{client.process.name}.{number}"
        self._runtime, self._random = client.runtime, client.world.kernel.random
        self._turn = 0
        self._face = client.face
        self._believed: dict[str, float] = {}  # the deadlines of leases whose release has not begun
        self.holds: dict[str, Hold] = {}  # the same leases

    async def work(self) -> None:
        """All its turns, and a last one after the faults are over."""
        plan, random = self.world.plan, self._random
        await self._runtime.sleep(random.random() * random.choice((0.001, 0.01)))
        for _ in range(plan.turns):
            await self._guarded(final=False)
            if "brief" in plan.faults:
                self.world.close(self.client, self.client.reopen())
            await self._runtime.sleep(
                random.random() * plan.ttl * random.choice((0.01, 0.1, 1.0, 4.0 if plan.forgetful else 1.0))
            )
        left = plan.span - self.world.kernel.now
        if left > 0:
            await self._runtime.sleep(left * self.client.process.rate + 0.001)
        await self._guarded(final=True)

    async def _guarded(self, final: bool) -> None:
        """A turn in a task of its own, which may be cancelled."""
        self._turn += 1
        self._face = self.client.face  # which may be another than the last time: see `faults._close`
        lease = f"{self.name}#{self._turn}"
        over = Future()
        task = self._runtime.task(self._take_turn(lease, final), lambda task: over.settle())
        task.op = lease
        if "cancel" in self.world.plan.faults and not final and self._random.random() < 0.6:
            task.fuse = self._random.randint(1, 25)
        if "struck" in self.world.plan.faults and not final and self._random.random() < 0.6:
            task.aim = Aim(self._random.randint(1, 12), lambda: self.world.strike(self.name, "a signal's handler raises"))
        await over
        if isinstance(task.error, Exception) and not isinstance(task.error, Struck):
            self.world.record(self.name, "defect", note=f"{lease}: {task.error!r}")
        self.world.turn_ended(self.client, lease)

    async def _take_turn(self, lease: str, final: bool) -> None:
        plan, random, context = self.world.plan, self._random, self._face.context
        name, renew = "stock", random.random() < 0.5
        policy = Policy(
            renew,
            max_hold=plan.ttl * 1.5 if renew and random.random() < 0.1 else inf,
            delay=plan.ttl * 0.2 if random.random() < 0.1 else 0.0,
        )
        watched = renew or random.random() < 0.5
        timeout = random.choice((0.0, plan.ttl * 0.3, plan.ttl * 1.5, None))
        once, fair = random.random() < 0.25, random.random() < 0.2
        attempt = Attempt(name, plan.ttl, policy, fair=fair)
        for number in range(PATIENCE if final else 1):
            self.world.record(self.name, "ask", name=name, lease=lease)
            try:
                if final:
                    hold: Hold | None = await acquiring.acquire(context, attempt, 30 * plan.ttl + 30)
                elif once:
                    hold = await self._try(lease, name, policy, TRIES if random.random() < 0.6 else 1)
                else:
                    hold = await acquiring.acquire(context, attempt, timeout)
            except InterlockError as error:
                stuck = final and (number == PATIENCE - 1 or isinstance(error, AcquireTimeout))
                why = f"{type(error).__name__} {getattr(error, 'cause', '')}".rstrip()
                self.world.record(self.name, "not", name=name, lease=lease, note=why, value=int(stuck))
                if stuck or not final:
                    return
                await self._runtime.sleep(plan.ttl / 4)
                continue
            except BaseException:
                self.world.record(self.name, "not", name=name, lease=lease, note="cancelled")
                raise
            if hold is None:
                self.world.record(self.name, "not", name=name, lease=lease, note="held by somebody else")
            else:
                await self._use(lease, hold, watched)
            return

    async def _try(self, lease: str, name: str, policy: Policy, tries: int) -> Hold | None:
        hold = None
        for number in range(tries):
            if number:
                await self._runtime.sleep(self.world.plan.ttl * self._random.uniform(0.005, 0.05))
                self.world.record(self.name, "ask", name=name, lease=lease)
            hold = await acquiring.try_acquire(self._face.context, Attempt(name, self.world.plan.ttl, policy))
            if hold is not None:
                break
        return hold

    async def _use(self, lease: str, hold: Hold, watched: bool) -> None:
        context, record = self._face.context, self.world.record
        watch = self._watcher(lease, hold)
        self.world.owner[hold.token] = lease
        record(
            self.name,
            "got",
            name=hold.name,
            lease=lease,
            fence=hold.fence,
            until=self.client.process.host(hold.deadline),
            margin=margin(hold.span) / self.client.process.rate,
            note="watched" if watched else "",
        )
        self.world.vouch(self.name, lease, hold, self.client.process.host(hold.deadline))
        self._believed[lease], self.holds[lease] = hold.deadline, hold
        hold.watch(watch)
        if watched:
            self._face.keeper.keep(hold)
        error: BaseException | None = None
        try:
            with suppress(InterlockError):
                await self._work(lease, hold)
        except BaseException as cancelled:
            error = cancelled
            raise
        finally:
            record(self.name, "leave", name=hold.name, lease=lease)
            del self._believed[lease], self.holds[lease]
            unknown = "unknown"
            try:
                with suppress(InterlockError):
                    await holding.leave(context, hold, error)
            except Struck:
                unknown = "struck"
                if not hold.released and not hold.gone:
                    self._face.keeper.forsake(hold)  # as `api.blocks` does
                raise
            finally:
                if not hold.released and not hold.gone:
                    hold.dropped = True  # as when nobody has the lease any more
                note = "released" if hold.released else hold.gone or unknown
                record(self.name, "left", name=hold.name, lease=lease, note=note)

    def unkept(self, face: Face) -> None:
        """Its client is closed: a lease of that is not renewed any more, and nobody is told of its end."""
        if self._face is face:
            for lease in self._believed:
                self.world.record(self.name, "unkept", lease=lease)

    def _watcher(self, lease: str, hold: Hold) -> Callable[[str], None]:
        def watch(what: str) -> None:
            if what == "landed":
                self._moved(lease, hold)
            elif what == "lost":
                rate, until = self.client.process.rate, self.client.process.host(hold.deadline)
                early = margin(hold.span) / rate
                self.world.record(self.name, "told", name=hold.name, lease=lease, until=until, margin=early, note=hold.gone)

        return watch

    def _moved(self, lease: str, hold: Hold) -> None:
        """Write down what is believed now, if that has changed."""
        known = self._believed.get(lease)
        if known is not None and hold.deadline != known and (not hold.gone or hold.deadline > known):
            self._believed[lease] = hold.deadline
            until = self.client.process.host(hold.deadline)
            self.world.record(self.name, "kept", name=hold.name, lease=lease, fence=hold.fence, until=until)

    async def _work(self, lease: str, hold: Hold) -> None:
        """Read, work, write. Some stop when they are told to, some do not."""
        context, random, plan, runtime = self._face.context, self._random, self.world.plan, self._runtime
        counter = self.world.counter
        polite = random.random() < 0.7
        value = await counter.enter(runtime, hold.name, lease, hold.fence)
        if value is None:
            return
        long = random.random() < 0.4 and self.world.kernel.now < plan.span
        period = plan.ttl * (random.uniform(0.3, 1.8) if long else random.uniform(0.0, 0.1))
        if polite:
            await holding.wait_lost(context, hold, period)
        else:
            await runtime.sleep(period)
        self._say(lease, hold)
        if random.random() < 0.2:
            await self._extend(hold, plan.ttl * random.uniform(0.5, 1.5), lease)
            self._say(lease, hold)
        if not polite or not hold.lost(runtime.now()):
            await counter.write(runtime, hold.name, lease, hold.fence, value + 1)

    def _say(self, lease: str, hold: Hold) -> None:
        """Write down what it says when it is asked how long it has left."""
        now = self._runtime.now()
        until = self.client.process.host(now + hold.remaining(now))
        self.world.record(self.name, "says", name=hold.name, lease=lease, until=until)

    async def _extend(self, hold: Hold, ttl: float, lease: str) -> None:
        """As `AsyncLease.extend`."""

        def moved() -> None:
            if hold.teller is not None and not hold.over:
                self._face.keeper.keep(hold)
            self._moved(lease, hold)

        try:
            await extend(self._face.context, hold, ttl, moved)
        finally:
            moved()
