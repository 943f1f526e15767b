"""Shows for every rule of docs/requirements.md which tests claim it and how they ended.

Runs the tests that carry a `req` mark, or renders the ledger of an earlier run. Data goes to stdout, what
pytest says to stderr. Exit code 0: no check failed; 1: one did, or tests could not be run; 2: wrong usage.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Check", "Rule", "Standing", "main", "parse_rules", "read_checks", "read_rules", "standings"]

ROOT: Final = Path(__file__).resolve().parent.parent
REQUIREMENTS: Final = Path("docs/requirements.md")

Result = Literal["shown", "failed", "skipped", "none"]

_LOOKS: Final[dict[Result, Text]] = {
    "shown": Text("shown", style="green"),
    "failed": Text("FAILED", style="bold red"),
    "skipped": Text("skipped", style="yellow"),
    "none": Text("—", style="dim"),
}

_SECTION: Final = re.compile(r"## (?P<title>.+)")
_RULE: Final = re.compile(r"- \*\*(?P<id>[A-Z]+-[1-9][0-9]*)\*\* (?:\[(?P<level>L[123])\] )?(?P<text>[^\[].*)")

_PYTEST_PASSED: Final = 0
_PYTEST_NOTHING_COLLECTED: Final = 5


class Rule(NamedTuple):
    """One rule of the requirements. `level` is None where the rule belongs to a profile."""

    id: str
    level: str | None
    text: str
    section: str


class Check(NamedTuple):
    """One test's claim to show one rule, and how the test ended: passed, failed or skipped."""

    rule: str
    test: str
    sentence: str
    outcome: str


class Standing(NamedTuple):
    """A rule with all its checks and what they amount to."""

    rule: Rule
    result: Result
    checks: tuple[Check, ...]


class Run(NamedTuple):
    """The checks of one run of pytest. `complete` is false when some could not even be collected."""

    checks: list[Check]
    complete: bool


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


def read_checks(ledger: Path) -> list[Check]:
    """The rows that `pytest --rule-ledger` wrote."""
    return [Check(**row) for row in json.loads(ledger.read_text(encoding="utf-8"))]


def run_checks(root: Path) -> Run:
    """Run the tests of `root` that claim a rule, and read what they left in the ledger."""
    with tempfile.TemporaryDirectory(prefix="agentpost-conformance-") as scratch:
        ledger = Path(scratch) / "ledger.json"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "req", f"--rule-ledger={ledger}"]
        done = subprocess.run(command, cwd=root, stdout=sys.__stderr__, check=False)
        checks = read_checks(ledger) if ledger.exists() else []
    failed = any(check.outcome == "failed" for check in checks)
    complete = failed or done.returncode in {_PYTEST_PASSED, _PYTEST_NOTHING_COLLECTED}
    return Run(checks=checks, complete=complete)


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
        raise ValueError(f"the ledger names rules that are not in {REQUIREMENTS}: {', '.join(by_rule)}")
    return rows


def summary(rows: Sequence[Standing]) -> str:
    count = Counter(row.result for row in rows)
    return (
        f"{len(rows)} rules: {count['shown']} shown, {count['failed']} failed, "
        f"{count['skipped']} skipped, {count['none']} without a check"
    )


def as_table(rows: Iterable[Standing]) -> Table:
    table = Table(expand=True, box=SIMPLE)
    table.add_column("rule", no_wrap=True)
    table.add_column("level", no_wrap=True)
    table.add_column("what it says", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("checks", no_wrap=True, justify="right")
    table.add_column("result", no_wrap=True)
    for section, members in groupby(rows, key=lambda row: row.rule.section):
        table.add_section()
        table.add_row("", "", Text(section, style="bold"))
        for row in members:
            table.add_row(*_cells(row))
    return table


def _cells(row: Standing) -> tuple[str, str, Text, str, Text]:
    # Text, not str: rich would read the brackets of `toAgents=["all"]` as markup.
    says = Text(re.sub(r"`|\*\*", "", row.rule.text))
    return row.rule.id, row.rule.level or "", says, str(len(row.checks)), _LOOKS[row.result]


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


def _print_text(shown: Sequence[Standing], rows: Sequence[Standing]) -> None:
    console = Console(highlight=False)
    if shown:
        console.print(as_table(shown))
    console.print(summary(rows))


def _print_json(shown: Sequence[Standing]) -> None:
    print(json.dumps(as_rows(shown), indent=2, ensure_ascii=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conformance", description=f"The rules of {REQUIREMENTS} and their checks.")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="how to print it")
    parser.add_argument("--results", metavar="FILE", type=Path, help="render this ledger instead of running the tests")
    parser.add_argument("--missing", action="store_true", help="list only the rules without a check")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        run = run_checks(ROOT) if options.results is None else Run(read_checks(options.results), complete=True)
        rows = standings(read_rules(ROOT), run.checks)
    except (OSError, ValueError, TypeError) as problem:
        parser.error(str(problem))
    shown = [row for row in rows if row.result == "none"] if options.missing else rows
    if options.output == "json":
        _print_json(shown)
    else:
        _print_text(shown, rows)
    if not run.complete:
        print("The tests could not all be run, so the result is not complete; see above.", file=sys.stderr)
    failed = any(row.result == "failed" for row in rows)
    return 1 if failed or not run.complete else 0


if __name__ == "__main__":
    sys.exit(main())
