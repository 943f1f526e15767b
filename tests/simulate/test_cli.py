"""`agentpost simulate` from the command line."""

import json
from pathlib import Path

import pytest

from tests.edges.running import agentpost


def test_a_fleet_is_one_command(tmp_path: Path) -> None:
    """The command writes a lake and says what is in it, as JSON for programs; its parts come one by one."""
    words = ("--nodes", "4", "--agents", "8", "--events", "2000", "--batches", "3,1", "--faults", "gap,black_hole")
    made = agentpost("simulate", "fleet", "--lake", str(tmp_path / "lake"), *words, "-o", "json")
    assert made.returncode == 0, made.stderr
    said = json.loads(made.stdout)
    truth = json.loads((tmp_path / "lake" / "truth.json").read_text())
    assert (said["events"], said["faults"], said["parts"]) == (truth["events"], len(truth["faults"]), 2)
    assert said["seconds"] > 0
    assert {fault["rule"] for fault in truth["faults"]} == {"gap", "black_hole"}
    released = agentpost("simulate", "release", "--lake", str(tmp_path / "lake"), "--part", "0", "-o", "json")
    assert json.loads(released.stdout)["segments"] == len(list((tmp_path / "lake").glob("manifests/*/*/*.json")))
    again = agentpost("simulate", "release", "--lake", str(tmp_path / "lake"), "--part", "0", "-o", "json")
    assert (again.returncode, json.loads(again.stderr)["error"]["code"]) == (1, "not_found")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--nodes", "1"), "nodes"),
        (("--faults", "nonsense"), "faults"),
        (("--batches", "many"), "batches"),
        (("--batches", "1,-2"), "parts"),
        (("--end", "tomorrow"), "end"),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path: Path, words: tuple[str, ...], field: str) -> None:
    """Options that make no sense are refused with a code, and no lake is left behind."""
    done = agentpost("simulate", "fleet", "--lake", str(tmp_path / "lake"), *words, "-o", "json")
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"]) == (2, "invalid_field")
    assert field in json.dumps(error)
    assert not (tmp_path / "lake").exists()
