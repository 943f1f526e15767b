"""The rules are read as they are written, marks are checked, and the ledger says what happened."""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from agentpost.conformance import (
    Check,
    Ledger,
    Standing,
    find_root,
    parse_rules,
    read_ledgers,
    read_rules,
    standings,
    summary,
)
from agentpost.protocol.errors import Refusal
from tests.edges.running import agentpost
from tests.plugins import rule_ledger

ROOT = find_root(Path(__file__))

RULES_PER_SECTION = {
    "ENV": 8,
    "PIPE": 9,
    "CUR": 6,
    "ACK": 5,
    "RTY": 7,
    "ROUTE": 10,
    "TASK": 8,
    "CAP": 7,
    "ROOM": 6,
    "AUTH": 9,
    "EXT": 6,
    "OPS": 9,
    "MBX": 11,
    "OBS": 11,
}

TWO_RULES = """\
# Rules

- A bullet that is not a rule.

## ENV · envelope

- **ENV-1** [L1] The first rule
  goes on here.
- **ENV-2** The second.

  Words that belong to the second.

## Notes

- Nothing to see.
"""

FOUR_RULES = TWO_RULES.replace("## Notes", "## CUR · cursors\n\n- **CUR-1** [L2] Third.\n- **CUR-2** Fourth.\n")


def check(rule: str, outcome: Literal["passed", "failed", "skipped"]) -> Check:
    return Check(rule=rule, test=f"tests/test_x.py::test_{outcome}", sentence=f"It {outcome}.", outcome=outcome)


class TestTheRequirements:
    def test_every_rule_is_there_once_and_in_order(self) -> None:
        """docs/requirements.md lists each section's rules from 1 upwards, without a gap or a repeat."""
        expected = [f"{name}-{number + 1}" for name, count in RULES_PER_SECTION.items() for number in range(count)]
        assert [rule.id for rule in read_rules(ROOT)] == expected

    def test_every_rule_stands_in_its_own_section(self) -> None:
        """A rule is listed under the heading that its id names."""
        for rule in read_rules(ROOT):
            assert rule.section.startswith(f"{rule.id.partition('-')[0]} · ")

    @pytest.mark.parametrize(
        ("level", "rules"),
        [
            ("L1", "ENV-1 ENV-5 PIPE-3 CUR-2 ACK-3 RTY-3 ROUTE-1 TASK-4 AUTH-1"),
            ("L2", "CUR-3 CUR-5 ACK-4 TASK-8 CAP-1 CAP-4 CAP-6"),
            ("L3", "AUTH-7 AUTH-8 EXT-3 EXT-4 OBS-10"),
            (None, "ENV-6 PIPE-9 RTY-6 TASK-5 CAP-5 ROOM-1 OPS-1 MBX-1 OBS-11"),
        ],
    )
    def test_the_level_is_read(self, level: str | None, rules: str) -> None:
        """A tag gives the conformance level; a rule without one has none."""
        levels = {rule.id: rule.level for rule in read_rules(ROOT)}
        assert {levels[rule] for rule in rules.split()} == {level}


class TestTheParser:
    def test_a_rule_may_continue_on_indented_lines(self) -> None:
        """Indented lines belong to the rule above, other bullets and headings do not."""
        first, second = parse_rules(TWO_RULES)
        assert first == ("ENV-1", "L1", "The first rule goes on here.", "ENV · envelope")
        assert second.level is None
        assert second.text == "The second."

    def test_a_repeated_rule_is_refused(self) -> None:
        """Two rules with one id would hide each other."""
        with pytest.raises(ValueError, match="more than once: ENV-1"):
            parse_rules("- **ENV-1** One.\n- **ENV-1** Two.\n")

    @pytest.mark.parametrize(
        "line",
        [
            "- **ENV-1** [L4] No such level.",
            "- **ENV-1**",
            "- **ENV** No number.",
            "- **ENV-0** Starts at one.",
        ],
    )
    def test_a_misspelt_rule_is_refused(self, line: str) -> None:
        """A typing error in a rule is reported; the rule does not drop out of the list."""
        with pytest.raises(ValueError, match="not a rule"):
            parse_rules(line)


