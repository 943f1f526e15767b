"""A run that kills itself where it is told to: `python -m tests.pipeline.victim LAKE PHASE MAKER`.

The maker is one of `tests.pipeline.makers`.
"""

import os
import signal
import sys

from agentpost.pipeline.compact import compact
from agentpost.pipeline.files import Files
from agentpost.pipeline.run import RunOptions, run_batch
from agentpost.pipeline.session import open_session
from agentpost.pipeline.warehouse import Warehouse
from tests.pipeline.conftest import JAVA_OPTIONS, SETTINGS
from tests.pipeline.lakes import NOW_US
from tests.pipeline.makers import made_by
from tests.pipeline.tiny import TINY


def main(lake: str, phase: str, maker: str) -> None:
    def at_phase(name: str) -> None:
        if name == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    # Killed, it cannot end its JVM; that one ends when its input does.
    spark = open_session(master="local[1]", settings=SETTINGS, java_options=JAVA_OPTIONS, train=False)
    sys.stdout.write("working\n")
    sys.stdout.flush()
    files = Files(lake)
    warehouse = Warehouse(files.below("pipeline"))
    with made_by(maker):
        if phase.startswith("compact"):
            compact(spark, warehouse, catalog=TINY, at_phase=at_phase)
        else:
            run_batch(spark, files, warehouse, RunOptions(now_us=NOW_US), catalog=TINY, at_phase=at_phase)


if __name__ == "__main__":
    main(*sys.argv[1:])
