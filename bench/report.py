"""What was measured, for people: tables on the terminal, tables and plots in the documents. All of it is made from the JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import svg

Facts = dict[str, Any]
WORDS = {
    "ratio": "{:.2f} x the floor",
    "share": "{:.0%} of the floor's speed",
    "bytes": "{:.0f} bytes each",
    "threads": "{:.0f} thread",
    "added": "{:.1f} ms",
}


def said(what: str, value: float | None) -> str:
    return "failed" if value is None else WORDS[what].format(value)


def wanted(target: Facts) -> str:
    return f"{'≥' if target['what'] == 'share' else '≤'} {said(target['what'], target['bound'])}"


def undisturbed(result: Facts) -> str:
    """The same by tenth percentiles, behind what was measured."""
    what, low = result["target"]["what"], result["rows"]["interlock"].get("low")
    if what not in ("ratio", "share") or not low:
        return ""
    return f" (undisturbed {low:.2f})" if what == "ratio" else f" (undisturbed {1 / low:.0%})"


def verdict(result: Facts) -> str:
    return "met" if result["met"] else "missed"


# --- the terminal -------------------------------------------------------------------------------------------------------


def as_text(result: Facts) -> str:
    """One workload."""
    lines = [f"{result['key']}: {result['title']}"]
    if "p50" in next(iter(result["rows"].values())):
        lines.append(f"  {'':<34}{'p50':>14}{'p99':>16}{'x floor':>10}{'undisturbed':>13}{'CPU of the client':>19}")
    for label, row in result["rows"].items():
        if "problem" in row:
            lines.append(f"  {label:<34} failed: {row['problem'][:90]}")
        elif "p50" in row:
            times = f"{row['p50']:>11,.1f} us{row['p99']:>13,.1f} us"
            lines.append(f"  {label:<34}{times}{row['ratio']:>10.2f}{row['low']:>13.2f}{row['cpu']:>16,.1f} us")
        else:
            lines.append(f"  {label:<34}" + ", ".join(f"{key} {value:,.6g}" for key, value in row.items()))
    target = result["target"]
    lines.append(f"  target {wanted(target)}: {said(target['what'], result['value'])}, {verdict(result)}")
    if "quotient" in result:
        more = f"; processor time of the client: {_quotient(result['cpu_quotient'])}" if result["cpu_quotient"] else ""
        lines.append(f"  working tree ÷ the other revision: {_quotient(result['quotient'])}{more}")
    return "\n".join(lines)


def _quotient(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def summary(facts: Facts) -> str:
    """All targets."""
    lines = [f"{'target':<52}{'wanted':>29}{'measured':>48}"]
    for result in facts["results"]:
        what = f"{result['key']:<10} {result['title']}"
        measured = said(result["target"]["what"], result["value"]) + undisturbed(result)
        tail = f"   {_quotient(result['quotient'])} of {facts['against']}" if "quotient" in result else ""
        lines.append(f"{what:<52}{wanted(result['target']):>29}{measured:>48}  {verdict(result)}{tail}")
    met = sum(result["met"] for result in facts["results"])
    lines.append(f"{met} of {len(facts['results'])} targets met. {machine(facts)}")
    if warning := busy(facts):
        lines.append(warning)
    for peer in facts["peers"]:
        if peer["problem"]:
            lines.append(f"peer {peer['name']} could not be installed: {peer['problem']}")
    return "\n".join(lines)


def busy(facts: Facts) -> str:
    """A warning, or nothing. The bench itself is a load of one."""
    if max(facts["machine"]["load"]) <= facts["machine"]["cores"] + 0.5:
        return ""
    return (
        "The machine was busy with other things. The more of the processor a subject needs, the more often it had to wait for "
        "it, so medians exaggerate; what is called undisturbed is nearer to the truth."
    )


def machine(facts: Facts) -> str:
    """One sentence."""
    known = facts["machine"]
    load = f"load {' to '.join(map(str, known['load']))}"
    return (
        f"{known['python']}, {known['server']}, redis-py {known['redis-py']}, {known['system']}, {known['processor']}, "
        f"{known['cores']} cores, {load}; {known['regime']}; {known['revision']}, {facts['when']}"
    )


# --- the documents ------------------------------------------------------------------------------------------------------


def sections(facts: Facts) -> dict[str, str]:
    """Markdown by the name of its place. Only what was measured."""
    found = {"machine": f"{machine(facts)}. {busy(facts)}".strip()}
    if facts["results"]:
        found["targets"] = _targets(facts)
        found["tables"] = "\n\n".join(
            _table(result) for result in facts["results"] if "p50" in next(iter(result["rows"].values()))
        )
    if facts["peers"]:
        found["peers"] = "\n".join(
            f"- {peer['name']}: {peer['version'] or 'not installed: ' + peer['problem']}" for peer in facts["peers"]
        )
    growth = facts["growth"]
    if growth:
        found["growth"] = "\n\n".join(_growth(name, part) for name, part in growth.items())
    if facts["layers"]:
        found["layers"] = _layers(facts["layers"])
    return found


def _targets(facts: Facts) -> str:
    lines = ["| | what | wanted | measured | |", "|---|---|---|---|---|"]
    for result in facts["results"]:
        target = result["target"]
        measured = said(target["what"], result["value"]) + undisturbed(result)
        met = "met" if result["met"] else "**missed**"
        lines.append(f"| {result['key']} | {result['title']} | {wanted(target)} | {measured} | {met} |")
    return "\n".join(lines)


def _table(result: Facts) -> str:
    lines = [
        f"**{result['key']}. {result['title']}**",
        "",
        "| subject | p50 µs | p99 µs | x floor | undisturbed | client CPU µs |",
        "|---|---|---|---|---|---|",
    ]
    for number, (label, row) in enumerate(result["rows"].items()):
        if "problem" in row:
            lines.append(f"| {label} | | | failed: {row['problem'][:80]} | | |")
        else:
            name = f"{label} (floor)" if number == 0 else f"**{label}**" if label == "interlock" else label
            times = f"{row['p50']:,.1f} | {row['p99']:,.1f}"
            lines.append(f"| {name} | {times} | {row['ratio']:.2f} | {row['low']:.2f} | {row['cpu']:,.1f} |")
    return "\n".join(lines)


def _growth(name: str, part: Facts) -> str:
    curves = part["curves"]
    lines = [f"![{part['title']}](plots/{name}.svg)", "", f"In {part['y']}:", ""]
    heads = [*curves, *(f"commands of the server, {label}" for label in part.get("commands", {}))]
    lines += [f"| {part['x']} | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    columns = [dict(points) for points in [*curves.values(), *part.get("commands", {}).values()]]
    for x in columns[0]:
        lines.append(f"| {x:,} | " + " | ".join(f"{column[x]:,}" for column in columns) + " |")
    for fact in part.get("facts", [])[-2:]:
        lines += [
            "",
            f"{fact['leases']:,} leases: {fact['lost']} lost, {fact['threads']} thread added, {fact['renewals']:,} renewals in "
            f"{fact['requests']:,} requests, {fact['cpu']:.1%} of a core.",
        ]
    if "keys" in part:
        lines += ["", f"{part['keys']:,} keys are left in the end; {part['per_second']:,} names a second, from one client."]
    return "\n".join(lines)


def _layers(found: Facts) -> str:
    layers = sorted({layer for one in found.values() for layer in one["layers"]})
    lines = ["| µs of one acquire and release | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for what in ("whole", "the server, and waiting for it", "the kernel, for us"):
        lines.append(f"| {what} | " + " | ".join(f"{one[what]:,.0f}" for one in found.values()) + " |")
    for layer in layers:
        lines.append(
            f"| Python: `{layer}` | " + " | ".join(f"{one['layers'].get(layer, 0):,.0f}" for one in found.values()) + " |"
        )
    return "\n".join(lines)


def plots(facts: Facts) -> dict[str, str]:
    """SVG by file name."""
    found = {}
    timed = [result for result in facts["results"] if result["target"]["what"] in ("ratio", "share")]
    if timed:
        groups, marks = {}, {}
        for result in timed:
            title = f"{result['key']}: {result['title']}"
            groups[title] = {label: row["ratio"] for label, row in list(result["rows"].items())[1:] if "ratio" in row}
            target = result["target"]
            marks[title] = target["bound"] if target["what"] == "ratio" else 1 / target["bound"]
        found["ratios.svg"] = svg.bars("Acquire and release: times the floor of the same round (red: target)", groups, marks)
    for name, part in facts["growth"].items():
        found[f"{name}.svg"] = svg.lines(part["title"], part["x"], part["y"], part["curves"], log_x=name != "nodes")
    return found


def write(docs: Path, facts: Facts) -> None:
    """Plots, and the tables between the markers of performance.md. What was not measured is left as it is."""
    (docs / "plots").mkdir(exist_ok=True)
    for name, picture in plots(facts).items():
        (docs / "plots" / name).write_text(picture)
    page = docs / "performance.md"
    page.write_text(filled(page.read_text(), sections(facts)))


def filled(text: str, parts: dict[str, str]) -> str:
    """The text with these parts between their markers. Raises ValueError when one has no place."""
    for name, part in parts.items():
        place = re.compile(rf"(<!-- bench:{name} -->\n).*?(<!-- /bench:{name} -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"the page has no place for {name}")
        text = place.sub(lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text)
    return text
