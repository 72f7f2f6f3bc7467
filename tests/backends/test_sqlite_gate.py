"""The gate of the embedded store while somebody is inside: who that is, what the others are told, what is done outside."""

from __future__ import annotations

import os
import re
import signal
import time
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

import interlock
from interlock.backends.sqlite import inbox
from interlock.backends.sqlite.file_lock import Budget, FileLock
from interlock.backends.sqlite.inside import inside
from interlock.core.claim import Announced, Claim, Granted, Handed, Place, Refused
from interlock.errors import LeaseLost, Unavailable
from interlock.runtime.blocking import run

from .test_sqlite import COLOURS, Make, hear, make, path, tell, token, worker

__all__ = ["make", "path"]  # fixtures


@pytest.mark.parametrize("colour", COLOURS)
def test_the_error_names_the_process_that_is_stopped_inside(colour: str, path: Path, make: Make) -> None:
    client = make(colour)
    client.claim("mine", token())
    with worker("sit", path) as process:
        assert hear(process) == "inside"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        with pytest.raises(Unavailable, match=f"process {process.pid} .*stopped.*kill -CONT {process.pid}") as caught:
            client.claim("x", token(), within=0.1)
        assert "nothing was written" in str(caught.value)
        process.send_signal(signal.SIGCONT)
        with pytest.raises(Unavailable, match=f"process {process.pid} .*locked the database by hand"):
            client.claim("x", token(), within=0.1)
        tell(process)
        assert hear(process) == "outside"
        assert isinstance(client.claim("x", token()), Granted)


def test_a_process_stopped_inside_costs_leases_and_never_makes_two_holders(path: Path) -> None:
    """What docs/guarantees.md says of it: nobody is granted anything, leases that cannot be renewed are lost, in time."""
    with interlock.Client(f"sqlite://{path}", request_timeout=0.2) as client:
        lease = client.lock("x", ttl=1.0).acquire()
        with worker("sit", path) as process:
            assert hear(process) == "inside"
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            with pytest.raises(Unavailable):
                client.lock("free").try_acquire()
            until = time.monotonic() + 20
            while not lease.lost and time.monotonic() < until:
                time.sleep(0.01)
            with pytest.raises(LeaseLost):
                lease.check()
        with client.lock("x").acquire(timeout=5) as other:
            assert other.fence > lease.fence


@pytest.mark.parametrize("how", ["release", "hand over"])
def test_the_next_in_line_is_told_outside(how: str, path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is stopped while telling keeps nobody out."""
    holder, waiter = make(), make()
    holder.claim("x", token())
    ear = run(waiter.backend.open_inbox(5.0))
    assert isinstance(run(waiter.backend.claim(Claim("x", token("b"), 60.0, Place(5, ear, 60.0)), 5.0)), Refused)
    told: list[Announced] = []

    def send(_: str, announced: Announced) -> None:
        gate = FileLock(f"{path}-gate", None)
        assert gate.enter(Budget(0)), "and in again"
        gate.leave()
        gate.close()
        told.append(announced)

    monkeypatch.setattr(inbox, "send", send)
    if how == "release":
        assert holder.release("x", token())
    else:
        heir = Claim("x", token("c"), 60.0, Place(9, ear, 60.0))
        assert isinstance(run(holder.backend.hand_over("x", token(), heir, 9, 5.0)), Handed)
    assert [announced.token for announced in told] == [token("b")]


# --- who is inside --------------------------------------------------------------------------------------------------------


def proc(tmp_path: Path, locks: str, stat: str = "", own: str = "4") -> str:
    (tmp_path / "7").mkdir()
    (tmp_path / "self").symlink_to(own)
    (tmp_path / "locks").write_text(locks)
    if stat:
        (tmp_path / "7" / "stat").write_text(stat)
    return str(tmp_path)


DEVICE = os.makedev(0xFE, 0)
LOCKS = """\
1: POSIX  ADVISORY  READ  5 fe:00:99 1073741826 1073742335
2: OFDLCK ADVISORY  READ  -1 fe:00:99 0 EOF
3: FLOCK  ADVISORY  WRITE 6 fe:01:99 0 EOF
3: -> FLOCK  ADVISORY  WRITE 6 fe:00:99 0 EOF
4: FLOCK  ADVISORY  WRITE 7 fe:00:99 0 EOF
torn
"""


@pytest.mark.parametrize(
    ("locks", "stat", "own", "words"),
    [
        (LOCKS, "7 (a (b) c) T 1 7", "4", r"process 7 \(a \(b\) c\) is inside and is stopped: 'kill -CONT 7'"),
        (LOCKS, "7 (x) t 1 7", "4", "stopped"),
        (LOCKS, "7 (x) D 1 7", "4", "disk"),
        (LOCKS, "7 (x) S 1 7", "4", "frozen"),
        (LOCKS, "7 (\x1b[31mred\n) S 1 7", "4", r"process 7 \(\?\[31mred\?\)"),
        (LOCKS, "", "4", "has ended, but a child"),
        (LOCKS, "7 (x) S 1 7", "7", "another client of this process"),
        ("", "", "4", "another container"),
        (LOCKS.replace("fe:00:99", "00:2a:99"), "7 (x) S 1 7", "4", "another container"),
    ],
)
def test_who_is_inside(locks: str, stat: str, own: str, words: str, tmp_path: Path) -> None:
    said = inside(DEVICE, 99, proc(tmp_path, locks, stat, own))
    assert re.search(words, said), said
    assert said.isprintable()


def test_a_file_system_without_a_device(tmp_path: Path) -> None:
    where = proc(tmp_path, LOCKS.replace("fe:00:99", "00:2a:99"), "7 (x) S 1 7")
    assert "process 7" in inside(os.makedev(0, 0x30), 99, where)


def test_a_system_that_shows_no_locks(tmp_path: Path) -> None:
    assert "cannot be seen" in inside(DEVICE, 99, str(tmp_path))


def test_a_child_that_has_the_gate_of_a_dead_parent(tmp_path: Path) -> None:
    """The kernel names whoever took the lock, which a child may have inherited."""
    file = tmp_path / "gate"
    file.touch()
    found = file.stat()
    ready, done = os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:
        descriptor = os.open(file, os.O_RDONLY)
        flock(descriptor, LOCK_EX)
        if os.fork() == 0:
            os.close(done[1])
            os.read(done[0], 1)
        else:
            os.write(ready[1], b"x")
        os._exit(0)
    os.read(ready[0], 1)
    os.waitpid(parent, 0)
    assert f"process {parent} went inside and has ended" in inside(found.st_dev, found.st_ino)
    for descriptor in (*ready, *done):
        os.close(descriptor)
