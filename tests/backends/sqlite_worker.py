"""What the processes of test_sqlite.py do. Run as `python sqlite_worker.py JOB FILE …`; talks over stdin and stdout."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from interlock.backends.sqlite.backend import SqliteBackend
from interlock.backends.sqlite.blocking import BlockingTransport
from interlock.backends.sqlite.file_lock import Budget
from interlock.backends.sqlite.inbox import Inbox
from interlock.backends.sqlite.location import Location
from interlock.backends.sqlite.store import Store
from interlock.core.claim import Announced, Claim, Granted
from interlock.core.claim import Place as InLine
from interlock.runtime import forks
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.runtime.registry import WeakRegistry

RUNTIME = BlockingRuntime()
NEW_TIME = 0x80  # CLONE_NEWTIME


def backend(file: str) -> Any:
    return SqliteBackend(Store(Location(file), RUNTIME.now, RUNTIME.wall_ms), BlockingTransport(), Inbox(RUNTIME))


def say(word: str) -> None:
    print(word, flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


def count(file: str, total: str, log: str, rounds: str) -> None:
    """Add one to an unprotected number, under the lock, so many times. The log gets the fences in the order of the grants."""
    store = backend(file)
    say("ready")
    hear()
    for _ in range(int(rounds)):
        token = RUNTIME.token()
        while not isinstance(answer := run(store.claim(Claim("number", token, 30.0), 20.0)), Granted):
            time.sleep(0.0005)
        with open(total) as before:
            number = int(before.read())
        with open(total, "w") as after:
            after.write(str(number + 1))
        with open(log, "a") as fences:
            fences.write(f"{answer.fence}\n")
        assert run(store.release("number", token, 20.0))
    run(store.close())


def sit(file: str) -> None:
    """Stay inside the gate, in the middle of a transaction, until told to leave or killed."""
    store = backend(file)
    run(store.release("warm-up", RUNTIME.token(), 5.0))
    inner = store._store
    inner._enter(Budget(5.0))
    inner._database.execute("BEGIN IMMEDIATE")
    inner._database.execute("INSERT INTO entries VALUES ('half', 1, 'done', 1, 9e999)")
    say("inside")
    hear()
    inner._database.execute("ROLLBACK")
    inner._leave()
    say("outside")
    hear()


def fork(file: str) -> None:
    """The parent holds a lock and forks; the child uses the same client, ends like any program, and the parent goes on."""
    store = backend(file)
    token = RUNTIME.token()
    first = run(store.claim(Claim("parent's", token, 60.0), 5.0))
    child = os.fork()
    if child == 0:
        assert store._store._database is None, "nothing that is open crosses a fork"
        assert not isinstance(run(store.claim(Claim("parent's", RUNTIME.token(), 60.0), 5.0)), Granted)
        mine = RUNTIME.token()
        second = run(store.claim(Claim("child's", mine, 60.0), 5.0))
        assert second.fence > first.fence
        run(store.release("child's", mine, 5.0))
        run(store.close())
        sys.exit(7)  # the long way out, through the interpreter's own end
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert run(store.claim(Claim("parent's", token, 60.0), 5.0)).fence == first.fence, "the parent lost nothing"
    assert run(store.release("parent's", token, 5.0))
    assert store._store._database._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    run(store.close())
    say("fine")


def fork_unnoticed(file: str) -> None:
    """As `fork`, by somebody who tells nobody: the process number gives it away. The child refuses, the parent goes on."""
    store = backend(file)
    token = RUNTIME.token()
    first = run(store.claim(Claim("parent's", token, 60.0), 5.0))
    inherited = store._store._database._connection
    forks._watched = WeakRegistry()
    forks._guarded = WeakRegistry()
    child = os.fork()
    if child == 0:
        refused(store)
        assert any(inherited in kept for kept in forks._kept), "and keeps it untouched"
        refused(store)  # and so on
        refused(backend(file))  # nor by another client
        run(store.close())
        del inherited
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store._store._database._connection is inherited, "the parent lost nothing"
    assert run(store.claim(Claim("parent's", token, 60.0), 5.0)).fence == first.fence
    assert run(store.release("parent's", token, 5.0))
    assert inherited.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    run(store.close())
    say("fine")


def refused(store: Any) -> None:
    from interlock.errors import UsageError

    said = ""
    try:
        run(store.claim(Claim("child's", RUNTIME.token(), 60.0), 1.0))
    except UsageError as error:
        said = str(error)
    assert "forked while" in said, said or "SQLite's notes of the parent were trusted"


def fork_outlived(file: str) -> None:
    """The child goes on when the parent has closed the file: it is still the same file for both of them, and for others."""
    store, told, done = backend(file), os.pipe(), os.pipe()
    run(store.claim(Claim("warm-up", RUNTIME.token(), 60.0), 5.0))
    child = os.fork()
    if child == 0:
        run(store.claim(Claim("child's", RUNTIME.token(), 60.0), 5.0))
        os.write(told[1], b"x")
        os.read(done[0], 1)
        assert not isinstance(run(store.claim(Claim("x", RUNTIME.token(), 60.0), 5.0)), Granted), "two hold it"
        run(store.close())
        os._exit(0)
    os.read(told[0], 1)
    run(store.close())  # were it the last to have the file open, the log would be deleted
    newcomer = backend(file)
    assert not isinstance(run(newcomer.claim(Claim("child's", RUNTIME.token(), 60.0), 5.0)), Granted)
    assert isinstance(run(newcomer.claim(Claim("x", RUNTIME.token(), 60.0), 5.0)), Granted)
    os.write(done[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(newcomer.close())
    say("fine")


def fork_amid(file: str) -> None:
    """Fork while other threads are in the middle of requests, and while another one forks: each child can use the file."""
    from threading import Event, Thread

    store, over = backend(file), Event()

    def work() -> None:
        while not over.is_set():
            token = RUNTIME.token()
            run(store.claim(Claim(token, token, 60.0), 5.0))
            run(store.release(token, token, 5.0))

    def breed() -> None:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                try:
                    run(store.claim(Claim("child's", RUNTIME.token(), 60.0), 5.0))
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child could not use it"
            bred.append(child)

    bred: list[int] = []
    threads = [Thread(target=work) for _ in range(2)] + [Thread(target=breed) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads[2:]:
        thread.join()
    over.set()
    for thread in threads[:2]:
        thread.join()
    assert len(bred) == 40
    run(store.close())
    say("fine")


def staying(store: Any, enter: bool) -> Any:
    """Another thread in the middle of a verb that does not end before the event is set."""
    from threading import Event, Thread

    forks.PATIENCE = 0.1
    run(store.release("warm-up", RUNTIME.token(), 5.0))
    inside, leave = Event(), Event()

    def verb(budget: Budget) -> None:
        if enter:
            store._store._enter(budget)
        inside.set()
        leave.wait()

    thread = Thread(target=lambda: run(store._transport.run(verb, (), 5.0, False)), daemon=True)
    thread.start()
    inside.wait()
    return thread, leave


def fork_inside(file: str) -> None:
    """Fork while inside the gate. The child lives on after the parent was killed, and does not keep the gate shut."""
    store = backend(file)
    staying(store, enter=True)
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        from interlock.errors import Unavailable

        try:  # the parent is inside, and nothing that the child does may let the child in
            run(store.claim(Claim("x", RUNTIME.token(), 60.0), 0.2))
        except Unavailable:
            os.write(done, b"refused")
        else:
            os.write(done, b"entered")
        os.close(done)
        signal.pause()
    say(f"{child} {os.read(ready, 100).decode()}")
    hear()


def fork_busy(file: str) -> None:
    """Fork while a request of another thread does not end: the child neither waits for that thread nor trusts the file."""
    store = backend(file)
    thread, leave = staying(store, enter=False)
    child = os.fork()
    if child == 0:
        refused(store)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    leave.set()
    thread.join()
    run(store.release("still fine", RUNTIME.token(), 5.0))
    run(store.close())
    say("fine")


def line_up(store: Any, token: str, arrival: int, ttl: float = 60.0) -> Any:
    inbox = run(store.open_inbox(5.0))
    return run(store.claim(Claim("x", token, ttl, InLine(arrival, inbox, ttl)), 5.0))


def heard(store: Any, token: str, until: float) -> Announced | None:
    while RUNTIME.now() < until:
        for announced in run(store.hear(until)):
            if announced.token == token:
                return announced
    return None


def hold(file: str, ttl: str) -> None:
    """Take the lock and say so."""
    store = backend(file)
    say(str(run(store.claim(Claim("x", RUNTIME.token(), float(ttl)), 5.0)).fence))
    hear()


def ask(file: str, name: str = "x", ttl: str = "60") -> None:
    """Claim a name and say what came of it; stay until told to leave."""
    from interlock.errors import InterlockError

    store = backend(file)
    try:
        answer = run(store.claim(Claim(name, RUNTIME.token(), float(ttl)), 1.0))
    except InterlockError as error:
        say(f"{type(error).__name__}: {error}")
    else:
        say("granted" if isinstance(answer, Granted) else f"refused for {answer.retry_after:.1f}")
    hear()


def unshared(file: str) -> None:
    """Make a time namespace for one's children, as `unshare` does, with the file open before and after. Its child asks too."""
    from ctypes import CDLL

    store, token = backend(file), RUNTIME.token()
    run(store.claim(Claim("mine", token, 60.0), 5.0))
    assert CDLL(None).unshare(NEW_TIME) == 0
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write("boottime 100000 0\n")
    fresh = backend(file)
    say(f"{left(store)} {left(fresh)}")
    child = os.fork()
    if child == 0:
        say(f"{left(store)} {left(backend(file))}")
        os._exit(0)
    os.waitpid(child, 0)


