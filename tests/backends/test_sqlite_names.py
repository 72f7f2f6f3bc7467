"""The embedded store and the names of its file: one file under two names, one name for two files, files of several users."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.backends.sqlite import presence
from interlock.backends.sqlite.file_lock import Budget, FileLock
from interlock.core.claim import Gone, Granted, Refused
from interlock.errors import LeaseLost, UsageError

from .test_sqlite import Client, Clock, Make, clock, hear, make, path, rows, token, worker

__all__ = ["clock", "make", "path"]  # fixtures

ELSEWHERE = "another name"
SPLIT = "the -wal or -shm beside it was deleted or replaced under them"


# --- one file, two names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before it is opened", "after it was opened"])
def test_a_hard_link_is_refused(when: str, tmp_path: Path, path: Path, make: Make) -> None:
    other = tmp_path / "other.db"
    first = make()
    first.claim("x", token())
    if when.startswith("before"):
        first.close()
    os.link(path, other)
    with pytest.raises(UsageError, match="hard link") as caught:
        make(where=other).claim("x", token("b"))
    assert "nothing was written" in str(caught.value)
    with pytest.raises(UsageError, match="hard link"):
        make().claim("x", token("b"))
    assert not (tmp_path / "other.db-wal").exists()
    if when.startswith("after"):
        assert isinstance(first.extend("x", token()), Granted), "its log is where it was, and nobody else gets in"
    other.unlink()
    assert isinstance(make().claim("x", token("b")), Refused)


@pytest.mark.parametrize("first", ["extend", "claim"])
@pytest.mark.parametrize("process", ["another", "the same"])
def test_a_file_that_was_renamed_is_not_opened_beside_who_has_it_open(
    process: str, first: str, tmp_path: Path, path: Path, make: Make
) -> None:
    """What was granted is in a log beside the old name, where whoever opens the new one does not look."""
    other = tmp_path / "other.db"
    holder = make()
    assert isinstance(holder.claim("x", token()), Granted)
    path.rename(other)
    if process == "another":
        with worker("ask", other) as stranger:
            answer = hear(stranger)
    else:
        with pytest.raises(UsageError) as caught:
            make(where=other).claim("x", token("b"))
        answer = f"UsageError: {caught.value}"
    assert answer.startswith("UsageError")
    assert ELSEWHERE in answer
    if first == "extend":
        assert holder.extend("x", token()) == Gone(taken=False), "there is no file any more where it looks"
    else:
        assert isinstance(holder.claim("y", token()), Granted)
    assert isinstance(make(where=other).claim("x", token("b")), Refused), "the log went with the file"
    assert [row[0] for row in rows(path)] == ([] if first == "extend" else ["y"])


def test_a_directory_that_was_renamed_is_the_same_place(tmp_path: Path, make: Make) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    make(where=here / "locks.db").claim("x", token())
    here.rename(there)
    with worker("ask", there / "locks.db") as stranger:
        assert hear(stranger).startswith("refused")


@contextmanager
def mounted(*args: Any) -> Iterator[None]:
    """Raises CalledProcessError where that is not allowed."""
    subprocess.run(["mount", *map(str, args)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(args[-1])], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_directory_that_is_mounted_twice_is_the_same_place(tmp_path: Path, make: Make) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    make(where=here / "locks.db").claim("x", token())
    with mounted("--bind", here, there), worker("ask", there / "locks.db") as stranger:
        assert hear(stranger).startswith("refused")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_file_that_is_mounted_elsewhere_is_refused(tmp_path: Path, path: Path, make: Make) -> None:
    make().claim("x", token())
    other = tmp_path / "other.db"
    other.touch()
    with mounted("--bind", path, other), pytest.raises(UsageError, match="mounted as a single file"):
        make(where=other).claim("x", token("b"))


def test_a_name_in_proc_is_that_of_the_file(path: Path, make: Make) -> None:
    make().claim("x", token())
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        there = make(where=Path(f"/proc/self/fd/{descriptor}/locks.db"))
        assert isinstance(there.claim("x", token("b")), Refused)
    finally:
        os.close(descriptor)


def test_a_deleted_file_cannot_be_opened_by_a_name_in_proc(tmp_path: Path, path: Path, make: Make) -> None:
    make().claim("x", token())
    subprocess.run(["cp", path, tmp_path / "copy.db"], check=True)
    descriptor = os.open(tmp_path / "copy.db", os.O_RDONLY)
    (tmp_path / "copy.db").unlink()
    with pytest.raises(UsageError, match="leads to a file that has no name"):
        make(where=Path(f"/proc/self/fd/{descriptor}")).claim("x", token("b"))
    os.close(descriptor)
    assert not list(tmp_path.glob("*deleted*"))


@pytest.mark.parametrize("fate", ["deleted", "renamed", "replaced"])
def test_a_gate_that_is_not_at_its_place_any_more_is_left(fate: str, path: Path, make: Make) -> None:
    gate = path.with_name("locks.db-gate")
    one, other = make(), make()
    one.claim("x", token())
    if fate == "deleted":
        gate.unlink()
    else:
        gate.rename(path.with_name("elsewhere"))
    if fate == "replaced":
        gate.touch()
    assert isinstance(other.claim("x", token("b")), Refused)
    assert isinstance(one.extend("x", token()), Granted)
    assert gates(one) == gates(other) == gate.stat().st_ino


def gates(client: Client) -> int:
    """The inode of the gate that a client uses."""
    database = client.store._database
    assert database is not None
    return os.fstat(database._gate._file).st_ino


def test_a_gate_that_leads_elsewhere_is_not_followed(tmp_path: Path, path: Path, make: Make) -> None:
    """In a directory that others may write, it could have this user make or widen a file of theirs."""
    path.with_name("locks.db-gate").symlink_to(tmp_path / "victim")
    with pytest.raises(Exception, match="symbolic link"):
        make().claim("x", token())
    assert not (tmp_path / "victim").exists()


def test_nothing_of_this_stays_open(path: Path, make: Make) -> None:
    def descriptors() -> list[str]:
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return sorted(os.readlink(link) for link in links if os.path.exists(link) or os.path.islink(link))

    def ours() -> list[str]:
        return [link for link in descriptors() if str(path) in link]

    one, other = make(), make()
    for client in (one, other):
        client.claim("x", token())
    assert ours()
    path.unlink()
    for client in (one, other):
        client.claim("x", token())
    assert not [link for link in ours() if "deleted" in link and "-gate" not in link]
    one.close()
    assert isinstance(other.extend("x", token()), Granted)
    other.close()
    assert not ours()


def test_what_had_to_stay_open_is_closed_by_the_next_who_comes(path: Path, make: Make) -> None:
    """Outside the gate nobody knows whether another thread is about to open the file."""
    client = make()
    client.claim("x", token())
    gate = FileLock(f"{path}-gate", None)
    gate.enter(Budget(0))
    client.store.rest(0.0)
    gate.close()
    assert sum(map(len, presence._spent.values())) == 1
    assert isinstance(client.extend("x", token()), Granted)
    assert not presence._spent
    client.close()
    assert not presence._spent
    assert not presence._marked


def test_what_had_to_stay_open_is_not_inherited(path: Path, make: Make, tmp_path: Path) -> None:
    """A child that becomes a daemon closes every descriptor and opens files of its own. One of them would have the number."""
    client = make()
    client.claim("x", token())
    gate = FileLock(f"{path}-gate", None)
    gate.enter(Budget(0))
    client.store.rest(0.0)
    gate.close()
    ((number,),) = presence._spent.values()
    child = os.fork()
    if child == 0:
        try:
            file = os.open(tmp_path / "of the daemon", os.O_WRONLY | os.O_CREAT)
            if file != number:
                os.dup2(file, number)
            client.extend("x", token())
            os.write(number, b"still mine")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "of the daemon").read_bytes() == b"still mine"


@pytest.mark.parametrize("ending", ["-shm", "-wal"])
def test_who_finds_the_log_gone_under_others_is_refused(ending: str, path: Path, make: Make) -> None:
    """A cleaner of temporary files may delete it. Who comes would make another one, and not see what they hold."""
    one = make()
    one.claim("x", token())
    os.unlink(f"{path}{ending}")
    code = "import sys, interlock; interlock.Client(sys.argv[1]).lock('y').try_acquire()"
    done = subprocess.run([sys.executable, "-c", code, f"sqlite://{path}"], capture_output=True, text=True, check=False)
    assert SPLIT in done.stderr
    assert isinstance(one.claim("y", token()), Granted), "nobody else has it"
    one.close()
    assert isinstance(make().claim("z", token()), Granted), "it is over with them"


@pytest.mark.parametrize("replaced", ["by an SQLite shell", "by empty files", "by those of another file"])
def test_who_finds_another_log_than_others_have_is_refused(replaced: str, tmp_path: Path, path: Path, make: Make) -> None:
    """Both are there again, and neither is what the holder writes to."""
    one = make()
    one.claim("x", token())
    if replaced == "by those of another file":
        path.rename(tmp_path / "away.db")
        with worker("ask", path, "y") as stranger:
            assert hear(stranger) == "granted", "of a new file"
            (tmp_path / "away.db").rename(path)
    else:
        for ending in ("-wal", "-shm"):
            os.unlink(f"{path}{ending}")
            if replaced == "by empty files":
                Path(f"{path}{ending}").touch()
    if replaced == "by an SQLite shell":
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM entries').fetchall()"
        subprocess.run([sys.executable, "-c", code, path], check=True)
    assert os.path.exists(f"{path}-wal")
    assert os.path.exists(f"{path}-shm")
    with worker("ask", path) as stranger:
        answer = hear(stranger)
    assert answer.startswith("UsageError")
    assert SPLIT in answer
    assert isinstance(one.extend("x", token()), Granted), "who has it open goes on"
    one.close()
    with worker("ask", path) as stranger:
        assert hear(stranger).startswith("refused"), "its log went into the file"


def test_who_is_about_to_open_it_deletes_nothing_under_anybody(path: Path, make: Make) -> None:
    """Two who come at once, past a gate that was deleted: neither has a log yet that could be gone."""
    first, second = make(), make()
    first.claim("x", token())
    first.close()
    other = presence.Presence(str(path))
    assert other.mark()
    assert not os.path.exists(f"{path}-wal")
    try:
        assert isinstance(second.claim("y", token()), Granted)
    finally:
        second.close()
        other.end(inside=True)


@pytest.mark.parametrize("ends", ["the parent's", "the child's"])
def test_a_mark_is_the_parents_though_a_child_has_a_copy(ends: str, tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    file.touch()
    mark, other = presence.Presence(str(file)), presence.Presence(str(file))
    assert mark.mark()
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done[1])
        if ends == "the child's":
            mark.disown()
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    if ends == "the parent's":
        mark.end(inside=True)
    assert other.mark()
    assert other.alone() is (ends == "the parent's")
    other.end(inside=True)
    mark.end(inside=True)
    for descriptor in (*ready, *done):
        os.close(descriptor)
    os.waitpid(child, 0)
    assert not presence._marked
    assert not presence._spent


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what other tests have left: at gates that they kept shut, or since they failed."""
    monkeypatch.setattr(presence, "_spent", {})
    monkeypatch.setattr(presence, "_marked", {})


