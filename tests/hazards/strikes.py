"""Signals that arrive before a given instruction, and whose handlers raise.

`struck` counts the instructions that this thread executes in files of interlock and in contextlib, and has a signal arrive
before the n-th. Python runs the handler where it next looks for signals: where a function begins, after a call, at a jump back.
The tracing function itself must not be that place, so the signal is set off by the end of its frame, in C.

A run of this file prints figures: `python -m tests.hazards.strikes --help`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import signal
import sys
import tempfile
import time
import uuid
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import interlock
from interlock.testing import start_nodes, stop_nodes

OURS = str(Path(interlock.__file__).parent) + "/"
FILES = (OURS, contextlib.__file__)
IGNORED = ("__del__", "_gone", "visit", "_warn_unawaited_coroutine")  # in a finaliser Python itself drops it, as it does there


class Private(Exception):
    """Of the program that uses interlock, and known to nobody else."""


ERRORS: dict[str, type[BaseException]] = {error.__name__: error for error in (TimeoutError, KeyboardInterrupt, Private)}

_arrive: Any = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object)(("PyErr_SetInterruptEx", ctypes.pythonapi))


class _Fuse:
    """The signal arrives when it is gone."""


class Strike:
    """What became of one."""

    def __init__(self) -> None:
        self.count = 0  # instructions so far
        self.where = ""  # where it arrived
        self.raised = ""  # where the handler raised
        self.elsewhere = False  # it arrived amid somebody else's code, and was let pass
        self.dropped = False  # in a place where Python itself drops it
        self.fuse: Any = None

    def __str__(self) -> str:
        return f"{self.where} -> {self.raised}"


@contextmanager
def struck(at: int, error: BaseException, only_ours: bool = False) -> Iterator[Strike]:
    """Have a signal arrive before the instruction with this number, whose handler raises `error`; `only_ours`: unless the code
    of somebody else is at work by then. (In the midst of itself an event loop does not survive that, whoever uses it.)"""
    strike = Strike()

    def handle(number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        assert frame is not None
        if only_ours and not frame.f_code.co_filename.startswith(OURS):
            strike.elsewhere = True
            return
        strike.raised = f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno} {frame.f_code.co_name}"
        while frame is not None:
            strike.dropped |= frame.f_code.co_name in IGNORED or frame.f_code.co_filename == weakref.__file__
            frame = frame.f_back
        raise error

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(FILES):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event in ("call", "opcode"):
            strike.count += 1
            if strike.count == at:
                sys.settrace(None)
                code = frame.f_code
                strike.where = f"{code.co_filename.removeprefix(OURS)}:{frame.f_lineno} {code.co_name} +{frame.f_lasti}"
                fuse = _Fuse()
                strike.fuse = weakref.ref(fuse, partial(_arrive, signal.SIGUSR1))
                return None  # and with this frame, the fuse
        return trace

    before, handler = sys.gettrace(), signal.signal(signal.SIGUSR1, handle)
    sys.settrace(trace)
    try:
        yield strike
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGUSR1, handler)


class Tally:
    """How many were tried, and which left something behind."""

    def __init__(self) -> None:
        self.tried = 0
        self.held: list[str] = []  # the store says so, one request timeout later
        self.kept: list[str] = []  # it is renewed
        self.stuck: list[str] = []  # somebody who waited was not served, or is still in line
        self.dropped: list[str] = []  # the exception was not raised to the caller

    @property
    def clean(self) -> bool:
        return not (self.held or self.kept or self.stuck or self.dropped)

    def __str__(self) -> str:
        held, kept, stuck, dropped = map(len, (self.held, self.kept, self.stuck, self.dropped))
        return f"{self.tried} boundaries: {held} left held, {kept} renewed for nobody, {stuck} stuck, {dropped} not raised"

    def places(self) -> str:
        lines = []
        for what in ("held", "kept", "stuck", "dropped"):
            lines += [f"    {what} {n:4d} {where}" for where, n in Counter(getattr(self, what)).most_common(10)]
        return "\n".join(lines)


def sweep(scene: Any, error: type[BaseException], step: int = 1, first: int = 1, within: float = 1.5) -> Tally:
    """Strike at every `step`-th boundary of a scene's work, each time with a name of its own."""
    tally, n = Tally(), first
    for _ in range(3):
        name = f"warm:{time.monotonic_ns()}"
        scene.prepare(name)
        scene.work(name)
        assert scene.finish(name)
    while True:
        name = f"strike:{n}:{time.monotonic_ns()}"
        exception, caught = error("struck"), None
        scene.prepare(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with struck(n, exception) as strike:
                    scene.work(name)
            except BaseException as raised:
                caught = raised  # and its traceback lives, as in a notebook
                if not strike.raised:
                    raise
                if not scene.notebook:
                    caught.__traceback__ = caught.__context__ = None
        served = scene.finish(name)
        if not strike.raised:  # there is no such instruction, or Python looks for signals behind all that is ours
            return tally
        tally.tried += 1
        if not served:
            tally.stuck.append(str(strike))
        if caught is not exception and not strike.dropped:
            tally.dropped.append(f"{strike}: {caught!r}")
        if not scene.notebook and scene.held(name):
            gc.collect()
        until = time.monotonic() + within
        while (held := scene.held(name)) and time.monotonic() < until:
            time.sleep(0.002)
        if held:
            tally.held.append(str(strike))
        if scene.kept(name):
            tally.kept.append(str(strike))
        del caught, exception
        n += step


def main() -> None:
    from . import test_signal_sweep as tests

    parser = argparse.ArgumentParser()
    parser.add_argument("--stores", default="memory,sqlite,valkey,quorum")
    parser.add_argument("--errors", default=",".join(ERRORS))
    parser.add_argument("--scenes", default=",".join(tests.SCENES))
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--within", type=float, default=1.5)
    options = parser.parse_args()
    nodes = start_nodes(3)
    try:
        with tempfile.TemporaryDirectory() as place:
            for store in options.stores.split(","):
                for scene in options.scenes.split(","):
                    for error in options.errors.split(","):
                        urls: dict[str, Any] = {
                            "memory": f"memory://{uuid.uuid4().hex}",
                            "sqlite": f"sqlite://{place}/{scene}.db",
                            "valkey": nodes[0].url,
                            "quorum": [node.url for node in nodes],
                        }
                        began = time.monotonic()
                        with tests.SCENES[scene](urls[store]) as stage:
                            tally = sweep(stage, ERRORS[error], options.step, within=options.within)
                        print(f"{store} {scene} {error}: {tally} ({time.monotonic() - began:.0f} s)", flush=True)
                        if not tally.clean:
                            print(tally.places(), flush=True)
    finally:
        stop_nodes(nodes)


if __name__ == "__main__":
    main()