def moved_in(file: str) -> None:
    """Enter another time namespace with the file open."""
    from ctypes import CDLL

    assert CDLL(None).unshare(NEW_TIME) == 0
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write("boottime 100000 0\n")
    store, before = backend(file), RUNTIME.now()
    say(str(left(store)))
    child = os.fork()  # one that is in it
    if child == 0:
        signal.pause()
    namespace = os.open(f"/proc/{child}/ns/time", os.O_RDONLY)
    say(str(left(store)))
    assert store._store._database.connected
    assert CDLL(None).setns(namespace, NEW_TIME) == 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert RUNTIME.now() > before + 90_000
    say(str(left(store)))


def left(store: Any) -> int:
    """The seconds for which a claim of "x" is refused; -1 if it is granted."""
    answer = run(store.claim(Claim("x", RUNTIME.token(), 60.0), 5.0))
    return -1 if isinstance(answer, Granted) else round(answer.retry_after)


def visit(file: str) -> None:
    """Open the file, close it, and say so."""
    store = backend(file)
    run(store.claim(Claim("visitor's", RUNTIME.token(), 60.0), 5.0))
    run(store.close())
    say("gone")


def wait(file: str, arrival: str) -> None:
    """Wait in line for the lock; say its fence, and release when told to."""
    store, token = backend(file), RUNTIME.token()
    assert not isinstance(line_up(store, token, int(arrival)), Granted)
    say("waiting")
    announced = heard(store, token, RUNTIME.now() + 30.0)
    say(str(announced and announced.fence))
    hear()
    say(str(run(store.release("x", token, 5.0))))


