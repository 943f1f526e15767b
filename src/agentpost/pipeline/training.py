"""Writes the class archive of Spark's Java: a process of its own, started by the first command that found none.

    python -m agentpost.pipeline.training

It does once, with a small lake, what a run does, so that the archive has the classes of a run. No command waits for it:
one that comes before it is done starts more slowly.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agentpost.pipeline.java import Archive, is_being_written

__all__ = ["start_training", "train"]

_WORK = "--work"


def start_training(archive: Archive) -> None:
    """Have the archive written by a process that outlives this one, unless there is one at work."""
    if archive.draft is None or is_being_written(archive):
        return
    subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.DEVNULL,
        # A reader of what this process says must not wait for that one to end.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def train() -> None:
    """Write the archive, unless there is one or another process writes it."""
    from agentpost.pipeline.session import own_archive

    archive = own_archive()
    if archive.draft is None or is_being_written(archive):
        return
    os.nice(10)
    # The draft is there from now on, so that others see that it is being written.
    archive.draft.touch()
    # The JVM writes the archive when it ends, which is after the Python that started it. It holds this pipe until then.
    subprocess.run(
        [sys.executable, "-m", __name__, _WORK, str(archive.draft)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    archive.keep()


def _work(draft: str) -> None:
    from agentpost.pipeline.run import run
    from agentpost.pipeline.session import open_session
    from agentpost.simulate.fleet import write_fleet
    from agentpost.simulate.plan import FleetPlan

    with tempfile.TemporaryDirectory(prefix="agentpost-training-") as place:
        lake = Path(place) / "lake"
        write_fleet(FleetPlan(events=300, nodes=3, agents=9, hours=2), lake, workers=1)
        spark = open_session(master="local[2]", train=True, draft=Path(draft))
        run(spark, str(lake), now_us=FleetPlan().end_ms * 1000)
        spark.stop()


if __name__ == "__main__":
    _work(sys.argv[2]) if sys.argv[1:2] == [_WORK] else train()
