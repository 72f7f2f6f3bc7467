"""`interlock run` on a terminal: keys reach the command, the foreground goes there and back, pipelines and scripts behave."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import interlock

from .run_support import Screen, alive, children, until, written
from .support import COMMAND, Holder

PYTHON = sys.executable
RUN = (*COMMAND, "run", "job")
FOREGROUND = "import os, sys; print('mine' if os.tcgetpgrp(2) == os.getpgrp() else 'not mine', flush=True)"


def free(url: str) -> bool:
    with interlock.Client(url) as client:
        return not client.inspect("job").held


def shell(tmp_path: Path, *lines: str) -> tuple[str, str]:
    """A script without job control, as files of commands are run."""
    path = tmp_path / "script"
    path.write_text("\n".join(lines))
    return "/bin/bash", str(path)


def test_ctrl_c_ends_the_command_and_the_lock_is_free(url: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with Screen(*RUN, "--", "sh", "-c", f"echo $$ > {pid}; exec sleep 100", INTERLOCK_URL=url) as screen:
        until(written(pid))
        screen.type("\x03")
        assert screen.end() == 130
        assert screen.text == "^C"
    assert not alive(int(pid.read_text()))
    assert free(url)


def test_ctrl_c_ends_the_wait(url: str) -> None:
    with Holder(url, "job"):
        with Screen(*RUN, "--", "echo", "ran", INTERLOCK_URL=url) as screen:
            until(lambda: children(screen.pid), "the supervisor")
            time.sleep(0.5)
            screen.type("\x03")
            assert screen.end() == 130
            assert screen.text == "^C"
        assert not free(url)


def test_the_command_has_the_foreground_and_the_keyboard_and_gives_them_back(url: str, tmp_path: Path) -> None:
    script = shell(
        tmp_path,
        f"{shlex.join(RUN)} -- {PYTHON} -c {shlex.quote(FOREGROUND + '; print(sys.stdin.readline().strip().upper())')}",
        f"{PYTHON} -c {shlex.quote(FOREGROUND)}",
        'read line; echo "then $line"',
    )
    with Screen(*script, INTERLOCK_URL=url) as screen:
        screen.wait_for("mine\r\n")
        screen.type("hello\n")
        screen.wait_for("HELLO\r\nmine\r\n")
        screen.type("again\n")
        screen.wait_for("then again")
        assert screen.end() == 0
    assert screen.text.replace("\r", "").split("\n") == ["mine", "hello", "HELLO", "mine", "again", "then again", ""]


def test_in_a_pipeline_the_others_keep_the_terminal_until_the_command_asks(url: str, tmp_path: Path) -> None:
    command = f"{FOREGROUND}; print(open('/dev/tty').readline().upper(), flush=True); {FOREGROUND}"
    with Screen(
        *shell(tmp_path, f"{shlex.join(RUN)} -- {PYTHON} -c {shlex.quote(command)} | cat"), INTERLOCK_URL=url
    ) as screen:
        screen.wait_for("not mine")
        screen.type("hello\n")
        screen.wait_for("HELLO")
        assert screen.end() == 0
    assert screen.text.replace("\r", "").split() == ["not", "mine", "hello", "HELLO", "mine"]


def test_ctrl_c_in_a_pipeline_reaches_the_command(url: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    line = f"{shlex.join(RUN)} -- sh -c 'echo $$ > {pid}; exec sleep 100' | cat"
    with Screen(*shell(tmp_path, line), INTERLOCK_URL=url) as screen:
        until(written(pid))
        screen.type("\x03")
        screen.end()
    until(lambda: not alive(int(pid.read_text())), "the command to end")
    until(lambda: free(url), "the lock")


def test_ctrl_c_ends_a_script_too(url: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = shell(tmp_path, f"{shlex.join(RUN)} -- sh -c 'echo $$ > {pid}; exec sleep 100'", "echo next")
    with Screen(*script, INTERLOCK_URL=url) as screen:
        until(written(pid))
        screen.type("\x03")
        assert screen.end() == -2
        assert "next" not in screen.text
    assert free(url)


def test_ctrl_z_does_not_stop_the_holder(url: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"echo > {ready}; read line; echo got $line"
    with Screen(*RUN, "--", "sh", "-c", script, INTERLOCK_URL=url) as screen:
        until(written(ready))
        screen.type("\x1a")
        screen.wait_for("Ctrl-Z would block everybody who waits for job")
        screen.type("more\n")
        screen.wait_for("got more")
        assert screen.end() == 0


def test_job_control_of_an_interactive_shell(url: str, tmp_path: Path) -> None:
    """Started in the background, a command that wants the keyboard stands still until `fg`."""
    with Screen("/bin/bash", "--norc", "--noprofile", "-i", INTERLOCK_URL=url, PS1="$ ") as screen:
        screen.wait_for("$ ")
        screen.type(f"{shlex.join(RUN)} -- sed -u 's/$/!/;q' &\n")
        screen.wait_for("wants the terminal and stands still")
        screen.type("fg\n")
        screen.type("hello\n")
        screen.wait_for("hello!")
        screen.type("echo code $?\n")
        screen.wait_for("code 0")
        screen.type("exit\n")
        screen.end()
