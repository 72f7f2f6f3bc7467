"""Asks the nodes of a quorum: all at once, leaving out those that are silent, and no longer than the outcome is open.

Every question goes to all nodes that are well before any answer is awaited. It is over as soon as the missing answers cannot
change the outcome, so a node that is frozen or far away costs nothing.

A node that failed, or owes an answer, *rests*: it is not asked. Resting nodes are asked after all in two ways (`late`):
- as a hedge, when those that were asked keep silent for a moment
- in a second round, when too few of those that were asked have answered and there is time left

Nodes are known by their index in the list of members.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from ...core.quorum import SILENT, Health, Quarantine, table, verdict_of, votes_needed
from ...errors import InterlockError, NoQuorum, Unavailable, UsageError, Vote
from ...runtime.base import Runtime
from ..port import Member

SOON = 0.001  # seconds, the least that a node is given to answer
LOOK_AGAIN = 0.1  # at most so long between two looks at whether enough have answered
HEDGE, LONGEST_HEDGE = 2 * SILENT, 0.25  # how long others may be silent before a resting node is asked after all


class Node:
    """A member and what this client knows of it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.health = Health()
        self.quarantine: Quarantine | None = None
        self.measured_at = -inf  # when we last asked how long it has to wait
        self.vetted = False
        self.ours = False  # it had a marker for our list once: it is one of us, by whatever address we know it

    def sentence(self, now: float) -> str:
        """Why it casts no vote, and until when, for an operator."""
        lost = "lost its memory, or was restarted;"
        until = inf if self.quarantine is None else self.quarantine.until
        if until == inf:
            return f"{lost} votes again when a quorum of the others has said what it may have forgotten, and that is over"
        return f"{lost} votes again in {max(until - now, 0):.1f} s at the earliest"


class Question:
    """One question to several nodes: what each is asked, what its answer counts for, and when the answers are enough."""

    finish = False  # the requests matter although their answers may not be awaited: see `Runtime.race`
    late = False  # resting nodes are asked too, when the others keep silent or too few of them answer
    looks = False  # `enough` is looked at now and then, although some have not answered
    within = inf  # seconds after which no resting node is asked any more

    def ask(self, index: int, member: Member, after: float) -> Coroutine[Any, Any, Any]:
        """The request to one node, `after` so many seconds since the first nodes were asked."""
        raise NotImplementedError

    def count(self, index: int, answer: Any) -> bool:
        """A node has answered, or failed (then it is the error). True: the outcome is certain."""
        return False

    def enough(self) -> bool:
        """True ends it although some have not answered."""
        return False

    def asks_also(self, nodes: Sequence[int]) -> None:
        """These resting nodes are asked now."""

    def needs_more(self) -> bool:
        """Too few have answered for an outcome: the resting nodes shall decide."""
        return False


class Collect(Question):
    """A plain question to each node. All answers are awaited, unless `count` or `enough` says otherwise."""

    def __init__(
        self,
        ask: Callable[[int, Member], Coroutine[Any, Any, Any]],
        count: Callable[[int, Any], bool] = lambda index, answer: False,
        enough: Callable[[], bool] | None = None,
        finish: bool = False,
    ) -> None:
        self._ask, self._count, self._enough = ask, count, enough
        self.finish, self.looks = finish, enough is not None

    def ask(self, index: int, member: Member, after: float) -> Coroutine[Any, Any, Any]:
        """See `Question.ask`."""
        return self._ask(index, member)

    def count(self, index: int, answer: Any) -> bool:
        """See `Question.count`."""
        return self._count(index, answer)

    def enough(self) -> bool:
        """See `Question.enough`."""
        return self._enough is not None and self._enough()


class Poll:
    """What came of a question."""

    __slots__ = ("_poller", "answers", "asked", "began", "over", "times")

    def __init__(self, poller: Poller, asked: Sequence[int], began: float) -> None:
        self._poller = poller
        self.asked = asked
        self.began = began
        self.answers: dict[int, Any] = {}  # and errors, as they are
        self.times: dict[int, float] = {}  # when they came
        self.over = False  # the first round: no hedge is needed any more

    def votes(self) -> list[Vote]:
        """What each node said, in words. Made only when they are read: words take time."""
        return [self._poller.in_words(index, self) for index in range(len(self._poller.nodes))]


