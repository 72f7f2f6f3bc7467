"""Importing costs next to nothing: asserted by what gets loaded in a fresh interpreter, not by a clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import interlock

SOURCE = str(Path(interlock.__file__).parents[1])
HEAVY = {
    "asyncio",
    "redis",
    "valkey",
    "hiredis",
    "sqlite3",
    "ssl",
    "http",
    "email",
    "dataclasses",
    "inspect",
    "logging",
    "socket",
}
HEAVY |= {"urllib", "typing", "threading", "random", "secrets", "hashlib", "unicodedata", "importlib.metadata", "concurrent"}


def run(code: str) -> str:
    """What a fresh interpreter prints. -I -S: neither context-packages nor the environment of this test load anything."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", f"import sys; sys.path.insert(0, {SOURCE!r})\n{code}"],
        env={key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "INTERLOCK", "COV"))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def loaded(code: str) -> set[str]:
    """The modules that some code loads and an empty program does not."""
    return set(
        json.loads(
            run(f"before = set(sys.modules)\n{code}\nnew = [*(set(sys.modules) - before)]\nimport json; print(json.dumps(new))")
        )
    )


def roots(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_importing_interlock_loads_nothing_else() -> None:
    modules = loaded("import interlock")
    assert {module for module in modules if module.startswith("interlock")} == {"interlock"}
    assert not modules & HEAVY
    assert roots(modules) <= {"interlock", *sys.stdlib_module_names}
    assert len(modules) <= 3, modules


def test_an_error_can_be_caught_without_loading_a_client() -> None:
    modules = loaded("from interlock import AcquireTimeout, LeaseLost")
    assert {module for module in modules if module.startswith("interlock")} == {"interlock", "interlock.errors"}


def test_a_blocking_program_never_meets_asyncio() -> None:
    code = """
import interlock
client = interlock.Client("memory://")
with client.lock("x", timeout=1) as lease:
    lease.extend(5)
    assert client.lock("x").try_acquire() is None
@client.locked("y:{n}")
def work(n): return n
assert work(3) == 3
client.close()
"""
    modules = loaded(code)
    assert not roots(modules) & {
        "asyncio",
        "concurrent",
        "redis",
        "valkey",
        "sqlite3",
        "ssl",
        "http",
        "email",
        "dataclasses",
        "logging",
    }
    assert not {module for module in modules if "aio" in module}
    assert roots(modules) <= {"interlock", *sys.stdlib_module_names}


def test_a_client_loads_its_own_store_only() -> None:
    modules = loaded("import interlock; interlock.Client('memory://')")
    stores = {module.split(".")[2] for module in modules if module.startswith("interlock.backends.")}
    assert stores == {"memory", "port", "registry"}
    assert not modules & {"inspect", "dataclasses", "importlib.metadata", "asyncio"}
    assert not {module for module in modules if module.startswith(("interlock.testing", "interlock.cli"))}


def test_the_blocking_redis_store_never_meets_the_asyncio_one() -> None:
    code = (
        "import interlock, sys; interlock.Client('redis://localhost'); assert 'interlock.backends.redis.aio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SOURCE}, check=True, timeout=60)


def test_every_public_name_can_be_had_and_is_listed() -> None:
    code = """
import interlock
assert dir(interlock) == sorted(interlock.__all__), dir(interlock)
for name in interlock.__all__:
    assert getattr(interlock, name) is getattr(interlock, name)
    assert name in vars(interlock), "the second look-up is a plain one"
from interlock import *
print(Client, AsyncClient, Lease, lock, UsageError, Entry, sep="\\n")
"""
    printed = run(code).split("\n")
    assert printed[0] == "<class 'interlock.api.client.Client'>"
    assert printed[3].startswith("<function lock at ")


def test_a_star_import_brings_the_public_names_and_no_others() -> None:
    code = """
import json
names = {}
exec("from interlock import *", names)
del names["__builtins__"]
print(json.dumps(sorted(names)))
"""
    assert json.loads(run(code)) == sorted(interlock.__all__)


@pytest.mark.parametrize("name", ["client", "Redlock", "_secret", "__path", "Any", "TYPE_CHECKIN"])
def test_an_unknown_name_is_an_ordinary_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'interlock' has no attribute '{name}'"):
        getattr(interlock, name)
    assert not hasattr(interlock, name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from interlock import {name}", {})


def test_the_version_is_that_of_the_project() -> None:
    import tomllib

    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["version"] == interlock.__version__


def test_types_ship_with_the_package() -> None:
    assert (Path(SOURCE) / "interlock" / "py.typed").exists()
