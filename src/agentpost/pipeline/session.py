"""The Spark session of the pipeline: embedded by default, on a cluster with `--master`, a Connect server's with `--remote`.

Only here is a JVM started, and only for a session of our own: its flags, its class archive and its settings. What a batch
relies on beside these is in `settings`, and holds on any session.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Generator, Mapping
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from agentpost.pipeline.failures import in_our_words
from agentpost.pipeline.java import Archive, class_archive, find_java, java_home
from agentpost.pipeline.training import start_training
from agentpost.protocol.errors import Code, Refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL", "open_session", "own_archive", "require_spark", "spark_session"]

LOCAL: Final = "local[*]"
_HEAP_MB: Final = 2176
# Before Spark there is a small program that only puts its command line together.
_LAUNCHER: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_SETTINGS: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Node names and epochs stand in paths, and "007" is no number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Files are listed by the driver, which knows them by name: no job just for that.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # What a run wrote counts once its version names it, so that files need no second move.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.parquet.summary.metadata.level": "NONE",
    # Pages and row groups small enough that an hour can be read without its neighbours.
    "spark.hadoop.parquet.block.size": str(16 * 1024 * 1024),
    # A run has some 250 classes written for its queries. What is not kept is written and compiled anew by the next run.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # A list of values stands beside the code that is written for a query, not in it: the next run has other hours.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
    # Lists of values are made in memory for so many keys at once; `latency` has thousands of short ones.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "200000",
    "spark.sql.autoBroadcastJoinThreshold": str(32 * 1024 * 1024),
    "spark.sql.maxPlanStringLength": "10000",
    "spark.scheduler.mode": "FAIR",
    # Where in our code a column was made: three more calls into the JVM for each, to say it in an error.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def require_spark() -> None:
    """Refuse, with what to do about it, where PySpark is not installed."""
    if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "deltalake")):
        raise Refusal(
            Code.UNAVAILABLE,
            "the pipeline runs on PySpark, which is not installed",
            hint="Install it with: pip install 'agentpost[pipeline]'",
        )


def open_session(
    *,
    master: str = LOCAL,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
    java_options: tuple[str, ...] = (),
    draft: Path | None = None,
) -> "SparkSession":
    """A session that is ready for work. End it with its own `stop()`.

    `remote` is a Spark Connect server (`sc://host:15002`); then there is no JVM here. `draft` is a file that the JVM
    writes its class archive to when it ends.
    """
    require_spark()
    from pyspark.sql import SparkSession

    builder = cast("Any", SparkSession.builder)
    if remote is not None:
        chosen = dict(settings or {})
        where, advice = remote, "Check --remote, and that the server has this version of Spark and agentpost installed."
        builder = builder.remote(remote)
    else:
        chosen = _own_settings(master, settings or {}, java_options, draft)
        where, advice = master, "Check --master and JAVA_HOME; without --master it runs on this machine alone."
        builder = builder.appName("agentpost").master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    # While the JVM starts there is nothing to do here: time for what takes long to import.
    threading.Thread(target=import_module, args=("agentpost.pipeline.run",), name="imports", daemon=True).start()
    try:
        # Spark's scripts ask the environment; what this process starts later is not to find our Java there.
        home = {} if remote is not None else {"JAVA_HOME": str(java_home(find_java()))}
        with _environment(**home, SPARK_LAUNCHER_OPTS=_LAUNCHER):
            return cast("SparkSession", builder.getOrCreate())
    except Exception as problem:
        raise Refusal(
            Code.UNAVAILABLE, f"Spark did not start on {where}: {_first_line(problem)}", hint=advice
        ) from problem


def _own_settings(
    master: str, settings: Mapping[str, str], java_options: tuple[str, ...], draft: Path | None
) -> dict[str, str]:
    """What a session of our own is started with."""
    archive = own_archive()
    # The Python of the workers is this one, or the one of the same path on the machines of a cluster.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log_settings = files("agentpost.pipeline") / "log4j2.properties"
    options = (
        "-Xss16m",
        "-XX:+UseParallelGC",
        # Room for the classes of Spark, and for what is made while it starts: else each step is a collection.
        "-XX:MetaspaceSize=256m",
        # A heap that the caller chose may be smaller than this, and a JVM that cannot have it does not start.
        *(() if "spark.driver.memory" in settings else ("-Xms768m",)),
        # Spark writes one method for a whole stage; unless told so, the JVM leaves large ones uncompiled.
        "-XX:-DontCompileHugeMethods",
        # To plan queries is to walk through much code, all of it some thousand times. To compile that well takes longer
        # than it gains; what runs for every row is called millions of times, and waits a moment longer.
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=20000",
        "-XX:Tier4CompileThreshold=60000",
        "-Xlog:disable",
        f"-Dlog4j2.configurationFile=file:{log_settings}",
        *java_options,
        *(archive.options if draft is None else archive.writing_to(draft)),
    )
    is_local = master.startswith("local[") or master == "local"
    return {
        **_SETTINGS,
        # Spark's own pages, on a free port of this machine: they show where a batch is.
        "spark.ui.port": "0",
        "spark.driver.memory": f"{_HEAP_MB}m",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),
        **({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if is_local else {}),
        **settings,
    }


def own_archive() -> Archive:
    """The class archive for the Java and the Spark that are installed here."""
    import pyspark

    return class_archive(find_java(), Path(pyspark.__file__).parent)


@contextlib.contextmanager
def spark_session(
    *, master: str = LOCAL, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Generator["SparkSession"]:
    """A session for as long as the block runs, which fails with a refusal.

    If there is no class archive yet, a process of low priority writes it afterwards.
    """
    spark = open_session(master=master, remote=remote, settings=settings)
    try:
        with in_our_words():
            yield spark
    finally:
        with contextlib.suppress(Exception):  # a JVM that is gone already is what is wanted
            spark.stop()
        if remote is None:
            start_training(own_archive())


@contextlib.contextmanager
def _environment(**values: str) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:300]
