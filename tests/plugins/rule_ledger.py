"""Ties tests to rules: reads the `req` marks, refuses bad ones, writes which test showed which rule.

    @pytest.mark.req("ENV-2", "PIPE-3")
    def test_seq_has_no_holes(): ...

Knows which rules docs/requirements.md lists, and nothing of what they say.
"""

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tools.conformance import REQUIREMENTS, Check, read_rules


class Claim(NamedTuple):
    """What a test says it shows: its rules, and the sentence that people read."""

    rules: tuple[str, ...]
    sentence: str


_CLAIMS: Final = pytest.StashKey[dict[str, Claim]]()
_OUTCOMES: Final = pytest.StashKey[dict[str, str]]()
_FROM_BEST_TO_WORST: Final = ("passed", "skipped", "failed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("agentpost").addoption(
        "--rule-ledger",
        metavar="FILE",
        type=Path,
        help="write which rules were shown by which tests, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CLAIMS] = {}
    config.stash[_OUTCOMES] = {}


# First, so that a bad mark is found on a test that `-k` or `-m` would leave out.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("req")]
    if not marked:
        return
    known = _known_rules(config.rootpath)
    defects = [defect for item in marked for defect in _defects(item, known)]
    if defects:
        raise pytest.UsageError("\n".join(["bad req marks:", *(f"  {defect}" for defect in defects)]))
    config.stash[_CLAIMS] = {item.nodeid: Claim(_rules(item), _sentence(item)) for item in marked}


# First, hence outermost: the report as the other plugins leave it (xfail becomes skipped).
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A setup that passed shows nothing yet: the run may be interrupted before the test itself.
    if not (report.when == "setup" and report.passed):
        outcomes = item.config.stash[_OUTCOMES]
        outcomes[item.nodeid] = _worse(outcomes.get(item.nodeid, "passed"), report.outcome)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    ledger: Path | None = session.config.getoption("--rule-ledger")
    if ledger is not None:
        rows = [check._asdict() for check in _checks(session.config)]
        ledger.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _checks(config: pytest.Config) -> list[Check]:
    outcomes = config.stash[_OUTCOMES]
    return [
        Check(rule=rule, test=test, sentence=claim.sentence, outcome=outcomes[test])
        for test, claim in config.stash[_CLAIMS].items()
        if test in outcomes
        for rule in claim.rules
    ]


def _known_rules(root: Path) -> frozenset[str]:
    try:
        return frozenset(rule.id for rule in read_rules(root))
    except (OSError, ValueError) as problem:
        raise pytest.UsageError(f"the rules cannot be read: {problem}") from problem


def _rules(item: pytest.Item) -> tuple[str, ...]:
    """The rules of all `req` marks of the test, its class and its module, each once."""
    return tuple(dict.fromkeys(rule for mark in item.iter_markers("req") for rule in mark.args))


def _sentence(item: pytest.Item) -> str:
    docstring: str = getattr(getattr(item, "obj", None), "__doc__", None) or ""
    return next((line.strip() for line in docstring.splitlines() if line.strip()), "")


def _defects(item: pytest.Item, known: frozenset[str]) -> Sequence[str]:
    rules = _rules(item)
    defects = [f"{item.nodeid}: {rule} is not a rule of {REQUIREMENTS}" for rule in rules if rule not in known]
    if not rules:
        defects.append(f"{item.nodeid}: the mark names no rule")
    if not _sentence(item):
        defects.append(f"{item.nodeid}: no docstring; it is the sentence that is shown with the rule")
    return defects


def _worse(one: str, other: str) -> str:
    return max(one, other, key=_FROM_BEST_TO_WORST.index)