def test_a_second_client_that_closes_takes_no_lock_of_the_first(path: Path, make: Make) -> None:
    """The kernel drops a process's locks on a file when it closes *any* descriptor of it, SQLite's own locks among them. Then
    another process that closes the file takes itself for the last one, and deletes the log that we write to."""
    one, other = make(), make()
    one.claim("x", token())
    other.claim("y", token())
    other.close()
    with worker("visit", path) as visitor:
        assert hear(visitor) == "gone"
    one.claim("z", token())
    with worker("ask", path, "z") as visitor:
        assert hear(visitor).startswith("refused")
    assert path.with_name("locks.db-wal").exists()


# --- one name, two files --------------------------------------------------------------------------------------------------


def swap(link: Path, target: Path) -> None:
    """As deployments do it: in one step."""
    fresh = link.with_name("fresh")
    fresh.symlink_to(target)
    fresh.rename(link)


@pytest.fixture
def releases(tmp_path: Path) -> tuple[Path, Path, Path]:
    old, new, current = tmp_path / "old", tmp_path / "new", tmp_path / "current"
    old.mkdir()
    new.mkdir()
    current.symlink_to(old)
    return old, new, current


@pytest.mark.parametrize("verb", ["extend", "renew", "claim", "release", "inspect"])
def test_a_swapped_directory_is_noticed_by_the_next_verb(verb: str, releases: tuple[Path, Path, Path], make: Make) -> None:
    old, new, current = releases
    client = make(where=current / "locks.db")
    first = client.claim("x", token()).fence
    swap(current, new)
    with worker("ask", current / "locks.db") as stranger:
        assert hear(stranger) == "granted"
        verbs: dict[str, Callable[[], Any]] = {
            "extend": lambda: client.extend("x", token()) == Gone(taken=True),
            "renew": lambda: client.renew(("x", token(), 10.0, first)) == [Gone(taken=True)],
            "claim": lambda: isinstance(client.claim("x", token()), Refused),
            "release": lambda: client.release("x", token()) is False,
            "inspect": lambda: client.inspect("x").owner != "here:1",
        }
        assert verbs[verb]()
    assert rows(new / "locks.db")[0][2] > first
    assert rows(old / "locks.db"), "what is there is left alone"


