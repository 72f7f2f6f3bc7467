"""The embedded store and its clock: which boot it is, time namespaces, and who may free the leases of another boot."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.backends.sqlite.boot import FIRST_NAMESPACE, Boot, this_boot
from interlock.core.claim import Gone, Granted, Refused
from interlock.errors import Unsupported

from .test_sqlite import Clock, Make, clock, hear, make, path, rows, tell, token, worker

__all__ = ["clock", "make", "path"]  # fixtures


def shifted(seconds: int) -> list[str]:
    """The command that starts another in a time namespace whose boot clock is so far ahead."""
    return ["unshare", "--time", "--boottime", str(seconds)]


CONTAINER = ("--pid", "--fork", "--kill-child", "--mount-proc")


def allowed() -> bool:
    return subprocess.run([*shifted(1), *CONTAINER, "true"], check=False, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not allowed(), reason="this machine lets nobody make a time namespace")


# --- real time namespaces -------------------------------------------------------------------------------------------------


@needs_namespaces
@pytest.mark.parametrize("pids", [(), CONTAINER], ids=["", "and another pid namespace"])
@pytest.mark.parametrize("seconds", [86_400, 10**8, -1])
def test_a_time_namespace_shares_the_leases_of_the_others(seconds: int, pids: tuple[str, ...], path: Path, make: Make) -> None:
    here = make()
    assert isinstance(here.claim("x", token(), 60.0), Granted)
    with worker("ask", path, under=[*shifted(seconds), *pids]) as there:
        assert float(hear(there).removeprefix("refused for ")) == pytest.approx(60, abs=15)
    assert [row[:2] for row in rows(path)] == [("x", token())]
    assert isinstance(here.extend("x", token()), Granted)


@needs_namespaces
def test_what_a_time_namespace_holds_is_held_for_the_others(path: Path, make: Make) -> None:
    with worker("ask", path, "x", 60, under=shifted(86_400)) as there:
        assert hear(there) == "granted"
        refused = make().claim("x", token())
        assert isinstance(refused, Refused)
        assert refused.retry_after == pytest.approx(60, abs=15)


@needs_namespaces
def test_who_waits_in_another_time_namespace_is_served_in_turn(path: Path, make: Make) -> None:
    """By the public face: the flow dates an announcement by the store's clock, whatever its own reads."""
    here = make()
    here.claim("x", token())
    with worker("stand", path, under=shifted(86_400)) as there:
        assert hear(there) == "waiting"
        while not here.inspect("x").waiting:
            pass
        assert 0 <= here.inspect("x").waiting[0].since < 30, "it arrived just now, by our clock as well"
        here.release("x", token())
        assert hear(there) == "held"
        assert isinstance(here.claim("x", token()), Refused)
        tell(there)
        assert hear(there) == "released"


@needs_namespaces
@pytest.mark.parametrize("job", ["unshared", "moved_in"])
def test_a_process_that_changes_its_namespace_with_the_file_open(job: str, path: Path, make: Make) -> None:
    make().claim("x", token(), 60.0)
    with worker(job, path) as process:
        said = (hear(process) + " " + hear(process) + " " + hear(process)).split()
    assert len(said) >= 3
    assert all(int(seconds) == pytest.approx(60, abs=15) for seconds in said)


@needs_namespaces
def test_a_container_with_a_boot_id_of_its_own_frees_nothing(tmp_path: Path, path: Path, make: Make) -> None:
    """As systemd-nspawn and LXC do it."""
    own = tmp_path / "boot_id"
    own.write_text("0f0f0f0f-0000-4000-8000-000000000000\n")
    script = f'mount --bind {own} /proc/sys/kernel/random/boot_id && exec "$@"'
    here = make()
    assert isinstance(here.claim("x", token(), 60.0), Granted)
    with worker("ask", path, under=["unshare", *CONTAINER, "sh", "-c", script, "sh"]) as there:
        answer = hear(there)
    assert answer.startswith("UsageError"), answer
    assert "boot id" in answer
    assert [row[:2] for row in rows(path)] == [("x", token())]
    assert isinstance(here.extend("x", token()), Granted)


