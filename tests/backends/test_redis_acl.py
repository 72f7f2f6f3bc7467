"""A user who may not do everything: each script under a user who lacks each single command in turn, what the first claim says
of it, and the rules that the docs give."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.backends import redis as package
from interlock.backends.redis.backend import RedisBackend
from interlock.backends.redis.refusals import RULES
from interlock.core.claim import Claim, Granted, Place, Refused, Renewal
from interlock.core.quorum import Marker
from interlock.errors import Unavailable
from interlock.runtime.blocking import run
from interlock.testing import Node
from interlock.testing.faces import COLOURS, Kit, run_body

SCRIPTS = Path(package.__file__).parent
COMMAND = re.compile(r"""(?:\b(?:call|pcall|try|write|may|may_write|ask)\(|\{)'([A-Z]+)'""")
COMMANDS = sorted({word for script in SCRIPTS.glob("*.lua") for word in COMMAND.findall(script.read_text())})
PASSWORDS = {"admin": "s3cret", "user": "pass"}
WITHIN = 5.0
NODES = "a", "b", "c"
LINE, FENCE, ROLL = "interlock:{n}:line", "interlock:{n}:fence", "interlock:roll"
OPTIONAL = {"ZCARD"}  # for `interlock status`
QUORUM_ONLY = {"HMGET", "HSET", "EXISTS", "INFO", "ZRANDMEMBER", "ZREVRANGE"}


def token(letter: str) -> str:
    return letter * 32 + "~host:1"


class Stage:
    """A node, a client whose user lacks nothing yet, and one who may do everything."""

    def __init__(self, node: Node, *, elected: bool = False) -> None:
        self.node = node
        at = f"127.0.0.1:{node.port}"
        node.command("ACL", "SETUSER", "user", "reset", "on", ">pass", "~*", "&*", "+@all")
        node.command("FLUSHALL")
        self.clients = [interlock.Client(f"redis://{who}@{at}") for who in ("user:pass", ":s3cret")]
        self.line, self.other = (backend_of(client) for client in self.clients)
        self.box, self.other_box = run(self.line.open_inbox(WITHIN)), run(self.other.open_inbox(WITHIN))
        assert isinstance(run(self.line.claim(Claim("warm", token("w"), 5.0), WITHIN)), Granted)
        if elected:
            self.line.elect(NODES, lambda token: False)
            self.other.elect(NODES, lambda token: False)
            enroll(self.other)

    def claim(self, who: str, *, place: int = 0, ttl: float = 20.0) -> Claim:
        return Claim("n", token(who), ttl, Place(place, self.box, 3.0) if place else None)

    def stranger(self, who: str, *, place: int = 0) -> None:
        """The other client takes the lock, or stands in line."""
        seat = Place(place, self.other_box, 3.0) if place else None
        answer = run(self.other.claim(Claim("n", token(who), 20.0, seat), WITHIN))
        assert isinstance(answer, Refused if place else Granted)

    def dead(self, place: int) -> None:
        """Somebody stands in line who cannot be told."""
        self.node.command("ZADD", LINE, place, f"{token('d')} interlock:inbox:dead 1000")
        self.node.command("PEXPIRE", LINE, 3_600_000)

    def stored(self) -> dict[bytes, tuple[Any, bool]]:
        """Everything that is stored, but for counters and what a roll notes: a number may be spent."""
        keys = [key for key in self.node.command("KEYS", "*") if not key.endswith((b":fence", b":long"))]
        values = [b"" if key == ROLL.encode() else self.node.command("DUMP", key) for key in keys]
        return {key: (value, self.node.command("PTTL", key) > 0) for key, value in zip(keys, values, strict=True)}

    def close(self) -> None:
        for client in self.clients:
            client.close()


def enroll(line: RedisBackend) -> None:
    assert run(line.enroll(Marker(NODES), run(line.roll(WITHIN, mark=True)).loss, WITHIN))


def backend_of(client: interlock.Client) -> RedisBackend:
    backend = client._context.backend
    assert isinstance(backend, RedisBackend)
    return backend


Scene = Callable[[Stage], Callable[[], Coroutine[Any, Any, Any]]]
SCENES: dict[str, tuple[Scene, bool]] = {}


def scene(name: str, *, elected: bool = False) -> Callable[[Scene], Scene]:
    """What a test sets up with all rights, and the request that is then made with less."""

    def add(make: Scene) -> Scene:
        SCENES[name] = make, elected
        return make

    return add


@scene("claim of a free name")
def _free(on: Stage) -> Callable[[], Any]:
    return lambda: on.line.claim(on.claim("a"), WITHIN)


@scene("claim of a held name")
def _held(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    return lambda: on.line.claim(on.claim("a"), WITHIN)


@scene("claim with a place, the first in line")
def _place(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    return lambda: on.line.claim(on.claim("a", place=1), WITHIN)


@scene("claim with a place, behind another")
def _behind(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    on.stranger("c", place=1)
    return lambda: on.line.claim(on.claim("a", place=2), WITHIN)


@scene("claim of one who stands in line already")
def _again(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    run(on.line.claim(on.claim("a", place=1), WITHIN))
    return lambda: on.line.claim(on.claim("a", place=1), WITHIN)


@scene("claim of one in line, once the name is free")
def _at_last(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    run(on.line.claim(on.claim("a", place=1), WITHIN))
    on.node.command("DEL", "n")
    return lambda: on.line.claim(on.claim("a", place=1), WITHIN)


@scene("claim of the holder, whose counter is lost")
def _repeated(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    on.node.command("DEL", FENCE)
    return lambda: on.line.claim(on.claim("a"), WITHIN)


@scene("release with nobody in line")
def _release(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    return lambda: on.line.release("n", token("a"), WITHIN)


@scene("release with somebody in line")
def _serves(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    on.stranger("b", place=1)
    return lambda: on.line.release("n", token("a"), WITHIN)


@scene("release with a dead one and another in line, and a counter that is lost")
def _passes_over(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    on.dead(1)
    on.stranger("b", place=2)
    on.node.command("DEL", FENCE)
    return lambda: on.line.release("n", token("a"), WITHIN)


@scene("release of one who waits")
def _leaves(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    run(on.line.claim(on.claim("a", place=1), WITHIN))
    return lambda: on.line.release("n", token("a"), WITHIN)


@scene("hand-over before everybody")
def _barges(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    on.stranger("b", place=1)
    return lambda: on.line.hand_over("n", token("a"), on.claim("e", place=2), 0, WITHIN)


@scene("hand-over with somebody earlier in line")
def _in_order(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    on.stranger("b", place=1)
    return lambda: on.line.hand_over("n", token("a"), on.claim("e", place=2), 2, WITHIN)


@scene("hand-over with a dead one in line")
def _to_the_heir(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    on.dead(1)
    return lambda: on.line.hand_over("n", token("a"), on.claim("e", place=2), 2, WITHIN)


@scene("hand-over of what is not held")
def _of_nothing(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    return lambda: on.line.hand_over("n", token("a"), on.claim("e", place=2), 2, WITHIN)


@scene("extend")
def _extend(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    return lambda: on.line.extend("n", token("a"), 50.0, WITHIN, 7)


@scene("extend, the counter is lost")
def _extend_lost(on: Stage) -> Callable[[], Any]:
    run(on.line.claim(on.claim("a"), WITHIN))
    on.node.command("DEL", FENCE)
    return lambda: on.line.extend("n", token("a"), 50.0, WITHIN, 7)


@scene("renewal of several", elected=True)
def _renew(on: Stage) -> Callable[[], Any]:
    leases = [Renewal(f"r{number}", token("a"), 50.0, 7) for number in range(3)]
    for lease in leases:
        assert isinstance(run(on.line.claim(Claim(lease.name, token("a"), 20.0), WITHIN)), Granted)
    on.node.command("DEL", "interlock:{r1}:fence")
    return lambda: on.line.renew(leases, WITHIN)


@scene("inspect")
def _inspect(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    on.stranger("c", place=1)
    return lambda: on.line.inspect("n", WITHIN)


@scene("vote for a free name", elected=True)
def _vote(on: Stage) -> Callable[[], Any]:
    return lambda: on.line.vote(on.claim("a"), 0, WITHIN)


@scene("vote of one in line, once the name is free", elected=True)
def _vote_in_line(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    run(on.line.vote(on.claim("a", place=1), 0, WITHIN))
    on.node.command("DEL", "n")
    return lambda: on.line.vote(on.claim("a", place=1, ttl=90.0), 0, WITHIN)


@scene("vote with a place", elected=True)
def _vote_refused(on: Stage) -> Callable[[], Any]:
    on.stranger("b")
    return lambda: on.line.vote(on.claim("a", place=1), 0, WITHIN)


@scene("release by a node of a quorum", elected=True)
def _node_serves(on: Stage) -> Callable[[], Any]:
    run(on.line.vote(on.claim("a"), 0, WITHIN))
    on.stranger("b", place=1)
    return lambda: on.line.release("n", token("a"), WITHIN, 2**52)


@scene("hand-over by a node of a quorum", elected=True)
def _node_hands(on: Stage) -> Callable[[], Any]:
    run(on.line.vote(on.claim("a"), 0, WITHIN))
    on.stranger("b", place=1)
    return lambda: on.line.hand_over("n", token("a"), on.claim("e", place=2), 2, WITHIN, 2**52)


@scene("hand-over to itself", elected=True)
def _to_itself(on: Stage) -> Callable[[], Any]:
    run(on.line.vote(on.claim("a"), 0, WITHIN))
    on.dead(1)
    return lambda: on.line.hand_over("n", token("a"), on.claim("a", place=2), 2, WITHIN)


@scene("retreat", elected=True)
def _retreat(on: Stage) -> Callable[[], Any]:
    run(on.line.vote(on.claim("a"), 0, WITHIN))
    return lambda: on.line.retreat(on.claim("a", place=2), 5.0, WITHIN)


@scene("roll of a node without one", elected=True)
def _roll(on: Stage) -> Callable[[], Any]:
    on.node.command("DEL", ROLL)
    return lambda: on.line.roll(WITHIN, mark=True)


@scene("enroll", elected=True)
def _enroll(on: Stage) -> Callable[[], Any]:
    on.node.command("DEL", ROLL)
    loss = run(on.line.roll(WITHIN, mark=True)).loss
    return lambda: on.line.enroll(Marker(NODES, 7, 7), loss, WITHIN)


@pytest.fixture(scope="module", params=["valkey", "redis"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with Node(request.param, password="s3cret") as started:
        yield started


def test_the_commands_are_those_of_the_scripts() -> None:
    assert {"SET", "TIME", "ZPOPMIN", "INCR", "PUBLISH", "HSET", "PEXPIRE", "ZADD"} <= set(COMMANDS)
    outside = {"eval", "evalsha", "subscribe", "ping"}
    rules = {rule.removeprefix("+") for rule in RULES.split() if rule.startswith("+")}
    assert rules == {command.lower() for command in COMMANDS} | outside
    assert RULES in (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    tried = set(re.findall(r"may(?:_write)?\('([A-Z]+)'", (SCRIPTS / "preflight.lua").read_text()))
    assert tried == set(COMMANDS) - OPTIONAL, "what the first claim looks for"


@pytest.mark.parametrize("what", SCENES)
def test_without_one_command_a_script_does_its_work_or_writes_nothing(node: Node, what: str) -> None:
    make, elected = SCENES[what]
    for command in COMMANDS:
        stage = Stage(node, elected=elected)
        try:
            request, before = make(stage), stage.stored()
            node.command("ACL", "SETUSER", "user", f"-{command.lower()}")
            error, answer = said_by(request())
            if error is not None:
                assert error.cause == "auth", f"{command}: {error}"
                assert f"add to its ACL: +{command.lower()}." in str(error), f"{command}: {error}"
                assert stage.stored() == before, f"{command}: refused, and something was written"
            elif what.startswith("release") and answer is True:
                assert node.command("GET", "n") != token("a").encode(), f"{command}: released, and it is still held"
        finally:
            stage.close()


def said_by(request: Coroutine[Any, Any, Any]) -> tuple[Unavailable | None, Any]:
    try:
        return None, run(request)
    except Unavailable as error:
        return error, None


@pytest.mark.parametrize(
    "what", ["release with somebody in line", "hand-over before everybody", "hand-over with somebody earlier in line"]
)
@pytest.mark.parametrize("lacking", ["-publish", "-zpopmin", "-incr", "resetchannels"])
def test_who_may_not_serve_any_more_releases_all_the_same_and_hears_of_it_next_time(
    node: Node, what: str, lacking: str
) -> None:
    make, _ = SCENES[what]
    stage = Stage(node)
    try:
        request = make(stage)
        (standing, _), *_ = [stage.node.command("ZRANGE", LINE, 0, 0, "WITHSCORES")]
        node.command("ACL", "SETUSER", "user", lacking)
        error, _ = said_by(request())
        if error is not None:  # a hand-over that may not be: nothing was done, and the flow releases
            assert run(stage.line.release("n", token("a"), WITHIN)) is True
        assert node.command("GET", "n") != token("a").encode()
        assert standing in node.command("ZRANGE", LINE, 0, -1), "who waits keeps its place, and asks again in its time"
        if "before everybody" in what:
            return  # nobody was to be served
        assert isinstance(run(stage.other.claim(Claim("busy", token("y"), 5.0), WITHIN)), Granted)
        waiting = Claim("busy", token("x"), 5.0, Place(900, stage.box, 3.0))  # it has no room to say so, and is not the next
        assert isinstance(run(stage.line.claim(waiting, WITHIN)), Refused)
        with pytest.raises(
            Unavailable, match=re.escape("&interlock:*" if lacking == "resetchannels" else lacking.replace("-", "+"))
        ):
            run(stage.line.claim(Claim("another", token("z"), 5.0), WITHIN))
    finally:
        stage.close()


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("quorum", [False, True])
def test_the_first_claim_says_all_that_is_missing_in_one_error(node: Node, colour: str, quorum: bool) -> None:
    missing = {f"+{one.lower()}" for one in set(COMMANDS) - OPTIONAL - (set() if quorum else QUORUM_ONLY)}
    node.command("FLUSHALL")
    node.command("ACL", "SETUSER", "user", "reset", "on", ">pass", "~n*", "+@all", *(f"-{rule[1:]}" for rule in missing))

    async def body(kit: Kit) -> None:
        backend: Any = kit.client()._context.backend
        if quorum:
            backend.elect(NODES, lambda token: False)

        async def ask() -> set[str]:
            claim = Claim("n", token("a"), 5.0)
            with pytest.raises(Unavailable, match="Nothing was written; add to its ACL") as caught:
                await (backend.vote(claim, 0, WITHIN) if quorum else backend.claim(claim, WITHIN))
            assert caught.value.cause == "auth"
            assert node.command("KEYS", "*") == []
            return set(str(caught.value).partition("add to its ACL: ")[2].partition(". In all")[0].split())

        # What cannot be told without writing, and taken back without DEL, is said once there is DEL.
        assert await ask() == missing - {"+incr", "+hset"}, "no key can be missing yet: the server looks at the command first"
        node.command("ACL", "SETUSER", "user", "+del", "+time", "+publish", "+get", "+ping")
        missing.difference_update({"+del", "+time", "+publish", "+get"})
        for _ in range(2):  # each time, until it may
            assert await ask() == missing | {"~interlock:*", "&interlock:*"}
        node.command("ACL", "SETUSER", "user", "~interlock:*", "&interlock:*")
        assert await ask() == missing
        node.command("ACL", "SETUSER", "user", *missing)
        if quorum:
            assert await backend.enroll(Marker(NODES), (await backend.roll(WITHIN, mark=True)).loss, WITHIN)
        claim = Claim("n", token("a"), 5.0)
        assert isinstance(await (backend.vote(claim, 0, WITHIN) if quorum else backend.claim(claim, WITHIN)), Granted)
        assert [key for key in node.command("KEYS", "*") if b"none" in key] == []

    run_body(body, f"redis://user:pass@127.0.0.1:{node.port}", colour)


def test_it_is_looked_at_once_for_a_client_not_for_a_connection(node: Node) -> None:
    node.command("ACL", "SETUSER", "user", "reset", "on", ">pass", "~*", "&*", "+@all")
    node.command("FLUSHALL")

    def published() -> int:
        told = node.info("commandstats").get("cmdstat_publish", "calls=0,")
        return int(told.partition("calls=")[2].partition(",")[0])

    before = published()
    with interlock.Client(f"redis://user:pass@127.0.0.1:{node.port}") as client, ThreadPoolExecutor(8) as pool:

        def use(number: int) -> None:
            with client.lock(f"n{number}", ttl=5):
                pass

        list(pool.map(use, range(40)))
        assert len([line for line in node.command("CLIENT", "LIST").splitlines() if b"user=user" in line]) > 1
    assert published() == before + 1
    assert [key for key in node.command("KEYS", "*") if b"fence" not in key] == []


@pytest.mark.parametrize("colour", COLOURS)
def test_the_rules_in_the_docs_are_enough(node: Node, colour: str) -> None:
    """A user with these and no others: locks, waits, is told, extends, hands over, is inspected."""
    node.command("FLUSHALL")
    node.command("ACL", "SETUSER", "user", "reset", "on", ">pass", *RULES.replace("~NAME", "~order:*").split())

    async def body(kit: Kit) -> None:
        clients = kit.client(), kit.client()
        fences = []

        async def use(client: Any) -> None:
            for _ in range(3):
                async with client.lock("order:1", ttl=5, timeout=10) as lease:
                    await lease.extend(5)
                    await client.inspect("order:1")
                    fences.append(lease.fence)
                    await kit.sleep(0.02)

        await kit.together(*(use(client) for client in (*clients, *clients)))
        assert fences == sorted(set(fences))
        assert len(fences) == 12

    run_body(body, f"redis://user:pass@127.0.0.1:{node.port}", colour)


@pytest.mark.parametrize("colour", COLOURS)
def test_the_rules_in_the_docs_are_enough_for_a_quorum(make_nodes: Callable[..., list[Node]], colour: str) -> None:
    nodes = make_nodes(3)
    for node in nodes:
        node.command("ACL", "SETUSER", "user", "on", ">pass", *RULES.replace("~NAME", "~order:*").split())

    async def body(kit: Kit) -> None:
        one, other = kit.client(), kit.client()

        async def use(client: Any) -> None:
            for _ in range(2):
                async with client.lock("order:1", ttl=5, timeout=10) as lease:
                    await lease.extend(5)
                    await kit.sleep(0.02)

        await kit.together(use(one), use(other))
        assert (await one.inspect("order:1")).held is False

    run_body(body, [f"redis://user:pass@127.0.0.1:{node.port}" for node in nodes], colour)


@pytest.mark.parametrize("colour", COLOURS)
def test_users_of_one_quorum_need_not_see_each_others_names(make_nodes: Callable[..., list[Node]], colour: str) -> None:
    """Names of long leases are kept in one place for all. Whoever may not look at one takes it for held until it ends."""
    nodes = make_nodes(3)
    for node in nodes:
        for user in ("one", "two", "three"):
            node.command("ACL", "SETUSER", user, "on", ">pass", *RULES.replace("~NAME", f"~{user}:*").split())

    async def body(kit: Kit) -> None:
        one, two, three = (
            kit.client(store=[f"redis://{user}:pass@127.0.0.1:{node.port}" for node in nodes], renew=False)
            for user in ("one", "two", "three")
        )
        lease = await one.lock("one:long", ttl=3600).acquire(timeout=5)
        for ttl in (5, 60):
            assert await (await two.lock("two:x", ttl=ttl).acquire(timeout=5)).release()
        standings = [await node.member.roll(WITHIN) for node in two._context.backend.nodes]
        assert all(3500 < standing.held <= 3600 for standing in standings)
        for node in nodes:  # those that are over are forgotten, whoever they were
            node.command("ZADD", "interlock:roll:long", *(word for n in range(40) for word in ("1", f"one:over:{n}")))
        for number in range(25):
            assert await (await three.lock(f"three:{number}", ttl=60).acquire(timeout=5)).release()
        assert all(node.command("ZCOUNT", "interlock:roll:long", "0", "1") == 0 for node in nodes)
        assert await lease.release()

    run_body(body, "", colour)


def test_a_user_by_categories_hears_what_it_lacks_and_leaves_no_lock(node: Node) -> None:
    """TIME is in no category but @fast."""
    node.command("FLUSHALL")
    node.command(
        *("ACL", "SETUSER", "user", "reset", "on", ">pass", "~*", "&*"),
        *("+@read", "+@write", "+@scripting", "+@pubsub", "+@connection"),
    )
    with interlock.Client(f"redis://user:pass@127.0.0.1:{node.port}") as client:
        with pytest.raises(Unavailable, match=r"add to its ACL: \+time\.") as caught:
            client.lock("n", ttl=30).acquire(timeout=1)
        assert caught.value.cause == "auth"
        assert node.command("KEYS", "*") == [], "nothing was written"
        node.command("ACL", "SETUSER", "user", "+time")
        with client.lock("n", ttl=30):
            pass


# --- a server that writes nothing now -------------------------------------------------------------------------------------


def _full(node: Node) -> None:
    node.command("CONFIG", "SET", "maxmemory", "1")


def _without_replicas(node: Node) -> None:
    node.command("CONFIG", "SET", "min-replicas-to-write", "1")


def _replica(node: Node) -> None:
    node.command("REPLICAOF", "127.0.0.1", "1")


def _broken_disk(node: Node) -> None:
    """It cannot save, and refuses writes for that reason."""
    home = Path(node.command("CONFIG", "GET", "dir")[1].decode())
    (home / node.command("CONFIG", "GET", "dbfilename")[1].decode()).mkdir(exist_ok=True)
    node.command("CONFIG", "SET", "save", "3600 1")
    if node.info("persistence")["rdb_last_bgsave_status"] != "err":
        node.command("BGSAVE")
    while node.info("persistence")["rdb_last_bgsave_status"] != "err":
        time.sleep(0.005)


STATES = {"full": _full, "without replicas": _without_replicas, "a replica": _replica, "a broken disk": _broken_disk}


@pytest.mark.parametrize("state", STATES)
def test_a_server_that_refuses_writes_refuses_all_of_a_script_or_nothing(node: Node, state: str) -> None:
    for what, (make, elected) in SCENES.items():
        stage = Stage(node, elected=elected)
        try:
            request, before = make(stage), stage.stored()
            STATES[state](node)
            error, answer = said_by(request())
            if error is not None:
                assert error.cause == "error", f"{what}: {error}"
                assert stage.stored() == before, f"{what}: refused, and something was written"
            elif what.startswith("release") and answer is True:
                assert node.command("GET", "n") != token("a").encode(), f"{what}: released, and it is still held"
        finally:
            for command in ("CONFIG SET maxmemory 0", "CONFIG SET min-replicas-to-write 0", "REPLICAOF NO ONE"):
                node.command(*command.split())
            node.command("CONFIG", "SET", "save", "")
            stage.close()