def stand(file: str) -> None:
    """Wait for the lock by the public face; say so when it is held, and release when told to."""
    import interlock

    with interlock.Client(f"sqlite://{file}") as client:
        say("waiting")
        lease = client.lock("x").acquire(timeout=30)
        assert 0 < lease.remaining() < 20
        say("held")
        hear()
        lease.release()
        say("released")


def die_before_telling(file: str) -> None:
    """Take the lock; when told to, release it, and be killed between the commit and the announcement."""
    from interlock.backends.sqlite import inbox

    inbox.send = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    store, token = backend(file), RUNTIME.token()
    run(store.claim(Claim("x", token, 60.0), 5.0))
    say("holding")
    hear()
    run(store.release("x", token, 5.0))


def contend(file: str, journal: str, seconds: str, ttl: str) -> None:
    """Wait in line as a flow would, again and again. The journal gets each grant when it comes and before it is given back."""
    store, end, lease = backend(file), RUNTIME.now() + float(seconds), float(ttl)
    log = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, fence: int) -> None:
        os.write(log, f"{what} {fence} {RUNTIME.now()!r}\n".encode())

    while (begun := RUNTIME.now()) < end:
        token, fence, until = RUNTIME.token(), 0, 0.0
        while not fence:
            asked = RUNTIME.now()
            answer = line_up(store, token, int(begun * 1e6), lease)
            if isinstance(answer, Granted):
                fence, until = answer.fence, asked + lease
            elif announced := heard(store, token, asked + answer.retry_after):
                fence, until = announced.fence, announced.at + announced.ttl
        if RUNTIME.now() < until - lease / 2:  # else this process slept through it
            note("in", fence)
            time.sleep(0.001)
            if RUNTIME.now() < until:
                note("out", fence)
        run(store.release("x", token, 20.0))
    run(store.close())