# --- what /proc says ------------------------------------------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path) -> Callable[..., str]:
    def made(boot: str = "abc\n", own: str = "", children: str = "", offsets: str = "", mnt: bool = True) -> str:
        where = tmp_path / "proc"
        (where / "sys/kernel/random").mkdir(parents=True)
        (where / "self/ns").mkdir(parents=True)
        (where / "sys/kernel/random/boot_id").write_text(boot)
        (where / "self/timens_offsets").write_text(offsets)
        for name, target in (("time", own), ("time_for_children", children), ("mnt", "mnt:[1]" if mnt else "")):
            if target:
                (where / "self/ns" / name).symlink_to(target)
        return str(where)

    return made


OTHER = "time:[4026532177]"
OFFSETS = "monotonic           7         0\nboottime         5000 500000000\n"


def test_this_boot() -> None:
    assert len(this_boot().id) >= 32
    assert this_boot() == this_boot()


def test_a_kernel_without_time_namespaces_has_one_clock(proc: Callable[..., str]) -> None:
    assert this_boot(proc()) == Boot("abc", 0.0)


def test_the_offsets_of_children_are_not_ours(proc: Callable[..., str]) -> None:
    assert this_boot(proc(own=FIRST_NAMESPACE, children=OTHER, offsets=OFFSETS)) == Boot("abc", 0.0)


@pytest.mark.parametrize(("offsets", "ahead"), [(OFFSETS, 5000.5), (OFFSETS.replace(" 5000 ", " -20 "), -19.5)])
def test_a_shifted_clock_is_converted(offsets: str, ahead: float, proc: Callable[..., str]) -> None:
    assert this_boot(proc(own=OTHER, children=OTHER, offsets=offsets)) == Boot("abc", ahead)


def test_a_clock_of_which_nothing_is_known_is_refused(proc: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="which boot"):
        this_boot(str(tmp_path / "none"))
    with pytest.raises(Unsupported, match="time namespace"):
        this_boot(proc(own=OTHER, children="time:[4026532178]", offsets=OFFSETS))


@pytest.mark.parametrize("kind", ["no offsets", "no /proc/self"])
def test_a_clock_that_is_half_known_is_refused(kind: str, proc: Callable[..., str]) -> None:
    where = proc(own=OTHER, children=OTHER) if kind == "no offsets" else proc(mnt=False)
    with pytest.raises(Unsupported, match="time namespace"):
        this_boot(where)


# --- a clock that is not what it was --------------------------------------------------------------------------------------


def test_a_clock_that_jumps_is_looked_at_again(make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    client.claim("x", token(), 60.0)
    clock.time += 1000.0
    clock.ahead += 1000.0
    assert isinstance(client.claim("x", token("b")), Refused), "no time has passed"
    assert isinstance(client.extend("x", token(), 60.0), Granted)
    clock.time -= 4000.0
    clock.ahead -= 4000.0
    assert client.claim("x", token("b")).retry_after == pytest.approx(60.0)
    clock.time += 60.5
    clock.wall += 60_500
    assert isinstance(client.claim("x", token("b")), Granted)


def test_a_wall_clock_that_is_set_changes_nothing(make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    client.claim("x", token(), 60.0)
    database = client.store._database
    clock.wall += 3_600_000
    assert isinstance(client.claim("x", token("b")), Refused)
    assert client.store._database is database


def test_a_process_that_wakes_in_another_boot_frees_what_is_over(make: Make, clock: Clock) -> None:
    """Restored from a checkpoint, say, with the file open."""
    client = make(clock=clock)
    client.claim("x", token(), 60.0)
    clock.boot, clock.time = "second", 500.0
    assert client.extend("x", token(), 60.0) == Gone(taken=False)
    assert isinstance(client.claim("x", token("b")), Granted)
