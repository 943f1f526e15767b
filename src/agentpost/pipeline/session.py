"""The Spark session of the pipeline: embedded by default, on a cluster with `--master`, with the same settings.

The only place that starts or ends a JVM.
"""

import contextlib
import os
import subprocess
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

__all__ = ["LOCAL", "open_session", "require_spark", "spark_session", "stop_session"]

LOCAL: Final = "local[*]"
_HEAP_MB: Final = 2176
_END_SECONDS: Final = 120
# Before Spark there is a small program that only puts its command line together.
_LAUNCHER: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
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
    "spark.cleaner.referenceTracking.cleanCheckpoints": "false",
    # Where in our code a column was made: three more calls into the JVM for each, to say it in an error.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
# Little data: to write code for a query, and to compile it well, takes longer than to walk the plan as it is.
_BRIEF_SETTINGS: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_BRIEF_JAVA: Final = ("-XX:TieredStopAtLevel=1",)
_ASKED_OFTEN: Final = {
    "org.apache.spark.sql.functions": ("col", "lit", "when", "coalesce", "expr", "sum", "min", "max", "struct"),
    "org.apache.spark.api.python.PythonUtils": ("toSeq",),
}
# Spark keeps what it knows of its jobs for its web pages, which nobody looks at here.
_FORGETFUL: Final = {
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}


def require_spark() -> None:
    """Refuse, with what to do about it, where PySpark is not installed."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise Refusal(
            Code.UNAVAILABLE,
            "the pipeline runs on PySpark, which is not installed",
            hint="Install it with: pip install 'agentpost[pipeline]'",
        )


def open_session(
    *,
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
    java_options: tuple[str, ...] = (),
    train: bool = False,
    brief: bool = False,
) -> "SparkSession":
    """A session that is ready for work. One a process; end it with `stop_session`.

    `train`: write the class archive when it ends, if there is none yet; that takes long. `brief`: what it will do is
    over before code that was compiled for it would pay.
    """
    require_spark()
    import pyspark
    from pyspark.sql import SparkSession

    java = find_java()
    archive = class_archive(java, Path(pyspark.__file__).parent)
    # The Python of the workers is this one, or the one of the same path on the machines of a cluster.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log_settings = files("agentpost.pipeline") / "log4j2.properties"
    options = (
        "-Xss16m",
        "-XX:+UseParallelGC",
        # Room for the classes of Spark, and for what is made while it starts: else each step is a collection.
        "-XX:MetaspaceSize=256m",
        # A heap that somebody else chose may be smaller than this, and a JVM that cannot have it does not start.
        *(() if "spark.driver.memory" in (settings or {}) else ("-Xms768m",)),
        # Spark writes one method for a whole stage; unless told so, the JVM leaves large ones uncompiled.
        "-XX:-DontCompileHugeMethods",
        # To plan queries is to walk through much code, all of it some thousand times. To compile that well takes longer
        # than it gains; what runs for every row is called millions of times, and waits a moment longer.
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=20000",
        "-XX:Tier4CompileThreshold=60000",
        "-Xlog:disable",
        f"-Dlog4j2.configurationFile=file:{log_settings}",
        *(_BRIEF_JAVA if brief else ()),
        *java_options,
        *(archive.options if train or archive.draft is None else ()),
    )
    cores = os.cpu_count() or 1
    builder = cast("Any", SparkSession.builder).appName("agentpost").master(master)
    chosen = {
        **_SETTINGS,
        **_FORGETFUL,
        **(_BRIEF_SETTINGS if brief else {}),
        "spark.driver.memory": f"{_HEAP_MB}m",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
        **({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if _is_local(master) else {}),
        **(settings or {}),
    }
    for key, value in chosen.items():
        builder = builder.config(key, value)
    # While the JVM starts there is nothing to do here: time for what takes long to import.
    threading.Thread(target=import_module, args=("agentpost.pipeline.run",), name="imports", daemon=True).start()
    try:
        # Spark's scripts ask the environment; what this process starts later is not to find our Java there.
        with _environment(JAVA_HOME=str(java_home(java)), SPARK_LAUNCHER_OPTS=_LAUNCHER):
            spark = cast("SparkSession", builder.getOrCreate())
    except Exception as problem:
        raise Refusal(
            Code.UNAVAILABLE,
            f"Spark did not start on {master}: {_first_line(problem)}",
            hint="Check --master and JAVA_HOME; without --master it runs on this machine alone.",
        ) from problem
    _remember_functions(spark)
    _archives[id(spark)] = archive
    return spark


_archives: Final[dict[int, Archive]] = {}


def _remember_functions(spark: "SparkSession") -> None:
    """Ask the JVM once what a function is: PySpark asks twice for each use, and a plan uses them thousands of times."""
    jvm = cast("Any", spark.sparkContext)._jvm
    for name, members in _ASKED_OFTEN.items():
        found = getattr(jvm, name)
        # Whatever is an attribute is not asked for.
        for member in members:
            setattr(found, member, getattr(found, member))
        for each in (name, name.rsplit(".", 1)[-1]):
            setattr(jvm, each, found)


def stop_session(spark: "SparkSession") -> None:
    """End the session and its JVM, and keep the class archive that it may have written."""
    from pyspark import SparkContext

    archive = _archives.pop(id(spark), None)
    gateway = cast("Any", SparkContext)._gateway
    with contextlib.suppress(Exception):  # a JVM that is gone already is what is wanted
        spark.stop()
    process = cast("subprocess.Popen[bytes] | None", getattr(gateway, "proc", None))
    if gateway is None or process is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    cast("Any", SparkContext)._gateway = None
    cast("Any", SparkContext)._jvm = None
    # The JVM ends when its input does, and writes the archive then.
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return
    if archive is not None:
        archive.keep()


@contextlib.contextmanager
def spark_session(
    *, master: str = LOCAL, settings: Mapping[str, str] | None = None, brief: bool = False
) -> Generator["SparkSession"]:
    """A session for as long as the block runs, which fails with a refusal. If there is no class archive yet, somebody
    else writes it afterwards.
    """
    spark = open_session(master=master, settings=settings, brief=brief)
    archive = _archives[id(spark)]
    try:
        with in_our_words():
            yield spark
    finally:
        stop_session(spark)
        start_training(archive)


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


def _is_local(master: str) -> bool:
    return master.startswith("local[") or master == "local"


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:300]
