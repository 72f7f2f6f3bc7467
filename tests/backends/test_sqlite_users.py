"""The embedded store and several users of one file: what they need, and what they are told without it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen

import pytest

from .test_sqlite import Make, hear, make, path, token, worker

__all__ = ["make", "path"]  # fixtures

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes several users")

ONE, TWO, GROUP = 64_001, 64_002, 64_000


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can look into, all the way down, and only root can write."""
    with tempfile.TemporaryDirectory(prefix="interlock-users-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def user(path: Path, uid: int, name: str = "x") -> AbstractContextManager[Popen[str]]:
    return worker("user", path, uid, GROUP, name)


def again(process: Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("again\n")
    return hear(process)


def ends(process: Popen[str]) -> None:
    """It leaves by itself, and closes the file."""
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 0


def common(path: Path) -> None:
    """What docs/guarantees.md asks for."""
    os.chown(path, -1, GROUP)
    os.chmod(path, 0o2770)


def test_a_directory_that_all_may_write_is_enough(shared: Path) -> None:
    common(shared)
    path = shared / "locks.db"
    with user(path, ONE) as one:
        assert hear(one) == "granted"
    path.chmod(0o660)  # the one before was killed, so its log is there, and private
    with user(path, ONE) as one:
        assert hear(one) == "refused"  # by the lease that it left; and all files have the permissions of the first now
        with user(path, TWO) as two:
            assert hear(two) == "refused"
        assert again(one) == "refused"
    with user(path, TWO, "y") as two:  # makes the log
        assert hear(two) == "granted"
        with user(path, ONE, "y") as one:
            assert hear(one) == "refused"
            two.kill()
            two.wait()
            assert again(one) == "refused", "and the log of a dead process can be used by the others"
    for file in shared.iterdir():
        assert file.stat().st_gid == GROUP
        assert stat.S_IMODE(file.stat().st_mode) & 0o777 == 0o660, file


@pytest.mark.parametrize("open_already", [True, False])
def test_a_directory_that_may_not_be_written_is_said_at_once(open_already: bool, shared: Path, make: Make) -> None:
    """Not only once the files beside it have to be made: with those of another process it would work for a while."""
    path = shared / "locks.db"
    client = make(where=path)
    client.claim("x", token())
    client.close()
    path.chmod(0o666)
    owner = make(where=path)
    owner.claim("y", token())  # and the gate follows
    if not open_already:
        owner.close()
    with user(path, TWO) as two:
        answer = hear(two)
    assert answer.startswith("Unavailable: sqlite://")
    assert "nothing was written" in answer
    assert f"user {TWO} write to {shared}" in answer
    assert "share" in answer
    assert "setgid" in answer


@pytest.mark.parametrize("ending", ["", "-gate", "-wal", "-shm"])
def test_a_file_that_may_not_be_used_is_named(ending: str, shared: Path, make: Make) -> None:
    path = shared / "locks.db"
    client = make(where=path)
    client.claim("x", token())
    shared.chmod(0o777)
    for file in shared.iterdir():
        file.chmod(0o666)
    closed = shared / f"locks.db{ending}"
    closed.chmod(0o600)
    with user(path, TWO) as two:
        answer = hear(two)
    assert answer.startswith("Unavailable: sqlite://")
    assert f"user {TWO} write to {closed}, or" in answer


def test_a_gate_that_root_makes_anew_is_its_users(shared: Path, make: Make) -> None:
    """A tool that cleans up may delete it; the next who comes may be root, at night."""
    os.chown(shared, ONE, GROUP)
    path = shared / "locks.db"
    with user(path, ONE) as one:
        assert hear(one) == "granted"
    (shared / "locks.db-gate").unlink()
    make(where=path).claim("y", token())
    with user(path, ONE, "z") as one:
        assert hear(one) == "granted"
    assert {file.stat().st_uid for file in shared.iterdir()} == {ONE}


def test_a_gate_that_a_member_makes_anew_is_the_groups(shared: Path) -> None:
    os.chown(shared, -1, GROUP)
    shared.chmod(0o770)  # not setgid, so whoever makes a file gives it its own group
    path = shared / "locks.db"
    with user(path, ONE) as one:
        assert hear(one) == "granted"
        ends(one)
    os.chown(path, -1, GROUP)
    path.chmod(0o660)
    (shared / "locks.db-gate").unlink()
    with user(path, TWO) as two:
        assert hear(two) == "refused"
        found = (shared / "locks.db-gate").stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GROUP, 0o660)


def test_a_gate_is_made_anew_in_a_container_where_the_owner_has_no_number(shared: Path, make: Make) -> None:
    """A rootless container: some users and groups of the host do not exist there, and nothing can be given to them."""
    path = shared / "locks.db"
    make(where=path).claim("x", token())
    os.chown(path, ONE, GROUP)
    path.chmod(0o666)
    (shared / "locks.db-gate").unlink()
    with worker("ask", path, under=["unshare", "--user", "--map-root-user"]) as there:
        assert hear(there).startswith("refused")
    assert stat.S_IMODE((shared / "locks.db-gate").stat().st_mode) == 0o666