def test_the_holder_is_told_at_its_next_renewal(releases: tuple[Path, Path, Path]) -> None:
    """By the public face. Until then there are two: see docs/guarantees.md."""
    _, new, current = releases
    with interlock.Client(f"sqlite://{current}/locks.db") as client:
        lease = client.lock("x", ttl=3.0).acquire()
        swap(current, new)
        with worker("ask", current / "locks.db") as stranger:
            assert hear(stranger) == "granted"
            until = time.monotonic() + 20
            while not lease.lost and time.monotonic() < until:
                time.sleep(0.01)
            with pytest.raises(LeaseLost) as caught:
                lease.check()
            assert caught.value.reason == "taken"


def test_a_swapped_link_to_the_file_is_noticed(tmp_path: Path, path: Path, make: Make) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    client = make(where=link)
    client.claim("x", token())
    swap(link, tmp_path / "other.db")
    with worker("ask", link) as stranger:
        assert hear(stranger) == "granted"
        assert client.extend("x", token()) == Gone(taken=True)


def test_a_link_that_is_swapped_while_the_file_is_opened_is_noticed(
    releases: tuple[Path, Path, Path], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlock.backends.sqlite.database import Database

    old, new, current = releases
    real, swapped = Database.connect, []

    def connect(*args: Any) -> Any:
        if not swapped:
            swapped.append(swap(current, new))
        return real(*args)

    monkeypatch.setattr(Database, "connect", connect)
    assert isinstance(make(where=current / "locks.db").claim("x", token()), Granted)
    assert rows(new / "locks.db")
    assert not rows(old / "locks.db")


def test_a_link_that_leads_nowhere_any_more_is_said(releases: tuple[Path, Path, Path], tmp_path: Path, make: Make) -> None:
    old, _, current = releases
    client = make(where=current / "locks.db")
    client.claim("x", token())
    swap(current, tmp_path / "none")
    with pytest.raises(UsageError, match="does not exist"):
        client.extend("x", token())
    swap(current, old)
    assert isinstance(client.extend("x", token()), Granted), "nothing was lost, if that is in time"


# --- a boot id that is not the kernel's -----------------------------------------------------------------------------------


def test_a_boot_id_of_its_own_frees_nobodys_lease(make: Make) -> None:
    """Two containers on one kernel, each with a boot id of its own, and a file that both have."""
    one, two = Clock(), Clock()
    two.boot = "a container's"
    here, there = make(clock=one), make(clock=two)
    here.claim("x", token())
    with pytest.raises(UsageError, match="boot id") as caught:
        there.claim("x", token("b"))
    assert "nothing was written" in str(caught.value).lower()
    assert isinstance(here.extend("x", token()), Granted)
    here.close()
    assert isinstance(there.claim("x", token("b")), Granted), "nobody else has it open: that may be a new boot"
    late = make(clock=one)
    with pytest.raises(UsageError, match="boot id"):
        late.inspect("x")


# --- one file as two nodes of a quorum ------------------------------------------------------------------------------------


def test_one_file_is_not_two_nodes_of_a_quorum(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "a")
    urls = [f"sqlite://{tmp_path}/{name}/locks.db" for name in "abc"]
    with interlock.Client(urls) as client, pytest.raises(UsageError, match="same server"):
        client.lock("x").acquire(timeout=2)


def test_a_node_that_is_an_older_copy_casts_no_vote(tmp_path: Path) -> None:
    """One node was away while the lock was taken, another comes back from a backup: they are a majority that knows nothing."""
    files = [tmp_path / name / "locks.db" for name in "abc"]
    for file in files:
        file.parent.mkdir()
    urls = [f"sqlite://{file}" for file in files]
    with interlock.Client(urls) as client:
        client.lock("before").acquire().release()
    backup = tmp_path / "backup.db"
    backup.write_bytes(files[1].read_bytes())
    files[2].parent.rename(tmp_path / "away")
    with interlock.Client(urls, renew=False) as one, interlock.Client(urls, renew=False) as two:
        lease = one.lock("x", ttl=60).acquire()
        (tmp_path / "away").rename(files[2].parent)
        backup.rename(files[1])
        for ending in ("-wal", "-shm"):
            files[1].with_name(f"locks.db{ending}").unlink()
        assert two.lock("x").try_acquire() is None
        lease.check()
        lease.release()
