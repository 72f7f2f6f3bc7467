"""`interlock run`: exit codes, options, what the command gets, and what is said. Faults are in test_run_faults.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import interlock
from interlock.testing.nodes import Node

from .run_support import Background, until, written
from .support import COMMAND, Holder, Run, environment
from .test_main import HEAVY, imported_by

PYTHON = sys.executable


def free(url: str, name: str = "job") -> bool:
    with interlock.Client(url) as client:
        return not client.inspect(name).held


# --- exit codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 75, 255])
def test_the_exit_code_is_the_commands_own(run: Run, url: str, code: int) -> None:
    done = run("run", "job", "--url", url, "--", "sh", "-c", f"exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert free(url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_command_that_a_signal_ended(run: Run, url: str, number: int) -> None:
    done = run("run", "job", "--url", url, "--", "sh", "-c", f"ulimit -c 0; kill -{number} $$")
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert free(url)


def test_a_lock_that_is_held(run: Run, url: str) -> None:
    with Holder(url, "job") as holder:
        waited = run("run", "job", "--timeout", "200ms", "--url", url, "--", "echo", "ran")
        synonym = run("run", "job", "--wait", "0.1", "--url", url, "--", "echo", "ran")
        at_once = run("run", "job", "-n", "--url", url, "--", "echo", "ran")
        other = run("run", "job", "--no-wait", "-E", "9", "--url", url, "--", "echo", "ran")
        zero = run("run", "job", "-n", "-E", "0", "--url", url, "--", "echo", "ran")
        quiet = run("run", "job", "-n", "--quiet", "--url", url, "--", "echo", "ran")
        skipped = run("run", "job", "--skip", "--url", url, "--", "echo", "ran")
        patient = run("run", "job", "--skip", "--timeout", "100ms", "--url", url, "--", "echo", "ran")
    everybody = [waited, synonym, at_once, other, zero, quiet, skipped, patient]
    assert [done.returncode for done in everybody] == [75, 75, 75, 9, 0, 75, 0, 0]
    assert "".join(done.stdout for done in everybody) == ""
    assert [done.stderr.count("\n") for done in everybody] == [1, 1, 1, 1, 1, 0, 0, 0]
    assert waited.stderr.startswith("interlock: job is held by ")
    assert f":{holder.pid}; waited 0." in waited.stderr
    assert at_once.stderr.rstrip().endswith(f":{holder.pid}")


def test_it_waits_for_ever_by_default(url: str) -> None:
    with Holder(url, "job") as holder:
        waiting = Background("job", "--url", url, "--", "echo", "ran")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting._popen.wait(1)
        assert holder.pid
    with waiting:
        assert waiting.end() == (0, "ran\n", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--", "true"], "NAME"),
        (["job"], "Put it behind --"),
        (["job", "--"], "Put it behind --"),
        (["job", "true"], "Put it behind --"),
        (["job", "--frob", "--", "true"], "--frob"),
        (["a{b}", "--", "true"], "brace"),
        (["job", "--ttl", "5 minutes", "--", "true"], "not a duration"),
        (["job", "--ttl", "1ms", "--", "true"], "too short"),
        (["job", "--ttl", "30d", "--", "true"], "too long"),
        (["job", "--timeout", "-1", "--", "true"], "--timeout"),
        (["job", "--grace", "30s", "--ttl", "30s", "--", "true"], "half of the ttl"),
        (["job", "--grace", "16", "--", "true"], "half of the ttl"),
        (["job", "--at-least", "x", "--", "true"], "--at-least"),
        (["job", "--at-least", "0", "--", "true"], "--at-least 0: 10 ms to 7 days"),
        (["job", "--at-least", "8d", "--", "true"], "--at-least 8d: 10 ms to 7 days"),
        (["job", "--ttl", "", "--", "true"], "--ttl"),  # as from an unset variable
        (["job", "--at-least", "", "--", "true"], "--at-least"),
        (["job", "--max-hold", "", "--", "true"], "--max-hold"),
        (["job", "--lock-delay", "", "--", "true"], "--lock-delay"),
        (["job", "--max-hold", "5s", "--", "true"], "max_hold"),
        (["job", "--lock-delay", "8d", "--", "true"], "lock_delay"),
        (["job", "--reason", "two\nlines", "--", "true"], "one line"),
        (["job", "--on-lost", "pray", "--", "true"], "--on-lost"),
        (["job", "-E", "256", "--", "true"], "0 to 255"),
        (["job", "-E", "x", "--", "true"], "0 to 255"),
        (["job", "-n", "--timeout", "3", "--", "true"], "exclude"),
        (["job", "--standby", "--timeout", "3", "--", "true"], "exclude"),
        (["job", "--standby", "-n", "--", "true"], "exclude"),
        (["job", "--skip", "-n", "--", "true"], "--skip"),
        (["job", "--skip", "-E", "3", "--", "true"], "--skip"),
        (["job", "--standby", "--on-lost", "warn", "--", "true"], "--standby"),
    ],
)
def test_a_wrong_command_line(run: Run, arguments: list[str], complaint: str) -> None:
    done = run("run", *arguments)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("interlock: ")
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr
    assert "run --help" in done.stderr


@pytest.mark.parametrize("duration", ["250ms", "30s", "10m", "1h", "1.5h", "2d", "30", "0.25"])
def test_durations(run: Run, tmp_path: Path, duration: str) -> None:
    done = run("run", "job", "--ttl", duration, "--url", f"sqlite:///{tmp_path}/l", "--", "sh", "-c", "echo $INTERLOCK_TTL_MS")
    assert (done.returncode, done.stderr) == (0, "")
    milliseconds = {"250ms": 250, "10m": 600_000, "1h": 3_600_000, "1.5h": 5_400_000, "2d": 172_800_000, "0.25": 250}
    assert int(done.stdout) == milliseconds.get(duration, 30_000)


@pytest.mark.parametrize("url", ["nonsense", "http://x", "redis://", "memory://x"])
def test_a_url_that_cannot_work(run: Run, url: str) -> None:
    done = run("run", "job", "--", "echo", "ran", env={"INTERLOCK_URL": url})
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.count("\n") == 1


def test_a_key_that_is_no_lock(run: Run, node: Node) -> None:
    node.command("DEL", "list")
    node.command("RPUSH", "list", "x")
    done = run("run", "list", "--url", node.url, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (78, "")
    assert "not a lock" in done.stderr


def test_a_store_that_is_not_there_and_a_wrong_password(run: Run) -> None:
    with Node(password="sEcr3t-pa55") as locked:
        wrong = run("run", "job", "--url", f"redis://:sEcr3t-no@127.0.0.1:{locked.port}", "--", "echo", "ran")
        right = run("run", "job", "--", "echo", "ran", env={"INTERLOCK_URL": locked.url})
        locked.kill()
        dead = run("run", "job", "--", "echo", "ran", env={"INTERLOCK_URL": locked.url})
        hushed = run("run", "job", "--quiet", "--", "echo", "ran", env={"INTERLOCK_URL": locked.url})
    assert (wrong.returncode, wrong.stdout) == (69, "")
    assert (right.returncode, right.stdout, right.stderr) == (0, "ran\n", "")
    assert (dead.returncode, dead.stdout) == (69, "")
    assert wrong.stderr.count("\n") == dead.stderr.count("\n") == 1
    assert (hushed.returncode, hushed.stdout, hushed.stderr) == (69, "", "")
    assert "sEcr3t" not in wrong.stderr + dead.stderr


def test_a_command_that_is_not_there_is_found_out_without_waiting(run: Run, tmp_path: Path, url: str) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    with Holder(url, "job"):  # who waited would wait for ever
        missing = run("run", "job", "--url", url, "--", "no-such-command")
        no_path = run("run", "job", "--url", url, "--", str(tmp_path / "nope"))
        no_directory = run("run", "job", "--url", url, "--", str(plain / "nope"))
        not_executable = run("run", "job", "--url", url, "--", str(plain))
        a_directory = run("run", "job", "--url", url, "--", str(tmp_path))
    assert [done.returncode for done in (missing, no_path, no_directory)] == [127] * 3
    assert [done.returncode for done in (not_executable, a_directory)] == [126] * 2
    assert missing.stderr == "interlock: no-such-command: command not found\n"
    assert not_executable.stderr == f"interlock: {plain}: cannot be run: Permission denied\n"


def test_a_long_line_is_a_line(run: Run, url: str) -> None:
    err = run("run", "job", "--url", url, "--", "é" * 2500).stderr
    assert (err[-20:], err.count("\n")) == (": command not found\n", 1)


@pytest.mark.parametrize(("text", "why"), [("echo hi\n", "first line"), ("#!/no/such/shell\n", "interpreter")])
def test_a_command_that_only_the_kernel_refuses_leaves_the_lock_free(
    run: Run, tmp_path: Path, url: str, text: str, why: str
) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    done = run("run", "job", "--at-least", "1m", "--url", url, "--", str(script))
    assert (done.returncode, done.stdout) == (126, "")
    assert why in done.stderr
    assert free(url)


def test_a_bug_of_ours_is_70_and_the_command_does_not_outlive_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = (
        "import sys; from interlock.cli.run import watch; from interlock.cli.main import main\n"
        "watch.Watch._stopped = lambda self, number: 1 / 0\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [PYTHON, "-c", script, "run", "job", "--grace", "1s", "--", "sh", "-c", f"echo $$ > {pid}; sleep 100"],
        env=environment(INTERLOCK_URL=f"sqlite:///{tmp_path}/l"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(written(pid))
    process.send_signal(signal.SIGTSTP)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 70
    assert "interlock: a bug in interlock, please report it: ZeroDivisionError('division by zero')" in err
    assert not os.path.exists(f"/proc/{pid.read_text().strip()}")


def test_a_quorum(run: Run, make_nodes: Callable[..., list[Node]]) -> None:
    nodes = make_nodes(3)
    url = ",".join(node.url for node in nodes)
    assert run("run", "job", "--url", url, "--", "echo", "ran").stdout == "ran\n"
    nodes[0].kill()
    done = run("run", "job", "--url", url, "--", "echo", "ran")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    nodes[1].kill()
    done = run("run", "job", "--url", url, "--", "echo", "ran")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)


def test_the_help_has_the_codes_and_costs_nothing(run: Run) -> None:
    done = run("run", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  interlock run nightly -- " in done.stdout.partition("examples:")[2]
    assert all(f"{code} " in done.stdout.partition("exit codes:")[2] for code in (64, 69, 70, 71, 75, 78, 79, 126, 127))
    assert max(map(len, done.stdout.splitlines())) < 80
    code, modules = imported_by("run", "--help")
    assert code == 0
    assert modules & HEAVY == set()


# --- what the command gets ------------------------------------------------------------------------------------------------


def test_stdin_stdout_and_stderr_are_the_commands(url: str) -> None:
    command = [*COMMAND, "run", "job", "--url", url, "--", "sh", "-c", "cat; echo oops >&2"]
    done = subprocess.run(command, env=environment(), input=b"\0\xff data", capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\0\xff data", b"oops\n")


def test_other_descriptors_are_passed_on_as_well(url: str) -> None:
    """As the shell's `diff <(…) <(…)` needs it. Ours are not."""
    read, write = os.pipe()
    command = [*COMMAND, "run", "job", "--url", url, "--", "sh", "-c", f"echo through > /proc/self/fd/{write}; ls /proc/$$/fd"]
    done = subprocess.run(command, env=environment(), pass_fds=[write], capture_output=True, timeout=60, check=True)
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read() == b"through\n"
    assert set(map(int, done.stdout.split())) == {0, 1, 2, write}


