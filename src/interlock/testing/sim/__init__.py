"""A deterministic simulator: the code that ships, on simulated nodes, a simulated network and virtual time.

    simulate(Plan.of(seed, ["delay", "crash"]))   one history, judged: `Outcome`
    interlock sim --seed 7 --faults delay,crash   the same on the command line, as a timeline

What is real: `core`, `flow` (acquire, wait, hold, gate, hub, keeper), `backends.quorum` with all its parts, and the memory
store as each node's state. What is simulated: time, processes and tasks (`kernel`, `runtime`), connections (`wire`), the
transport under the port (`path`, by the rules of `backends.redis.aio`), and what goes wrong (`faults`).

    kernel    virtual time, tasks, processes that stop      runtime   what flows get in place of asyncio
    wire      connections and what befalls messages         node      a store with a clock of its own
    path      requests, replies and what is owed            member    the port, seen from a client
    client    a client, and tasks that use its lock         resource  the counter that the lock protects
    plan      what a seed decides, and what is promised     faults    what strikes when
    world     one history, from start to verdict            mutants   planted bugs that the checker must find
    holes     more of them, which tests play by hand

Rules of the package: nothing reads a clock, draws a random number or iterates over a set but by the seed's generator; the same
seed gives the same timeline, byte for byte. To write the timeline changes nothing in the history.
"""

from __future__ import annotations

from .plan import FAULTS, Plan
from .world import Outcome, simulate

__all__ = ["FAULTS", "Outcome", "Plan", "simulate"]
