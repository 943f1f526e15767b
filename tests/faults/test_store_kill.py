"""A gateway process is killed in the middle of its work, again and again, and its home is still whole."""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from agentpost.store import writer
from agentpost.store.integrity import check_home
from tests.faults.scenarios import append_one, message, open_store

KILLS = 10 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
CALLERS = 8
CHECKPOINT_AT_PAGES = 50
LONGEST_LIFE_SECONDS = 0.15
