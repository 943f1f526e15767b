"""The rules of docs/requirements.md, and what the tests say of each. Knows no test runner and no terminal.

Tests carry the rules that they show as marks; a run of them leaves a ledger (`pytest --rule-ledger`), and one ledger
or several amount to a standing for every rule.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "LEDGERS",
    "REQUIREMENTS",
    "Check",
    "Ledger",
    "Rule",
    "Standing",
    "as_rows",
    "find_root",
    "parse_rules",
    "read_ledgers",
    "read_rules",
    "standings",
    "summary",
]

REQUIREMENTS: Final = Path("docs/requirements.md")
# Where `make test` leaves the ledgers of its runs.
LEDGERS: Final = Path(".conformance")

Result = Literal["shown", "failed", "skipped", "none"]

_SECTION: Final = re.compile(r"## (?P<title>.+)")
_RULE: Final = re.compile(r"- \*\*(?P<id>[A-Z]+-[1-9][0-9]*)\*\* (?:\[(?P<level>L[123])\] )?(?P<text>[^\[].*)")


class Rule(NamedTuple):
    """One rule of the requirements. `level` is None where the rule belongs to a profile."""

    id: str
    level: str | None
    text: str
    section: str


class Check(Struct, frozen=True, kw_only=True):
    """One test's claim to show one rule, and how the test ended."""

    rule: str
    test: str
    sentence: str
    outcome: Literal["passed", "failed", "skipped"]


class Ledger(Struct, frozen=True, kw_only=True):
    """The checks of one run. It is not complete if some tests could not even be collected."""

    complete: bool
    checks: list[Check]


class Standing(NamedTuple):
    """A rule with all its checks and what they amount to."""

    rule: Rule
    result: Result
    checks: tuple[Check, ...]


def _joined_lines(markdown: str) -> Iterator[str]:
    """The lines of `markdown`, those indented by two spaces appended to the line they continue."""
    pending: str | None = None
    for line in markdown.splitlines():
        if line.startswith("  ") and pending is not None:
            pending = f"{pending} {line.strip()}"
            continue
        if pending is not None:
            yield pending
        pending = line
    if pending is not None:
        yield pending


def _parse_rule(line: str, section: str) -> Rule:
    found = _RULE.fullmatch(line)
    if found is None:
        raise ValueError(f"{REQUIREMENTS}: not a rule: {line}")
    return Rule(id=found["id"], level=found["level"], text=found["text"], section=section)


def _refuse_repeats(rules: Sequence[Rule]) -> None:
    repeated = [rule for rule, count in Counter(rule.id for rule in rules).items() if count > 1]
    if repeated:
        raise ValueError(f"{REQUIREMENTS}: listed more than once: {', '.join(repeated)}")


def parse_rules(markdown: str) -> list[Rule]:
    """The rules of the requirements in the order of the page. A bullet that starts bold has to be a rule."""
    rules: list[Rule] = []
    section = ""
    for line in _joined_lines(markdown):
        if heading := _SECTION.fullmatch(line):
            section = heading["title"]
        elif line.startswith("- **"):
            rules.append(_parse_rule(line, section))
    _refuse_repeats(rules)
    return rules


def read_rules(root: Path) -> list[Rule]:
    return parse_rules((root / REQUIREMENTS).read_text(encoding="utf-8"))


def find_root(start: Path) -> Path:
    """The checkout that a directory is in."""
    for folder in (start, *start.parents):
        if (folder / REQUIREMENTS).is_file():
            return folder
    raise Refusal(
        Code.NOT_FOUND,
        f"{start} is in no checkout of agentpost",
        hint="The rules are shown by tests, which are in the repository: clone it, and run `make conformance` there.",
    )


def read_ledgers(paths: Sequence[Path]) -> Ledger:
    """All of them as one. What was run again counts as it ended the last time."""
    latest: dict[tuple[str, str], Check] = {}
    complete = True
    for path in paths:
        try:
            ledger = msgspec.json.decode(path.read_bytes(), type=Ledger)
        except OSError as problem:
            raise Refusal(Code.NOT_FOUND, f"{path} cannot be read: {problem.strerror}") from None
        except msgspec.DecodeError as problem:
            raise Refusal(
                Code.INVALID_FIELD, f"{path} is no ledger of a test run: {problem}", field="results"
            ) from None
        complete = complete and ledger.complete
        latest |= {(check.test, check.rule): check for check in ledger.checks}
    return Ledger(complete=complete, checks=list(latest.values()))


def _result(outcomes: Collection[str]) -> Result:
    if "failed" in outcomes:
        return "failed"
    if "passed" in outcomes:
        return "shown"
    return "skipped" if outcomes else "none"


def standings(rules: Iterable[Rule], checks: Iterable[Check]) -> list[Standing]:
    """Every rule with its checks. A check of a rule that does not exist means a stale ledger: refused."""
    by_rule: defaultdict[str, list[Check]] = defaultdict(list)
    for check in checks:
        by_rule[check.rule].append(check)
    rows: list[Standing] = []
    for rule in rules:
        claims = tuple(by_rule.pop(rule.id, ()))
        rows.append(Standing(rule, _result({check.outcome for check in claims}), claims))
    if by_rule:
        raise Refusal(
            Code.CONFLICT,
            f"the ledger names rules that are not in {REQUIREMENTS}: {', '.join(by_rule)}",
            hint="It is of another version: run `make conformance` again.",
        )
    return rows


def summary(rows: Sequence[Standing]) -> str:
    count = Counter(row.result for row in rows)
    return (
        f"{len(rows)} rules: {count['shown']} shown, {count['failed']} failed, "
        f"{count['skipped']} skipped, {count['none']} without a check"
    )


def as_rows(rows: Iterable[Standing]) -> list[dict[str, Any]]:
    return [
        {
            "level": row.rule.level,
            "rule": row.rule.id,
            "result": row.result,
            "evidence": [
                {"test": check.test, "sentence": check.sentence, "outcome": check.outcome} for check in row.checks
            ],
        }
        for row in rows
    ]