class Poller:
    """The nodes, which of them to ask, and how."""

    def __init__(self, members: Sequence[Member], runtime: Runtime, address: str) -> None:
        self.nodes = [Node(member) for member in members]
        self.needed = votes_needed(len(members))
        self.address = address
        self.took = 0.0  # seconds, the last vote
        self.light = all(member.capabilities.light for member in members)
        self._runtime = runtime

    def able(self) -> list[int]:
        """The nodes that may vote: they have their memory, as far as we know."""
        return [index for index, node in enumerate(self.nodes) if node.quarantine is None]

    def ready(self) -> list[int]:
        """The nodes to ask. One that failed or is silent rests, unless its vote is needed; then all that may vote are asked."""
        now, ready = self._runtime.now(), []
        for index, node in enumerate(self.nodes):
            if (
                node.quarantine is None
                and node.health.retry_at <= now
                and (node.member.lag() <= SILENT or self._probe(node, now))
            ):
                ready.append(index)
        return ready if len(ready) >= self.needed else self.able()

    def ready_to_extend(self) -> Sequence[int]:
        """The nodes to ask for an extension. Also those in quarantine: a node extends only what it holds."""
        ready, now = self.ready(), self._runtime.now()
        return sorted({*ready, *(i for i, node in enumerate(self.nodes) if node.quarantine and node.health.retry_at <= now)})

    def resting(self, asked: Sequence[int]) -> list[int]:
        """The nodes that may vote and were not asked."""
        return [index for index in self.able() if index not in asked]

    def _probe(self, node: Node, now: float) -> bool:
        """A silent node rests. True if it has rested already: then it is tried once more, and rests longer after that."""
        probe = node.health.retry_at > 0
        node.health.failed(now, self._runtime.jitter())
        return probe

    async def poll(self, asked: Sequence[int], question: Question) -> Poll:
        """Ask these nodes at once and count until it is enough; then the resting nodes, if the question needs them."""
        poll = Poll(self, asked, self._runtime.now())
        hedges = self.resting(asked) if question.late and len(asked) < len(self.nodes) else []
        await self._round(poll, asked, hedges, question)
        if question.late and question.needs_more() and (resting := self.resting(poll.asked)):
            after = self._runtime.now() - poll.began
            if after < question.within:
                question.asks_also(resting)
                poll.asked = [*poll.asked, *resting]
                await self._round(poll, resting, [], question, after)
        return poll

    async def _round(
        self, poll: Poll, asked: Sequence[int], hedges: Sequence[int], question: Question, after: float = 0.0
    ) -> None:
        nodes, now = self.nodes, self._runtime.now
        began, answers, times = now(), poll.answers, poll.times
        places = [*asked, *hedges] if hedges else asked
        over = False

        def ended(place: int, outcome: Any) -> bool:
            nonlocal over
            index = places[place]
            if hedges and index not in poll.asked:  # it was not needed
                return False
            answers[index] = outcome
            times[index] = moment = now()
            health = nodes[index].health
            if isinstance(outcome, Unavailable):
                health.failed(moment, self._runtime.jitter())
            elif health.retry_at:
                health.answered()
            if question.count(index, outcome) or len(answers) == len(poll.asked):
                poll.over = over = True  # here, not when the race has returned: a hedge may be due in the same turn
            return over

        def bored() -> float:
            nonlocal over
            if question.enough():
                poll.over = over = True
            return 0.0 if over else min(max(SILENT, now() - began), LOOK_AGAIN)

        work = [question.ask(index, nodes[index].member, after) for index in asked]
        work += [self._hedge(index, poll, question) for index in hedges]
        try:
            await self._runtime.race(work, ended, question.finish, bored if question.looks else None, self.light)
        finally:
            poll.over = True

    async def _hedge(self, index: int, poll: Poll, question: Question) -> Any:
        """Ask a resting node after a moment, unless the others have settled it by then, or it owes answers.

        The moment is longer than the last vote took: nodes that are all far away are not silent.
        """
        await self._runtime.sleep(min(max(HEDGE, 2 * self.took), LONGEST_HEDGE))
        node = self.nodes[index]
        if poll.over or node.quarantine is not None or node.member.lag() > SILENT or (question.looks and question.enough()):
            return None
        poll.asked = [*poll.asked, index]
        question.asks_also([index])
        return await question.ask(index, node.member, self._runtime.now() - poll.began)

    # --- words ----------------------------------------------------------------------------------------------------------

    def in_words(self, index: int, poll: Poll) -> Vote:
        """What a node said."""
        node = self.nodes[index]
        verdict, detail = verdict_of(poll.answers.get(index))
        if node.quarantine is not None:
            verdict, detail = "quarantined", node.sentence(self._runtime.now())
        elif index not in poll.asked:
            verdict = "resting" if node.health.retry_at else "silent"
        latency = poll.times[index] - poll.began if index in poll.times else None
        return Vote(node.member.address, verdict, latency, detail)

    def no_quorum(self, what: str, poll: Poll, needed: int = 0) -> InterlockError:
        """The error for too few answers (of those `needed`, else of a quorum), with what each node said.

        It is the nodes' own error when they all say that the question is wrong.
        """
        answers = poll.answers
        wrong = [answer for answer in answers.values() if isinstance(answer, UsageError)]
        if wrong and (len(wrong) >= self.needed or len(wrong) == len(answers)):  # not the nodes' fault
            return wrong[0]
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(answer, InterlockError):
                raise answer  # a defect of ours, not an outage
        said = tuple(poll.votes())
        text = f"{what}: {needed or self.needed} of {len(self.nodes)} nodes must answer.\n{table(said)}\n"
        return NoQuorum(text, backend=self.address, votes=said)
