"""The command line as a person or a program meets it: real processes, real exit codes."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from agentpost import __version__
from agentpost.protocol.errors import Code
from agentpost.store.sqlite import SqliteStore
from agentpost.testing import a_message
from tests.warm.client import run_warm


def run(*words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home or "/nonexistent"), "COLUMNS": "100"}
    return run_warm(*words, timeout=1200, environment=environment)


@pytest.fixture
async def filled_home(tmp_path: Path) -> Path:
    path = tmp_path / "vps-jane"
    store = SqliteStore.open(path, node_id="vps-jane", epoch="first", now_ms=0)
    await store.append([a_message(source_node_id="vps-jane", body=f"number {n}") for n in range(3)])
    await store.close()
    return path


def test_it_tells_its_version() -> None:
    """`agentpost --version`, as it is installed, prints the version and nothing else."""
    shown = subprocess.run([Path(sys.executable).with_name("agentpost"), "--version"], capture_output=True, text=True)
    assert (shown.stdout, shown.stderr) == (f"agentpost {__version__}\n", "")


def test_it_shows_help_when_asked_for_nothing() -> None:
    """Without words the command shows what it can do."""
    shown = run()
    assert "store" in shown.stdout
    assert "bench" in shown.stdout


def test_a_wrong_word_is_a_usage_error() -> None:
    """A command that does not exist ends with exit code 2 and a sentence on stderr."""
    shown = run("stroe")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert "stroe" in shown.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["errors"],
        ["store", "check"],
        ["store", "backup"],
        ["bench", "protocol"],
        ["bench", "store"],
        ["bench", "room"],
        ["bench", "crowd"],
        ["bench", "idle"],
        ["fetch"],
        ["up"],
        ["down"],
        ["status"],
        ["doctor"],
        ["invite"],
        ["invites"],
        ["invites", "withdraw"],
        ["join"],
        ["nodes"],
        ["revoke"],
    ],
    ids=" ".join,
)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    """`--help` of every command explains it and ends with an example."""
    shown = run(*command, "--help")
    assert shown.returncode == 0
    assert f"Example: agentpost {' '.join(command)}" in shown.stdout


def test_the_catalogue_of_errors_is_complete() -> None:
    """`agentpost errors -o json` lists every code with its status and what to do."""
    rows = json.loads(run("errors", "-o", "json").stdout)
    assert {row["code"] for row in rows} == {code.value for code in Code}
    assert all(row["hint"] and 400 <= row["status"] < 600 for row in rows)


def test_check_says_that_a_home_is_whole(filled_home: Path) -> None:
    """A whole home passes the check, in text and in JSON."""
    assert "whole" in run("store", "check", "--home", str(filled_home)).stdout
    report = json.loads(run("store", "check", "--home", str(filled_home), "-o", "json").stdout)
    assert report["problems"] == []
    assert report["outboxLastSeq"] == 3


def test_check_says_what_is_damaged_and_what_to_do(filled_home: Path) -> None:
    """A bit that has changed is told with its place and a next step; the exit code is 1."""
    database = filled_home / "agentpost.db"
    with contextlib.closing(apsw.Connection(str(database))) as connection:
        body = connection.execute("SELECT body FROM outbox WHERE seq = 2").fetchone()[0]
    content = bytearray(database.read_bytes())
    content[content.rindex(body) + 20] ^= 1
    database.write_bytes(content)
    shown = run("store", "check", "--repair", "--home", str(filled_home))
    assert shown.returncode == 1
    assert "problem outbox: the hash chain breaks at seq 2" in " ".join(shown.stdout.split())
    assert "what to do" in shown.stdout
    report = json.loads(run("store", "check", "--home", str(filled_home), "-o", "json").stdout)
    assert report["remedies"]
    assert report["droppedPayloads"] == []


def test_check_finds_the_only_home_by_itself(filled_home: Path, tmp_path: Path) -> None:
    """With one home in ~/.agentpost nobody has to say which; with two, the answer names both."""
    homes = tmp_path / "user" / ".agentpost"
    homes.mkdir(parents=True)
    filled_home.rename(homes / "vps-jane")
    assert run("store", "check", home=tmp_path / "user").returncode == 0
    (homes / "mbp-jane").mkdir()
    shown = run("store", "check", home=tmp_path / "user")
    assert shown.returncode == 1
    assert "mbp-jane, vps-jane" in shown.stderr


@pytest.mark.parametrize("words", [("up", "--detach"), ("status",)], ids=" ".join)
def test_the_first_command_of_all_is_told_how_to_name_the_node(words: tuple[str, ...], tmp_path: Path) -> None:
    """Whoever has no gateway yet learns how to start one, and that it needs a name."""
    shown = run(*words, home=tmp_path)
    assert shown.returncode == 1
    assert "`agentpost up --node NAME`" in shown.stderr
    unnamed = run("up", "--detach", "--home", str(tmp_path / "vps-jane"))
    assert unnamed.returncode == 2
    assert "`agentpost up --node NAME`" in unnamed.stderr


def test_backup_copies_and_never_overwrites(filled_home: Path, tmp_path: Path) -> None:
    """A backup can be checked like a home, and a second one to the same file is refused."""
    target = tmp_path / "monday.db"
    assert run("store", "backup", str(target), "--home", str(filled_home)).returncode == 0
    assert json.loads(run("store", "check", "--home", str(target), "-o", "json").stdout)["outboxEvents"] == 3
    before = target.read_bytes()
    shown = run("store", "backup", str(target), "--home", str(filled_home))
    assert shown.returncode == 1
    assert "exists already" in " ".join(shown.stderr.split())
    assert target.read_bytes() == before


def test_an_error_is_a_sentence_or_the_one_json_shape(tmp_path: Path) -> None:
    """What goes wrong is said on stderr, as text or as JSON, without a traceback, and stdout stays empty."""
    text = run("store", "check", "--home", str(tmp_path / "none"))
    assert (text.returncode, text.stdout) == (1, "")
    assert text.stderr.startswith("not_found: ")
    as_json = run("store", "check", "--home", str(tmp_path / "none"), "-o", "json")
    assert (as_json.returncode, as_json.stdout) == (1, "")
    assert json.loads(as_json.stderr)["error"]["code"] == "not_found"


def test_a_file_that_is_not_a_database_is_refused_in_words(tmp_path: Path) -> None:
    """Something else than a home is called damaged, not crashed on."""
    (tmp_path / "agentpost.db").write_bytes(b"not a database at all" * 100)
    shown = run("store", "check", "--home", str(tmp_path))
    assert shown.returncode == 1
    assert "storage_corrupt" in shown.stderr
    assert "Traceback" not in shown.stderr


# `.ci/run` runs the whole of it anyway.
@pytest.mark.long
@pytest.mark.req("PIPE-3", "RTY-6")
def test_the_demo_keeps_its_promises() -> None:
    """The demo kills a real process and finds everything that was acknowledged."""
    shown = run("demo", "--no-pipeline", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["kept"] is True
    assert result["acknowledged"] >= 500
    assert result["missing"] == 0
    assert result["states"] == ["Replied", "Replied"]
    assert result["answers"] == ["Done: check the release notes", "Done: run the nightly build"]
    assert result["nodes"] == dict.fromkeys(("lab-jane", "mbp-jane", "vps-jane"), "online")
    assert result["modelAnswer"] == "Yes: all tests are green."


def test_bench_prints_metrics_that_a_program_can_read() -> None:
    """`agentpost bench … -o json` is one array of figures, ratios included, and progress stays on stderr."""
    protocol = json.loads(run("bench", "protocol", "--rounds", "1", "-o", "json").stdout)
    assert all({"metric", "value", "unit"} <= row.keys() for row in protocol)
    store = json.loads(run("bench", "store", "--rounds", "1", "--rows", "20000", "-o", "json").stdout)
    ratios = [row["ratio"] for row in store if "ratio" in row]
    assert len(ratios) == 6
    assert all(ratio > 0 for ratio in ratios)


@pytest.mark.waits
def test_a_small_crowd_delivers_everything_and_an_idle_mesh_is_measured() -> None:
    """The benches with many gateways start them, join them, measure, and leave no process behind."""
    small = ("--gateways", "2", "--seconds", "1", "-o", "json")
    crowd = {
        row["metric"]: row for row in json.loads(run("bench", "crowd", "--agents", "4", "--rate", "10", *small).stdout)
    }
    assert crowd["messages"]["value"] == 10
    assert {"against", "ratio"} <= crowd["sent to processed, p95"].keys()
    idle = json.loads(run("bench", "idle", *small).stdout)
    assert [row["unit"] for row in idle] == ["% of a core", "MB"] * 2
    assert run("bench", "crowd", "--gateways", "4", "--agents", "3").returncode == 2