class Project:
    """A project in a temporary directory with the two rules ENV-1 and ENV-2."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.ledger = pytester.path / "ledger.json"
        pytester.mkdir("docs").joinpath("requirements.md").write_text(TWO_RULES)
        pytester.makeini("[pytest]\naddopts = --strict-markers\nmarkers = req(*rules): the rules")

    def run(self, source: str, *options: str) -> pytest.RunResult:
        self.pytester.makepyfile(f"import pytest\n\n{source}")
        return self.pytester.runpytest_inprocess(*options, plugins=[rule_ledger])

    def run_with_ledger(self, source: str) -> list[Check]:
        self.run(source, f"--rule-ledger={self.ledger}")
        return self.written().checks

    def written(self) -> Ledger:
        return msgspec.json.decode(self.ledger.read_bytes(), type=Ledger)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    # The other plugins would be imported anew for every project, a second each time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Project(pytester)


TWO_DEFECTS = '''
@pytest.mark.req("ENV-98")
def test_a():
    """It works."""

@pytest.mark.req("ENV-1")
def test_b():
    pass
'''


class TestTheMarks:
    def test_an_unknown_rule_stops_the_run(self, project: Project) -> None:
        """A test that claims a rule which does not exist is a defect, and is named."""
        result = project.run('@pytest.mark.req("ENV-1", "ENV-99")\ndef test_it():\n    """It works."""\n')
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*::test_it: ENV-99 is not a rule of docs/requirements.md*"])

    def test_a_missing_docstring_stops_the_run(self, project: Project) -> None:
        """A test that claims a rule has a sentence that says what it shows."""
        result = project.run('@pytest.mark.req("ENV-1")\ndef test_it():\n    pass\n')
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*::test_it: no docstring*"])

    def test_a_mark_without_a_rule_stops_the_run(self, project: Project) -> None:
        """An empty mark claims nothing and is most likely a slip."""
        result = project.run('@pytest.mark.req()\ndef test_it():\n    """It works."""\n')
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*::test_it: the mark names no rule*"])

    def test_all_defects_are_listed_at_once(self, project: Project) -> None:
        """One run is enough to learn of every bad mark, also on tests that are not selected."""
        result = project.run(TWO_DEFECTS, "-k", "neither")
        result.stderr.fnmatch_lines(["*::test_a: ENV-98 *", "*::test_b: no docstring*"])

    def test_a_project_without_the_page_is_told_so(self, project: Project) -> None:
        """Marks cannot be checked without the list of rules."""
        (project.pytester.path / "docs" / "requirements.md").unlink()
        result = project.run('@pytest.mark.req("ENV-1")\ndef test_it():\n    """It works."""\n')
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*the rules cannot be read: *requirements.md*"])

    def test_tests_without_a_mark_are_left_alone(self, project: Project) -> None:
        """A test that claims no rule needs no docstring."""
        assert project.run("def test_it():\n    pass\n").ret == pytest.ExitCode.OK


OUTCOMES = '''
@pytest.fixture
def broken_before():
    raise RuntimeError

@pytest.fixture
def broken_after():
    yield
    raise RuntimeError

@pytest.mark.req("ENV-1", "ENV-2")
def test_passes():
    """It holds.

    More about it.
    """

@pytest.mark.req("ENV-1")
def test_fails():
    """It breaks."""
    assert False

@pytest.mark.req("ENV-1")
def test_skips():
    """It waits."""
    pytest.skip("not here")

@pytest.mark.req("ENV-1")
@pytest.mark.xfail
def test_is_known_to_fail():
    """It will hold some day."""
    assert False

@pytest.mark.req("ENV-1")
def test_cannot_start(broken_before):
    """It has no ground to stand on."""

@pytest.mark.req("ENV-1")
def test_cannot_end(broken_after):
    """It leaves a mess."""

def test_claims_nothing():
    pass
'''

# In the order of their names: tests that run beside each other end in none.
OUTCOMES_LEFT = [
    ("ENV-1", "test_cannot_end", "failed"),
    ("ENV-1", "test_cannot_start", "failed"),
    ("ENV-1", "test_fails", "failed"),
    ("ENV-1", "test_is_known_to_fail", "skipped"),
    ("ENV-1", "test_passes", "passed"),
    ("ENV-2", "test_passes", "passed"),
    ("ENV-1", "test_skips", "skipped"),
]

INTERRUPTED = """
@pytest.mark.req("ENV-1")
def test_it():
    '''It would hold.'''
    raise KeyboardInterrupt