def test_no_shell_reads_the_command(run: Run, url: str) -> None:
    done = run("run", "job", "--url", url, "--", "printf", "%s\n", "$HOME", "a  b", ";", "--", "-n")
    assert done.stdout == "$HOME\na  b\n;\n--\n-n\n"


def test_the_environment(run: Run, node: Node) -> None:
    script = "import os; print(*(os.environ[f'INTERLOCK_{key}'] for key in 'LOCK FENCE OWNER TTL_MS HELD'.split()))"
    seen = []
    for _ in range(2):
        with Background("job/é", "--ttl", "20s", "--url", node.url, "--", PYTHON, "-c", script) as job:
            code, out, err = job.end()
            assert (code, err) == (0, "")
            lock, fence, owner, ttl, held = out.split()
            assert (lock, ttl, held) == ("job/é", "20000", "1")
            assert owner == f"{os.uname().nodename}:{job.pid}"
            seen.append(int(fence))
    assert 0 < seen[0] < seen[1]


def test_the_token_is_nowhere_to_be_seen(node: Node, tmp_path: Path) -> None:
    node.command("DEL", "job")
    pid = tmp_path / "pid"
    with Background("job", "--url", node.url, "--", "sh", "-c", f"echo $$ > {pid}; exec sleep 100") as job:
        until(written(pid))
        token = node.command("GET", "job")
        secret = token[:32]
        assert len(secret) == 32
        for process in (job.pid, job.supervisor, int(pid.read_text())):
            for place in ("environ", "cmdline"):
                assert secret not in Path(f"/proc/{process}/{place}").read_bytes()
        job.send(signal.SIGTERM)
        _, out, err = job.end()
        assert secret.decode() not in out + err


