"""The commands of the pipeline as people type them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentpost.edges.cli.app import make_app
from agentpost.edges.cli.pipeline_options import time_us_of
from agentpost.pipeline import session
from agentpost.protocol.errors import Refusal
from agentpost.testing import START_MS
from tests.pipeline.lakes import Outbox, write_keys

HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "duckdb")


def test_other_commands_load_no_spark() -> None:
    """`agentpost --help`, and with it every gateway, loads neither Spark nor Arrow."""
    load = "import sys; from agentpost.edges.cli.app import make_app; make_app()"
    code = f"{load}; sys.exit(str([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_without_spark_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PySpark is missing, every command of the pipeline says which extra to install."""
    monkeypatch.setattr(session, "find_spec", lambda _name: None)
    for words in (["run"], ["watch"], ["compact"], ["sql", "select 1"]):
        done = CliRunner().invoke(make_app(), ["pipeline", *words, "--lake", str(tmp_path)])
        assert isinstance(done.exception, Refusal)
        assert "agentpost[pipeline]" in done.exception.hint


def test_a_place_without_a_lake_is_refused(tmp_path: Path) -> None:
    """Without a lake or tables there is a clear answer, before any Java is started."""
    for words, said in ((["run"], "no lake"), (["watch"], "no lake"), (["sql", "select 1"], "no tables")):
        done = CliRunner().invoke(make_app(), ["pipeline", *words, "--lake", str(tmp_path)])
        assert isinstance(done.exception, Refusal)
        assert said in done.exception.message


def test_times_as_people_write_them() -> None:
    """A day, a second, a millisecond, or how long ago; anything else is refused with the field."""
    assert time_us_of("2026-02-25", field="now") == time_us_of("2026-02-25T00:00:00Z", field="now")
    assert time_us_of("2026-02-25T00:00:00.001Z", field="now") - time_us_of("2026-02-25", field="now") == 1000
    assert time_us_of("2h", field="since", now_us=7_200_000_001) == 1
    for text in ("yesterday", "7x", "", "2026-13-01"):
        with pytest.raises(Refusal) as refused:
            time_us_of(text, field="since", now_us=0)
        assert refused.value.field == "since"


@pytest.mark.long
def test_run_and_ask(tmp_path: Path) -> None:
    """`pipeline run` as a process of its own takes in a lake and tells what it did; what it left is a version."""
    write_keys(tmp_path, "node-a")
    outbox = Outbox(tmp_path)
    outbox.seal(outbox.messages(5))
    command = [sys.executable, "-m", "agentpost", "pipeline", "run", "--lake", str(tmp_path), "-o", "json"]
    now = ["--now", "2026-12-01"]
    done = subprocess.run([*command, *now], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["version"], result["events"], result["quarantined"]) == (1, 5, 0)
    assert result["newestUs"] == (START_MS + 5000) * 1000
    assert done.stderr.strip() == ""
    assert (tmp_path / "pipeline" / "CURRENT").exists()