"""

INHERITED = '''
pytestmark = pytest.mark.req("ENV-1")

@pytest.mark.req("ENV-2", "ENV-1")
@pytest.mark.parametrize("n", [1, 2])
def test_it(n):
    """It holds for every n."""
'''


class TestTheLedger:
    def test_each_claim_is_a_row(self, project: Project) -> None:
        """A row has the rule, the test, the first line of its docstring and the outcome of all its phases."""
        rows = project.run_with_ledger(OUTCOMES)
        passed = "test_each_claim_is_a_row.py::test_passes"
        assert Check(rule="ENV-1", test=passed, sentence="It holds.", outcome="passed") in rows
        assert [(row.rule, row.test.partition("::")[2], row.outcome) for row in rows] == OUTCOMES_LEFT
        assert project.written().complete

    def test_processes_beside_each_other_leave_one_ledger(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What tests show in the processes of pytest-xdist is in the ledger as if one had run them all."""
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        project.pytester.makepyfile(f"import pytest\n\n{OUTCOMES}")
        plugins = ("-p", "xdist.plugin", "-p", rule_ledger.__name__)
        project.pytester.runpytest_subprocess(*plugins, "-n", "2", f"--rule-ledger={project.ledger}")
        rows = project.written().checks
        assert [(row.rule, row.test.partition("::")[2], row.outcome) for row in rows] == OUTCOMES_LEFT

    def test_marks_of_module_and_test_add_up(self, project: Project) -> None:
        """Each parameter set is a check of its own, and a rule that is named twice counts once."""
        rows = project.run_with_ledger(INHERITED)
        assert [(row.rule, row.test.partition("::")[2]) for row in rows] == [
            ("ENV-2", "test_it[1]"),
            ("ENV-1", "test_it[1]"),
            ("ENV-2", "test_it[2]"),
            ("ENV-1", "test_it[2]"),
        ]

    def test_an_interrupted_test_shows_nothing(self, project: Project) -> None:
        """A test that was begun and not finished is not evidence, and the run was not whole."""
        project.pytester.makepyfile(f"import pytest\n{INTERRUPTED}")
        project.pytester.inline_run(f"--rule-ledger={project.ledger}", plugins=[rule_ledger], no_reraise_ctrlc=True)
        assert project.written() == Ledger(complete=False, checks=[])

    def test_a_test_file_that_does_not_load_is_not_a_success(self, project: Project) -> None:
        """When tests cannot be collected, the ledger says that the run was not whole."""
        assert project.run_with_ledger("import no_such_module") == []
        assert not project.written().complete

    def test_no_option_no_file(self, project: Project) -> None:
        """Without --rule-ledger nothing is written."""
        project.run('@pytest.mark.req("ENV-1")\ndef test_it():\n    """It works."""\n')
        assert not project.ledger.exists()


def one_of_each() -> list[Standing]:
    checks = [check("ENV-1", "passed"), check("ENV-1", "skipped"), check("ENV-2", "passed")]
    return standings(parse_rules(FOUR_RULES), [*checks, check("ENV-2", "failed"), check("CUR-1", "skipped")])


class TestTheResult:
    def test_one_failure_outweighs_and_a_skip_shows_nothing(self) -> None:
        """A rule is shown if some check passed and none failed; skipped checks alone show nothing."""
        assert [(row.rule.id, row.result, len(row.checks)) for row in one_of_each()] == [
            ("ENV-1", "shown", 2),
            ("ENV-2", "failed", 2),
            ("CUR-1", "skipped", 1),
            ("CUR-2", "none", 0),
        ]

    def test_the_summary_counts_rules(self) -> None:
        """The last line says how many rules are shown, failed, skipped and without a check."""
        assert summary(one_of_each()) == "4 rules: 1 shown, 1 failed, 1 skipped, 1 without a check"

    def test_a_ledger_of_other_rules_is_refused(self) -> None:
        """A row for a rule that is gone means that the ledger is out of date."""
        with pytest.raises(Refusal, match="ENV-7"):
            standings(parse_rules(TWO_RULES), [check("ENV-7", "passed")])