def test_a_run_inside_a_run(run: Run, url: str) -> None:
    inner = [*COMMAND, "run", "inner", "--ttl", "7s", "--", "sh", "-c", "echo $INTERLOCK_LOCK $INTERLOCK_TTL_MS"]
    done = run("run", "outer", "--", *inner, env={"INTERLOCK_URL": url})
    assert (done.returncode, done.stdout, done.stderr) == (0, "inner 7000\n", "")
    assert free(url, "outer")
    assert free(url, "inner")


def test_a_run_inside_itself_is_found_out(run: Run, url: str) -> None:
    done = run("run", "job", "--", *COMMAND, "run", "job", "--", "true", env={"INTERLOCK_URL": url})
    assert (done.returncode, done.stdout) == (64, "")
    assert "would wait for itself" in done.stderr
    busy = run("run", "job", "--", *COMMAND, "run", "job", "-n", "--", "true", env={"INTERLOCK_URL": url})
    assert busy.returncode == 75
    elsewhere = ["run", "job", "--url", f"{url}2" if url.startswith("sqlite") else f"{url}/2", "--", "echo", "ran"]
    assert run("run", "job", "--url", url, "--", *COMMAND, *elsewhere).stdout == "ran\n"


def test_the_commands_signals_are_as_they_were(run: Run, url: str) -> None:
    """Ignored ones stay ignored (nohup), the rest is default, nothing is blocked; not what Python makes of them."""
    look = "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status"
    plain = run("run", "job", "--url", url, "--", "sh", "-c", look)
    command = " ".join([*COMMAND, "run", "job", "--url", url, "--"])
    nohup = subprocess.run(
        ["sh", "-c", f"trap '' HUP; exec {command} sh -c \"{look}\""],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    def ignored(text: str) -> int:
        masks = dict(line.split() for line in text.splitlines())
        assert int(masks["SigBlk:"], 16) == 0
        return (
            int(masks["SigIgn:"], 16) & 0x7FFFFFFF
        )  # posix_spawn, by which Python 3.13 may start us, ignores two of its own above

    # What we ourselves were started with (a job in the background ignores Ctrl-C) is handed down as well.
    ours = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(number) is signal.SIG_IGN)
    assert ignored(plain.stdout) == ours
    assert ignored(nohup.stdout) == ours | 1 << (signal.SIGHUP - 1)