def fork_idle(file: str) -> None:
    """A child that never uses the client does not keep the parent's inbox alive."""
    from interlock.backends.sqlite.inbox import listens

    store, done = backend(file), os.pipe()
    inbox = run(store.open_inbox(5.0))
    if os.fork() == 0:
        os.close(done[1])
        os.read(done[0], 1)  # until the parent is dead
        say(str(listens(inbox)))
        sys.exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def fork_inbox(file: str) -> None:
    """The child neither hears what is the parent's, nor harms it by ending."""
    from interlock.backends.sqlite.inbox import listens, send
    from interlock.errors import Unavailable

    store, told, done = backend(file), os.pipe(), os.pipe()
    inbox = run(store.open_inbox(5.0))
    child = os.fork()
    if child == 0:
        try:
            run(store.hear(RUNTIME.now() + 0.1))
        except Unavailable:
            os.write(told[1], b"deaf")
        assert run(store.open_inbox(5.0)) != inbox
        send(inbox, Announced("x", "the parent's", 1, 1.0, 1.0))
        assert run(store.hear(RUNTIME.now() + 0.1)) == []
        run(store.close())
        os.close(done[1])
        assert os.read(done[0], 1) == b"", "the parent is dead"
        say(str(listens(inbox)))
        sys.exit(0)
    assert os.read(told[0], 10) == b"deaf"
    assert run(store.open_inbox(5.0)) == inbox
    assert [announced.token for announced in run(store.hear(RUNTIME.now() + 5.0))] == ["the parent's"]
    say("heard")
    os.kill(os.getpid(), signal.SIGKILL)


def keep(file: str) -> None:
    """What was kept is not finalised even by the interpreter's end."""

    class Loud:
        def __del__(self) -> None:
            say("finalised")

    forks.keep(Loud())
    sys.exit(0)


def unprivileged(file: str) -> None:
    """Use a file that this user may not write."""
    from interlock.errors import Unavailable

    store, token = backend(file), RUNTIME.token()
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        run(store.claim(Claim("x", token, 60.0), 1.0))
    except Unavailable as error:
        say(f"{error.cause}: {error}")


def user(file: str, uid: str, gid: str, name: str = "x") -> None:
    """Claim a name as somebody else, of one group; then whenever told to. Ends at the end of its input."""
    from tempfile import TemporaryDirectory

    from interlock.errors import InterlockError

    with TemporaryDirectory() as scratch:  # all that has to be imported, while it can be read
        warm = backend(f"{scratch}/locks.db")
        run(warm.claim(Claim("x", RUNTIME.token(), 60.0), 1.0))
        run(warm.close())
    store = backend(file)
    os.setgroups([int(gid)])
    os.setegid(int(gid))
    os.seteuid(int(uid))
    os.umask(0o077)
    while True:
        try:
            answer = run(store.claim(Claim(name, RUNTIME.token(), 60.0), 1.0))
            say("granted" if isinstance(answer, Granted) else "refused")
        except InterlockError as error:
            say(f"{type(error).__name__}: {error}")
        if not hear():
            return


def frugal(file: str) -> None:
    """A blocking client touches no disk before its first verb, and never imports what only tasks need."""
    from interlock.backends.registry import open_backend

    store = open_backend(f"sqlite://{file}", RUNTIME)
    assert not os.path.exists(file)
    run(store.claim(Claim("x", RUNTIME.token(), 60.0), 5.0))
    assert os.path.exists(file)
    assert not {"asyncio", "concurrent.futures", "ctypes", "pathlib", "tempfile"} & set(sys.modules)
    say("fine")  # and leaves without closing: the interpreter's end does that


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