def write_ledger(path: Path, *checks: Check, complete: bool = True) -> Path:
    path.write_bytes(msgspec.json.encode(Ledger(complete=complete, checks=list(checks))))
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    checks = (check("ENV-1", "passed"), check("ENV-2", "failed"), check("ROUTE-8", "skipped"))
    return write_ledger(tmp_path / "ledger.json", *checks)


class TestTheCommand:
    def test_the_table_is_grouped_and_ends_with_the_summary(self, ledger: Path) -> None:
        """People get one row for each rule under its section, and a failed check is exit code 1."""
        shown = agentpost("conformance", "--results", str(ledger))
        assert shown.returncode == 1
        lines = shown.stdout.splitlines()
        assert any("ENV · event envelope" in line for line in lines)
        assert any("ENV-2" in line and "FAILED" in line for line in lines)
        assert any("ROUTE-8" in line and '["all"]' in line and "skipped" in line for line in lines)
        assert any("OBS-11" in line and "—" in line for line in lines)
        assert lines[-1] == "112 rules: 1 shown, 1 failed, 1 skipped, 109 without a check"

    def test_json_is_one_array_with_the_evidence(self, ledger: Path) -> None:
        """Programs get every rule with its level, its result and the tests behind it."""
        rows = rows_of("--results", str(ledger))
        assert len(rows) == 112
        assert rows[0] == {
            "level": "L1",
            "rule": "ENV-1",
            "result": "shown",
            "evidence": [{"test": "tests/test_x.py::test_passed", "sentence": "It passed.", "outcome": "passed"}],
        }
        assert rows[-1] == {"level": None, "rule": "OBS-11", "result": "none", "evidence": []}

    def test_missing_lists_only_what_has_no_check(self, ledger: Path) -> None:
        """--missing leaves out every rule that some test claims, whatever became of the test."""
        rows = rows_of("--results", str(ledger), "--missing")
        assert {row["result"] for row in rows} == {"none"}
        assert {"ENV-1", "ENV-2", "ROUTE-8"}.isdisjoint(row["rule"] for row in rows)

    def test_without_a_failure_the_exit_code_is_0(self, tmp_path: Path) -> None:
        """Rules without a check are reported and do not fail the command."""
        empty = write_ledger(tmp_path / "ledger.json")
        assert agentpost("conformance", "--results", str(empty)).returncode == 0

    def test_what_was_not_run_is_no_success(self, tmp_path: Path) -> None:
        """A run that was cut off says so, and is exit code 1 even if nothing failed in it."""
        cut_off = write_ledger(tmp_path / "ledger.json", check("ENV-1", "passed"), complete=False)
        shown = agentpost("conformance", "--results", str(cut_off))
        assert shown.returncode == 1
        assert "not complete" in shown.stderr

    @pytest.mark.parametrize("text", ["", "[1]", '[{"rule": "ENV-1"}]', "{}x"])
    def test_what_is_no_ledger_is_refused(self, tmp_path: Path, text: str) -> None:
        """A file of another shape is a usage error, not a traceback."""
        path = tmp_path / "ledger.json"
        path.write_text(text)
        shown = agentpost("conformance", "--results", str(path))
        assert shown.returncode == 2
        assert "is no ledger of a test run" in shown.stderr


def rows_of(*words: str) -> list[dict[str, Any]]:
    return json.loads(agentpost("conformance", *words, "-o", "json").stdout)


class TestSeveralLedgers:
    def test_what_was_run_again_counts_as_it_ended_last(self, tmp_path: Path) -> None:
        """A test that failed beside others and passed alone shows its rule; other tests stay as they were."""
        others = Check(rule="ENV-2", test="tests/test_x.py::test_other", sentence="It is.", outcome="passed")
        again = check("ENV-1", "passed")
        failed = Check(rule="ENV-1", test=again.test, sentence=again.sentence, outcome="failed")
        first = write_ledger(tmp_path / "mesh.json", failed, others)
        second = write_ledger(tmp_path / "alone.json", again)
        assert read_ledgers([first, second]) == Ledger(complete=True, checks=[again, others])
        assert not read_ledgers([write_ledger(first, complete=False), second]).complete

    def test_outside_a_checkout_the_command_says_where_the_tests_are(self, tmp_path: Path) -> None:
        """Rules are shown by tests, and tests are in the repository: an installed package sends people there."""
        with pytest.raises(Refusal, match="in no checkout") as refused:
            find_root(tmp_path)
        assert "make conformance" in refused.value.hint