def test_a_parent_that_does_not_bury_its_dead(url: str) -> None:
    """SIGCHLD ignored, as some daemons leave it: the exit code is there all the same."""
    script = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [PYTHON, "-c", script, *COMMAND, "run", "job", "--url", url, "--", "sh", "-c", "exit 3"]
    assert subprocess.run(command, env=environment(), timeout=60, check=False).returncode == 3


def test_what_the_command_leaves_in_the_background_is_left_alone(run: Run, url: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"(sleep 0.5; echo done > {mark}) >/dev/null 2>&1 & exit 0"
    done = run("run", "job", "--url", url, "--", "sh", "-c", script)
    assert done.returncode == 0
    assert free(url)
    until(written(mark), "the background process")


def test_a_reason_is_shown_to_whoever_waits(run: Run, url: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"echo > {ready}; exec sleep 100"
    with Background("job", "--reason", "release 812", "--url", url, "--", "sh", "-c", script) as job:
        until(written(ready))
        busy = run("run", "job", "-n", "--url", url, "--", "true")
        shown = run("status", "job", "--url", url)
        job.send(signal.SIGTERM)
    assert busy.stderr.rstrip().endswith(f":{job.pid} (release 812)")
    assert "release 812" in shown.stdout


# --- holding it longer ----------------------------------------------------------------------------------------------------


def test_the_lock_stays_shut_for_at_least_so_long(run: Run, url: str) -> None:
    done = run("run", "job", "--at-least", "2s", "--url", url, "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    busy = run("run", "job", "-n", "--url", url, "--", "true")
    assert busy.returncode == 75
    after = run("run", "job", "--timeout", "20s", "--url", url, "--", "echo", "ran")
    assert (after.returncode, after.stdout) == (0, "ran\n")


def test_the_exit_code_of_a_short_command_is_kept(run: Run, url: str) -> None:
    done = run("run", "job", "--at-least", "1h", "--ttl", "1s", "--url", url, "--", "false")
    assert (done.returncode, done.stderr) == (1, "")
    assert not free(url)
    with interlock.Client(url) as client:
        assert 3000 < (client.inspect("job").remaining or 0) <= 3600, "no process waits, and nobody cut it down to the ttl"


def test_the_longest_time_to_hold_it(run: Run, url: str) -> None:
    options = ("--ttl", "600ms", "--grace", "200ms", "--max-hold", "1500ms", "--url", url)
    done = run("run", "job", *options, "--", "sleep", "100")
    assert (done.returncode, done.stdout) == (79, "")
    assert done.stderr.splitlines()[-1] == "interlock: lost job (--max-hold is over); the command was stopped"
    assert run("run", "job", *options, "--", "true").returncode == 0


def test_a_command_that_takes_longer_leaves_nothing(run: Run, url: str) -> None:
    done = run("run", "job", "--at-least", "10ms", "--url", url, "--", "sleep", "0.2")
    assert done.returncode == 0
    assert free(url)


def test_a_command_may_run_much_longer_than_the_ttl(run: Run, url: str) -> None:
    done = run("run", "job", "--ttl", "600ms", "--grace", "100ms", "--url", url, "--", "sleep", "2.5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert free(url)


def test_closed_streams_do_not_matter(url: str) -> None:
    command = " ".join([*COMMAND, "run", "job", "--url", url, "--", "sh", "-c", "'exit 7'"])
    done = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], env=environment(), timeout=60, check=False)
    assert done.returncode == 7
    with Holder(url, "job"):
        command = " ".join([*COMMAND, "run", "job", "-n", "--url", url, "--", "true"])
        done = subprocess.run(
            ["sh", "-c", f"{command} 2>&-"], env=environment(), stdout=subprocess.PIPE, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (75, b""), "and our words do not go to stdout instead"
