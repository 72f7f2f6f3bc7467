"""Names are literal, or docs/glossary.md says what they mean.

Each word of the name of a class or a module is in LITERAL, in the glossary, or the name as a whole is in the glossary. So a
new metaphor fails here until it has an entry. The words of the design's section 2 have theirs in any case.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from .source import ROOT, Complaints, Rule, check_rules, obey, parsed

GLOSSARY = ROOT / "docs" / "glossary.md"


def _words(text: str) -> set[str]:
    return set(text.split())


# Section 2 of the design: what everybody must be able to look up.
DESIGN = _words(
    """
    client lock semaphore rwlock multilock election lease fence token ttl timeout outage claim granted refused gone engine
    store backend quorum keeper listener line ticket slot seal term
    """
)

# Words that mean what they say to any programmer. No metaphor belongs here.
LITERAL = _words(
    """
    aclient acquire acquired aio answers api arguments array ask asked async asyncio attempt attempts backoff base batch
    bench blocking bounded broken cancelled cannot case change checks cli clock clocks closing cluster command complaints
    conformance connect connection core count counter credentials cursor database deadline deadlines default demo end endless
    error errors etcd event exits extensions failed fault faults file future handed inherited init interlock interrupted keep
    keeping key keys late latest leaving ledger limits list log loss main many measure membership memory message missing
    mount mounts name network no not number open opening options other outcome packing pair parser path plugin pool postgres
    process progress protocol proxy queries query queue reading redis refusal refusals registry renewal reply reporter
    request resource resp result rights row rows rule run sale screen script scripts seen server settings shop short shown
    signals sim socket sql sqlite stale start state statement status step stream subject table task template terminal testing
    text texts thread time tls too unavailable unset unsupported unwelcome usage value verify version wait waiting waits
    words worker wrong zookeeper
    at back collect connector exit extend extending extension hand in modes over question record release releasing renewing
    direction requests returns shared stand voting
    """
)

# Old names, until what is being renamed is merged. To be emptied by then.
BEING_RENAMED: set[str] = set()


def words_of(name: str) -> list[str]:
    """`_LocalQueue` and `local_queue` are the words local, queue."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", name)]


@cache
def glossary() -> dict[str, str]:
    """Each word of the glossary, in the singular, and its line."""
    found = {}
    for line in GLOSSARY.read_text().splitlines():
        if line.startswith("- "):
            found |= {word.lower(): line for word in re.findall(r"\*\*(.+?)\*\*", line)}
    return found


def explained(word: str) -> bool:
    return any(form in glossary() for form in (word, word.removesuffix("s"), word.removesuffix("es")))


def word_rule(path: str, source: str) -> Complaints:
    names = path.removesuffix(".py").split("/")
    names += [node.name for node in ast.walk(parsed(source)) if isinstance(node, ast.ClassDef)]
    complaints = []
    for name in names:
        words = words_of(name)
        unknown = [word for word in words if not (word in LITERAL or explained(word) or word in BEING_RENAMED)]
        if unknown and not explained(" ".join(words)):
            complaints.append(
                f"{path}: {name} is a metaphor ({', '.join(unknown)}): define it in docs/glossary.md, or add it to LITERAL if "
                "it says what it means"
            )
    return complaints


def test_metaphors_are_in_the_glossary() -> None:
    obey(word_rule)


def test_the_words_of_the_design_are_in_the_glossary() -> None:
    assert [word for word in sorted(DESIGN) if not explained(word)] == []


def test_each_word_of_the_glossary_has_a_meaning_and_one_line() -> None:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("- ")]
    assert [line for line in lines if not re.match(r"- \*\*[^*]+\*\*(, \*\*[^*]+\*\*)*: \S", line)] == []
    words = [word.lower() for line in lines for word in re.findall(r"\*\*(.+?)\*\*", line)]
    assert sorted(words) == sorted(set(words)), "one idea, one word"


def test_what_is_literal_needs_no_entry() -> None:
    assert [word for word in sorted(LITERAL | BEING_RENAMED) if explained(word)] == []


CAUGHT: list[tuple[Rule, str, str, str]] = [
    (word_rule, "flow/x.py", "class Lighthouse: ...", "Lighthouse is a metaphor"),
    (word_rule, "flow/x.py", "class _LockLighthouse: ...", "(lighthouse)"),
    (word_rule, "flow/lighthouse.py", "", "lighthouse is a metaphor"),
    (word_rule, "flow/x.py", "class A:\n    class Anchor: ...", "(anchor)"),
]
PASSED: list[tuple[Rule, str, str]] = [
    (word_rule, "flow/keeper.py", "class Keeper: ..."),
    (word_rule, "flow/local_queue.py", "class LocalQueue: ...\nclass _NameQueue: ..."),
]


def test_the_rules_are_able_to_fail() -> None:
    check_rules(CAUGHT, PASSED)
