"""What both colours share: the clocks, the token, and who this process says it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import interlock
from interlock.core import token as tokens
from interlock.runtime import base
from interlock.runtime.base import World, now

SOURCE = str(Path(interlock.__file__).parents[1])


def test_now_counts_suspended_time() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    moments = [now(), World().now()]
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert [before, *moments, after] == sorted([before, *moments, after])
    assert after - before < 10


def test_now_reads_boot_time_and_no_other_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(base.time, "clock_gettime", lambda clock: asked.append(clock) or 1.5)
    assert (now(), World().now()) == (1.5, 1.5)
    assert asked == [time.CLOCK_BOOTTIME] * 2


def test_the_wall_clock_is_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= World().wall_ms() <= time.time_ns() // 1_000_000


def test_jitter_is_in_the_half_open_unit_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    seen = {world.jitter() for _ in range(100)}
    assert len(seen) > 90
    assert all(0 <= value < 1 for value in seen)
    for raw, expected in [(b"\0\0\0\0", 0.0), (b"\x80\0\0\0", 0.5)]:
        monkeypatch.setattr(base.os, "urandom", lambda n, raw=raw: raw)
        assert world.jitter() == expected
    monkeypatch.setattr(base.os, "urandom", lambda n: b"\xff" * n)
    assert world.jitter() < 1


def test_a_token_is_128_random_bits_and_who_we_are() -> None:
    world = World()
    made = {world.token() for _ in range(50)}
    assert len({token[:32] for token in made}) == 50
    for token in made:
        assert re.fullmatch(r"[0-9a-f]{32}~[A-Za-z0-9._-]{0,64}:\d+", token)
        assert tokens.is_ours(token)
        assert tokens.owner_of(token) == world.owner()
    assert world.owner().endswith(f":{os.getpid()}")


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("web-7.example.com", "web-7.example.com"),
        ("host with spaces\n{x}~", "hostwithspacesx"),
        ("größe", "gre"),
        ("ホスト", ""),
        ("h" * 300, "h" * 64),
    ],
)
def test_the_owner_has_only_letters_that_every_store_and_terminal_can_carry(
    monkeypatch: pytest.MonkeyPatch, host: str, shown: str
) -> None:
    monkeypatch.setattr(base.os, "uname", lambda: SimpleNamespace(nodename=host))
    assert World().owner() == f"{shown}:{os.getpid()}"


def test_the_owner_is_looked_up_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    first = world.owner()
    monkeypatch.setattr(base.os, "uname", lambda: SimpleNamespace(nodename="another"))
    assert world.owner() == first
    monkeypatch.setattr(base.os, "getpid", lambda: 99_999_999)
    assert world.owner() == "another:99999999"


def test_after_a_fork_the_child_is_somebody_else() -> None:
    code = """
import os
from interlock.runtime.base import World
world = World()
parent = world.token()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, world.token().encode())
    os._exit(0)
os.waitpid(child, 0)
theirs = os.read(reader, 500).decode()
assert parent.endswith(f":{os.getpid()}"), parent
assert theirs.endswith(f":{child}"), theirs
assert theirs[:32] not in {parent[:32], world.token()[:32]}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
