"""A real Spark cluster on this machine: a master and two workers of the pip package, and the same tables."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentpost.pipeline.files import Files
from agentpost.pipeline.java import find_java, java_home
from agentpost.pipeline.warehouse import Warehouse

FLEET_EVENTS = 4000
RUN = """
import sys
from agentpost.pipeline.files import Files
from agentpost.pipeline.session import spark_session
from agentpost.pipeline.run import RunOptions, run_batch
from agentpost.pipeline.warehouse import Warehouse
from agentpost.pipeline import run
from tests.pipeline.makers import made_by
lake, master, place, maker, now_us = sys.argv[1:]
if maker != "driver":
    run.CHECK_HERE_BYTES = 0
with made_by(maker), spark_session(master=master, settings={"spark.executor.memory": "700m"}) as spark:
    files = Files(lake)
    print(run_batch(spark, files, Warehouse(files.below(place)), RunOptions(now_us=int(now_us))))
"""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a standalone cluster with two workers of one core each."""
    import pyspark

    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(find_java())),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOG_DIR": str(tmp_path / "logs"),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> None:
        command = [str(spark_home / "bin" / "spark-class"), *words]
        with (tmp_path / f"{len(started)}.log").open("wb") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        start("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        wait_until(lambda: accepts(port))
        for _ in range(2):
            start("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "800m", url)
        wait_until(lambda: (tmp_path / "0.log").read_text().count("Registering worker") >= 2)
        yield url
    finally:
        for process in started:
            process.kill()
            process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(is_so: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


@pytest.mark.req("OBS-4")
@pytest.mark.long
def test_a_cluster_makes_the_same_tables(tmp_path: Path, cluster: str) -> None:
    """On a standalone cluster with two workers every gold table is the same, row for row, as on one machine.

    There they are made by Python on the workers' machines, and by Spark's own engine.
    """
    from agentpost.pipeline.tables import FLEET, GOLD
    from agentpost.simulate.faults import ALL_RULES
    from agentpost.simulate.fleet import write_fleet
    from agentpost.simulate.plan import FleetPlan
    from tests.pipeline.tiny import rows_of

    lake = tmp_path / "lake"
    plan = FleetPlan(seed=3, nodes=4, agents=8, events=FLEET_EVENTS, hours=6, faults=ALL_RULES, segment_events=500)
    write_fleet(plan, lake, workers=1)
    ways = ((cluster, "in-workers", "workers"), (cluster, "in-spark", "spark"), ("local[2]", "alone", "driver"))
    for master, place, maker in ways:
        command = [sys.executable, "-c", RUN, str(lake), master, place, maker, str(plan.end_ms * 1000)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    names = tuple(table.name for table in (*GOLD, *FLEET))
    *there, here = (rows_of(Warehouse(Files(str(lake)).below(place)), names) for _, place, _ in ways)
    assert here["lifecycle"]
    for name in names:
        assert [each[name] for each in there] == [here[name]] * 2, name
