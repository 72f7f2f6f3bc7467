"""Peers in environments of their own below `.bench/`, made on request and kept. What cannot be had is named, and why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"


class Peer(NamedTuple):
    """A library: what to install (the first names it), and the adapters for each kind of workload."""

    name: str
    packages: tuple[str, ...]
    adapters: dict[str, str]  # kind of workload → class in `peers`; for node, "peer.mjs"


PEERS = [
    Peer("redis-py Lock", ("redis", "hiredis"), {"one": "RedisPy", "one-aio": "RedisPyAsyncio", "tasks-one": "RedisPyAsyncio"}),
    Peer("python-redis-lock", ("python-redis-lock", "redis", "hiredis"), {"one": "PythonRedisLock"}),
    Peer(
        "pottery",
        ("pottery", "redis", "hiredis"),
        {"one": "Pottery", "five": "Pottery", "five-aio": "PotteryAsyncio", "tasks-five": "PotteryAsyncio"},
    ),
    Peer(
        "redlock-ng",
        ("redlock-ng", "hiredis"),
        {"one": "RedlockNg", "five": "RedlockNg", "five-aio": "RedlockNgAsyncio", "tasks-five": "RedlockNgAsyncio"},
    ),
    Peer("aioredlock", ("aioredlock",), {"one-aio": "Aioredlock", "five-aio": "Aioredlock", "tasks-five": "Aioredlock"}),
    Peer(
        "node-redlock",
        ("redlock@5.0.0-beta.2", "ioredis"),
        dict.fromkeys(("one-aio", "five-aio", "tasks-one", "tasks-five"), "peer.mjs"),
    ),
]


class Installed(NamedTuple):
    """A peer that can be run: by which program, in which version. Or why not."""

    peer: Peer
    version: str
    home: Path
    problem: str = ""

    def command(self, kind: str, setup: dict[str, object]) -> list[str]:
        adapter = self.peer.adapters[kind]
        if adapter == "peer.mjs":
            return ["node", str(ROOT / "bench" / "peer.mjs"), json.dumps(setup | {"home": str(self.home)})]
        return [str(self.home / "bin" / "python"), "-m", "bench.child", f"bench.peers:{adapter}", json.dumps(setup)]


def install(peer: Peer) -> Installed:
    """Make its environment unless it is there."""
    home = HOME / peer.name.replace(" ", "-")
    ready = home / "ready"
    try:
        if not ready.exists():
            shutil.rmtree(home, ignore_errors=True)
            home.parent.mkdir(exist_ok=True)
            _with_npm(home, peer) if "peer.mjs" in peer.adapters.values() else _with_uv(home, peer)
            ready.write_text(_version(home, peer))
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = getattr(error, "stderr", "") or str(error)
        return Installed(peer, "", home, " ".join(str(said).split())[-300:])
    return Installed(peer, ready.read_text(), home)


def _with_uv(home: Path, peer: Peer) -> None:
    uv = str(ROOT / "tools" / "uv")
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(home)])
    _run([uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), *peer.packages])


def _with_npm(home: Path, peer: Peer) -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise OSError(f"{program} is not here")
    home.mkdir(parents=True)
    (home / "package.json").write_text('{"private": true}')
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), *peer.packages])


def _version(home: Path, peer: Peer) -> str:
    if "peer.mjs" in peer.adapters.values():
        found = json.loads((home / "node_modules" / "redlock" / "package.json").read_text())
        return f"redlock {found['version']}"
    program = (
        "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in sys.argv[1:]), sep=', ')"
    )
    return _run([str(home / "bin" / "python"), "-c", program, *peer.packages]).strip()


def _run(command: list[str]) -> str:
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    env.pop("UV_PROJECT_ENVIRONMENT", None)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, env=env, cwd=ROOT).stdout
