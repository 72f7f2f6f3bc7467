"""The bench: its arithmetic, its pictures, and that it runs from end to end on real nodes. No figure is judged here."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest
from bench import __main__ as bench
from bench import by_hand, compare, growth, install, report, stage, svg
from bench.runner import ROOT, SOURCE, Child, Row, SubjectFailed, Turn, our_command, take_turns
from bench.workloads import Target, compared

import interlock
from interlock.cli.bench.measure import percentile, quotient
from interlock.testing import Node, start_nodes, stop_nodes

# --- arithmetic -----------------------------------------------------------------------------------------------------------


def test_a_quotient_is_the_median_of_quotients_within_rounds() -> None:
    assert quotient([2.0, 30.0, 9.0], [1.0, 10.0, 9.0]) == 2.0, "not the median of one by the median of the other"
    assert quotient([2.0, 300.0, 9.0], [1.0, 100.0, 4.5]) == 2.0, "a slow round slows both"


def test_a_quotient_ignores_rounds_that_only_one_has_taken_part_in() -> None:
    assert quotient([2.0, math.nan, 2.0], [1.0, 0.1, 1.0]) == 2.0
    assert quotient([2.0], [1.0, 5.0]) == 2.0
    with pytest.raises(ValueError, match="no round"):
        quotient([math.nan], [1.0])


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.99) == 99
    assert percentile(values, 0.5) == 50
    assert percentile([7.0], 0.99) == 7


def test_two_revisions_are_compared_round_by_round() -> None:
    mine = {"rounds": [10.0, 200.0, 12.0, None], "cpu": 5.0, "bytes": 600.0}
    other = {"rounds": [20.0, 400.0, 16.0, 8.0], "cpu": 4.0, "bytes": 800.0}
    assert compared(mine, other, "ratio") == compared(mine, other, "share") == 0.5
    assert compared(mine, other, "cpu") == 1.25
    assert compared(mine, other, "bytes") == 0.75
    assert compared({"problem": "it ended"}, other, "ratio") is None
    assert compared({"problem": "it ended"}, other, "cpu") is None


def test_targets_are_judged_in_their_own_direction() -> None:
    assert Target("ratio", 1.5).judge(1.5)
    assert not Target("ratio", 1.5).judge(1.51)
    assert Target("share", 0.6).judge(0.6)
    assert not Target("share", 0.6).judge(0.59)


def test_new_figures_replace_old_ones_and_leave_the_rest() -> None:
    old = {
        "when": 1,
        "results": [{"key": "A", "v": 1}, {"key": "B", "v": 1}],
        "growth": {"nodes": 1},
        "layers": {},
        "peers": ["p"],
    }
    new = {
        "when": 2,
        "results": [{"key": "A", "v": 2}, {"key": "C", "v": 2}],
        "growth": {"names": 2},
        "layers": {},
        "peers": [],
    }
    found = bench.merged(old, new)
    assert found["when"] == 2
    assert found["results"] == [{"key": "A", "v": 2}, {"key": "B", "v": 1}, {"key": "C", "v": 2}]
    assert found["growth"] == {"nodes": 1, "names": 2}
    assert found["peers"] == ["p"]


def test_rows_of_a_table() -> None:
    floor, row = Row(), Row()
    for times in ([1000.0, 2000.0, 9000.0], [4000.0, 4000.0, 4000.0]):
        floor.add(times, 500.0)
    row.add([2500.0, 3000.0, 3000.0], 1500.0)
    row.skip()
    figures = row.figures(floor)
    assert figures == {"p50": 3.0, "p99": 3.0, "ratio": 1.5, "low": 2.5, "cpu": 1.5, "rounds": [3.0, None]}
    assert floor.figures(floor)["ratio"] == 1.0


# --- pictures and pages ---------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture: str) -> ElementTree.Element:
    """Parsed, and nothing lies outside."""
    root = ElementTree.fromstring(picture)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.attrib.get("x", 0)) + float(bar.attrib["width"]) <= width
        assert float(bar.attrib.get("y", 0)) + float(bar.attrib["height"]) <= height
    return root


@pytest.mark.parametrize("log", [False, True])
def test_curves(log: bool) -> None:
    series = {"floor": [(1, 10.0), (9, 30.0)], "a < b & c": [(1, 20.0), (3, 25.0), (9, 2_000_000.0)]}
    root = drawn(svg.lines("Cost & growth", "nodes", "us", series, log_x=log, log_y=log))
    curves = [line.attrib["points"].split() for line in root.iter(f"{SVG}polyline")]
    assert [len(curve) for curve in curves] == [2, 3]
    highest = [float(point.split(",")[1]) for point in curves[1]]
    assert highest == sorted(highest, reverse=True), "more is further up"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"Cost & growth", "nodes", "us", "floor", "a < b & c", "3"} - {"3" if log else ""} <= set(texts)


def test_a_curve_of_one_point() -> None:
    drawn(svg.lines("one", "x", "y", {"a": [(1, 5.0)]}, log_x=True))


def test_bars() -> None:
    groups = {"A: one <node>": {"interlock": 1.5, "peer": 30.0}, "B": {"interlock": 0.9}}
    root = drawn(svg.bars("Ratios", groups, {"A: one <node>": 1.5}))
    wide = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect")][1:]
    assert wide[0] < wide[1], "the longer bar is the slower one"
    assert {"A: one <node>", "1.50", "30.00", "0.90"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_a_page_is_filled_between_its_markers_and_nowhere_else() -> None:
    page = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n<!-- bench:y -->\n<!-- /bench:y -->\n"
    once = report.filled(page, {"x": r"new \1"})
    assert once == page.replace("old", r"new \1")
    assert report.filled(once, {"x": r"new \1"}) == once
    with pytest.raises(ValueError, match="no place for z"):
        report.filled(page, {"z": "text"})


# --- children and revisions -----------------------------------------------------------------------------------------------


def test_the_source_of_another_revision_is_there_and_is_gone_afterwards(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@localhost", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    module = tmp_path / "src" / "interlock" / "__init__.py"
    module.parent.mkdir(parents=True)
    git("init", "--quiet")
    for number in (1, 2):
        module.write_text(f"__version__ = '{number}'")
        git("add", "-A")
        git("commit", "--quiet", "-m", str(number))
    with compare.worktree("HEAD~1", tmp_path) as source:
        assert (source / "interlock" / "__init__.py").read_text() == "__version__ = '1'"
        assert module.read_text() == "__version__ = '2'", "the working tree stays as it is"
    assert not source.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with pytest.raises(SystemExit, match="no-such-thing"), compare.worktree("no-such-thing", tmp_path):
        pass


def test_a_subject_that_fails_is_out_and_says_why(valkey_node: Node) -> None:
    with pytest.raises(SubjectFailed, match="NoSuchThing"):
        Child(our_command("floors:NoSuchThing", {}))
    good, bad = (Child(our_command("floors:Socket", {"ports": [valkey_node.port]})) for _ in range(2))
    try:
        rows = take_turns(
            [Turn("good", good), Turn("bad", bad, before=lambda: bad._process.kill()), Turn("brief", good, rounds=1)],
            2,
            3,
            lambda _: None,
        )
    finally:
        good.close()
        bad.close()
    assert "it ended" in rows["bad"].problem
    assert len(rows["good"].medians) == 2
    assert math.isnan(rows["brief"].medians[1])
    assert median(rows["good"].all) > 0


def test_a_subject_that_runs_another_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "interlock").mkdir()  # a package without __init__ gives way to the one that is installed, if there is one
    with pytest.raises(SubjectFailed, match=r"not the source in|No module|no attribute|cannot import"):
        Child(our_command("ours:Blocking", {"ports": [1]}), tmp_path)


def test_a_peer_that_cannot_be_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(home: Path, peer: install.Peer) -> None:
        raise subprocess.CalledProcessError(1, ["uv"], stderr="no such\npackage")

    monkeypatch.setattr(install, "HOME", tmp_path)
    monkeypatch.setattr(install, "_with_uv", fails)
    found = install.install(install.Peer("some peer", ("nothing",), {"one": "RedisPy"}))
    assert (found.version, found.problem) == ("", "no such package")


def test_every_peer_has_the_adapters_that_it_names() -> None:
    from bench import peers

    for peer in install.PEERS:
        for adapter in peer.adapters.values():
            assert adapter == "peer.mjs" or hasattr(peers, adapter), adapter


def test_the_network_of_the_bench_delays_and_changes_nothing() -> None:
    def echo(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.sendall(peer.recv(100) * 2)

    from threading import Thread

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=echo, args=(server,))
        thread.start()
        command = [sys.executable, "-m", "bench.relay", "0.05", str(server.getsockname()[1])]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
            assert relay.stdout is not None
            (port,) = json.loads(relay.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as client:
                began = time.perf_counter()
                client.sendall(b"hello")
                assert client.recv(100) == b"hellohello"
                assert time.perf_counter() - began >= 0.05
                assert client.recv(100) == b"", "the goodbye passes as well"
            relay.communicate(timeout=10)
        thread.join()
    assert relay.returncode == 0


def test_requests_by_hand_take_the_lock_and_give_it_back(valkey_node: Node, tmp_path: Path) -> None:
    """What is compared with interlock must do what interlock does: draw a fence, and leave the name free."""
    nodes = start_nodes(3)
    try:
        with interlock.Client([node.url for node in nodes]) as client, client.lock("birth"):
            pass
        for ports, subjects in (
            ([valkey_node.port], ("Socket", "Shared")),
            ([node.port for node in nodes], ("Poll", "Shared")),
        ):
            some = [valkey_node] if len(ports) == 1 else nodes
            for subject in subjects:
                child = Child(our_command(f"by_hand:{subject}", {"ports": ports}))
                try:
                    fences = []
                    for _ in range(2):
                        child.ask(cycles=3)
                        fences.append([int(node.command("GET", "interlock:{by-hand}:fence")) for node in some])
                finally:
                    child.close()
                assert all(before < after for before, after in zip(*fences, strict=True))
                assert not any(node.command("EXISTS", "by-hand") for node in some)
    finally:
        stop_nodes(nodes)
    file = by_hand.Sqlite(f"{tmp_path}/locks.db")
    file.cycle()
    file.cycle()
    file.close()
    with interlock.Client(f"sqlite://{tmp_path}/locks.db") as client:
        entry = client.inspect("by-hand")
        assert not entry.held
        with client.lock("by-hand") as lease:
            assert lease.fence >= 4, "one to make the file, two by hand"


# --- from end to end ------------------------------------------------------------------------------------------------------


SMALL = ("--quick", "--rounds", "1", "--cycles", "5")


def ran(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(stage, "QUICK", stage.QUICK._replace(tasks=20, locks=2, leases=50, holding=0.1, looking=0.3))
    monkeypatch.setattr(growth, "QUICK", growth.QUICK._replace(nodes=(1, 3), waiters=(100,), leases=(100,), names=(1000,)))
    monkeypatch.setattr(sys, "argv", ["bench", *SMALL, *words])
    assert bench.main() == 0


def test_the_bench_runs_and_its_figures_fill_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "performance.md").write_text((ROOT / "docs" / "performance.md").read_text())
    written = tmp_path / "out" / "one.json"
    ran(monkeypatch, "--only", "A,B-1ms,F,SQLite,C,G,import", "--write", str(docs), "--json", str(written))
    facts: dict[str, Any] = json.loads(written.read_text())
    assert facts == json.loads((docs / "plots" / "results.json").read_text())
    assert facts["schema"] == 1
    assert facts.keys() == {"schema", "when", "machine", "size", "against", "peers", "results", "growth", "layers"}
    results = {result["key"]: result for result in facts["results"]}
    assert list(results) == ["A", "B-1ms", "F", "SQLite", "C", "G", "G-threads", "import"]
    for result in results.values():
        assert result.keys() == {"key", "title", "rows", "target", "value", "met"}
        assert "interlock" in result["rows"]
        assert not [row for row in result["rows"].values() if "problem" in row]
        assert isinstance(result["value"], float | int)
    assert list(results["A"]["rows"]) == ["raw socket", "our requests, by hand", "interlock"]
    assert results["A"]["rows"]["raw socket"].keys() == {"p50", "p99", "ratio", "low", "cpu", "rounds"}
    assert results["A"]["value"] == results["A"]["rows"]["interlock"]["ratio"]
    assert results["F"]["value"] == pytest.approx(1 / results["F"]["rows"]["interlock"]["ratio"], abs=0.001)
    assert results["B-1ms"]["rows"]["five sockets and poll"]["p50"] >= 2000, "two round trips of a millisecond"
    assert facts["growth"].keys() == {"nodes", "waiters", "leases", "names"}
    assert len(facts["layers"]) == 7, "three ways to one node and to five, and a file"
    assert all(layers["whole"] > 0 for layers in facts["layers"].values())
    page = (docs / "performance.md").read_text()
    assert "| A | One node, blocking | ≤ 1.50 x the floor |" in page
    for name in ("ratios", "nodes", "waiters", "leases", "names"):
        assert f"plots/{name}.svg" in page
        drawn((docs / "plots" / f"{name}.svg").read_text())


def test_another_revision_takes_turns_with_the_working_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def copied(revision: str) -> Iterator[Path]:
        shutil.copytree(SOURCE, tmp_path / revision / "src", ignore=shutil.ignore_patterns("__pycache__"))
        client = tmp_path / revision / "src" / "interlock" / "api" / "client.py"
        client.write_text(client.read_text() + "\nimport time\n_was = Lock.acquire\n"
                          "Lock.acquire = lambda *a, **k: (time.sleep(0.05), _was(*a, **k))[1]\n")  # fmt: skip
        yield tmp_path / revision / "src"

    monkeypatch.setattr(bench, "worktree", copied)
    ran(monkeypatch, "--only", "A", "--compare", "v0", "--json", str(tmp_path / "out.json"))
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert list(result["rows"]) == ["raw socket", "our requests, by hand", "interlock", "at v0"]
    assert result["rows"]["at v0"]["p50"] >= 50_000, "it was the other source that ran"
    assert result["quotient"] == pytest.approx(result["rows"]["interlock"]["p50"] / result["rows"]["at v0"]["p50"], abs=0.01)
    assert result["cpu_quotient"] > 0
    assert "of v0" in capsys.readouterr().out


def test_an_unknown_workload_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", "Z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no workload Z; there are A, A-aio, B" in done.stderr
