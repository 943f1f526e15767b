"""The shell blocks of a page, each with the machine that it is for and what it says that one will see."""

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w*)(?: ([\w-]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    machine: str
    script: str
    # Lines of which each is in the output; … stands for whatever is between.
    shown: tuple[str, ...]


def steps_of(page: str, *, machine: str) -> list[Step]:
    """In the order of the page. A block that names no machine is for this one."""
    text = (DOCS / page).read_text()
    steps: list[Step] = []
    end_of_last = -1
    for block in _BLOCK.finditer(text):
        language, named, content = block.groups()
        if language == "sh":
            steps.append(Step(named or machine, content, ()))
            end_of_last = block.end()
        elif language == "text" and not text[end_of_last : block.start()].strip():
            steps[-1] = steps[-1]._replace(shown=tuple(content.splitlines()))
    return steps


def is_shown(line: str, output: str) -> bool:
    return re.search(".*".join(re.escape(part) for part in line.split("…")), output) is not None
