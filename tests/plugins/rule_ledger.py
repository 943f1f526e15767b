"""Ties tests to rules: reads the `req` marks, refuses bad ones, writes which test showed which rule.

    @pytest.mark.req("ENV-2", "PIPE-3")
    def test_seq_has_no_holes(): ...

Knows which rules docs/requirements.md lists, and nothing of what they say.
"""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest

from agentpost.conformance import REQUIREMENTS, Check, Ledger, read_rules

Outcome = Literal["passed", "skipped", "failed"]

_CHECKS: Final = pytest.StashKey[dict[tuple[str, str], Check]]()
_FROM_BEST_TO_WORST: Final = ("passed", "skipped", "failed")
# Rules and sentence travel with the report of a test, from the process that ran it to the one that keeps the ledger.
_CLAIM: Final = "rule_ledger_claim"
# After any other status some tests were not run: interrupted, not collected, or pytest itself failed.
_WHOLE: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("agentpost").addoption(
        "--rule-ledger",
        metavar="FILE",
        type=Path,
        help="write which rules were shown by which tests, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CHECKS] = {}


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


# First, hence outermost: the report as the other plugins leave it (xfail becomes skipped).
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A setup that passed shows nothing yet: the run may be interrupted before the test itself.
    if item.get_closest_marker("req") and not (report.when == "setup" and report.passed):
        setattr(report, _CLAIM, (_rules(item), _sentence(item)))
    return report


class _Collector:
    """Hears of all reports, also of those of other processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        checks = self._config.stash[_CHECKS]
        rules, sentence = getattr(report, _CLAIM, ((), ""))
        for rule in rules:
            before = checks.get((report.nodeid, rule))
            outcome = report.outcome if before is None else _worse(before.outcome, report.outcome)
            checks[report.nodeid, rule] = Check(rule=rule, test=report.nodeid, sentence=sentence, outcome=outcome)


def pytest_sessionstart(session: pytest.Session) -> None:
    if _ledger_of(session.config) is not None:
        session.config.pluginmanager.register(_Collector(session.config))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    path = _ledger_of(session.config)
    if path is not None:
        # Several processes end their tests in no order.
        checks = sorted(session.config.stash[_CHECKS].values(), key=lambda check: check.test)
        ledger = Ledger(complete=exitstatus in _WHOLE, checks=checks)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(ledger)) + b"\n")


def _ledger_of(config: pytest.Config) -> Path | None:
    """Where the ledger is to be written; nowhere by a process that runs tests for another one."""
    return None if hasattr(config, "workerinput") else config.getoption("--rule-ledger")


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


def _worse(one: Outcome, other: Outcome) -> Outcome:
    return max(one, other, key=_FROM_BEST_TO_WORST.index)
