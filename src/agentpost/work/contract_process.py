"""The program of a child process that validates values against contracts; `work/contracts` starts it and asks it.

It evaluates schemas of strangers, so it limits its own CPU time and memory, and the kernel ends it at a limit. It ends
by itself when its parent closes the pipe or dies. It imports nothing of agentpost, which keeps its start short.

A request is a `Head`, then the schema and the value as JSON. An answer is its length, then JSON.
"""

import contextlib
import json
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, cast

import jsonschema_rs

__all__ = ["HEAD", "LENGTH", "READY"]

# CPU seconds, bytes of address space, length of the schema, length of the value; without a value it has length 0.
HEAD: Final = struct.Struct("!dQII")
LENGTH: Final = struct.Struct("!I")
READY: Final = b"ready"

_MOST_PROBLEMS: Final = 3
_MOST_PATH: Final = 300
_MOST_TEXT: Final = 200
_MOST_NAMES: Final = 100
# Patterns that take linear time, whatever they are matched with.
_LINEAR: Final = jsonschema_rs.RegexOptions()


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The gateway's own parent may have left them otherwise.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    answers.write(READY)
    answers.flush()
    while head := requests.read(HEAD.size):
        cpu_seconds, memory_bytes, schema_length, value_length = HEAD.unpack(head)
        schema = requests.read(schema_length)
        value = requests.read(value_length)
        # macOS has no such limit, and says so; the limit on time bounds the memory there.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))
        # At its end SIGPROF ends the process, in the middle of native code too.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        answer = json.dumps(_answer(schema, value)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _answer(schema: bytes, value: bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(schema)
        validator = jsonschema_rs.validator_for(loaded, retriever=_nothing_from_outside, pattern_options=_LINEAR)
    except (
        jsonschema_rs.ValidationError,
        jsonschema_rs.ReferencingError,
        ValueError,
        TypeError,
        RecursionError,
    ) as error:
        return {"schema_problem": str(error).split("\n", maxsplit=1)[0][:_MOST_TEXT]}
    if not value:
        for probe in _probes(loaded):
            for _ in validator.iter_errors(probe):
                pass
        return {}
    errors = zip(validator.iter_errors(json.loads(value)), range(_MOST_PROBLEMS), strict=False)
    problems = [(_joined(error.instance_path), _joined(error.schema_path)) for error, _ in errors]
    return {"problems": problems}


def _nothing_from_outside(uri: str) -> Any:
    raise ValueError(f"it refers to {uri[:80]}, and a contract is complete by itself")


def _joined(path: list[str | int]) -> str:
    return "/".join(map(str, path))[:_MOST_PATH]


def _probes(schema: Any) -> Iterator[Any]:
    """Values that show what a schema costs: each JSON type, and objects with the names that the schema knows."""
    yield from (None, True, 0, "", [], {}, [{}])
    names = _names(schema)
    kinds: tuple[Any, ...] = ({}, [{}], "", dict.fromkeys(names, ""))
    for each in kinds:
        yield dict.fromkeys(names, each)


def _names(schema: Any) -> list[str]:
    """The first property names in a schema."""
    found, pending = dict[str, None](), [schema]
    while pending and len(found) < _MOST_NAMES:
        part = pending.pop()
        if isinstance(part, list):
            pending.extend(cast(list[Any], part))
        elif isinstance(part, dict):
            known = cast(dict[str, Any], part)
            for keyword in ("properties", "dependentSchemas"):
                if isinstance(named := known.get(keyword), dict):
                    found.update(dict.fromkeys(cast(dict[str, Any], named)))
            if isinstance(required := known.get("required"), list):
                found.update(dict.fromkeys(each for each in cast(list[Any], required) if isinstance(each, str)))
            pending.extend(known.values())
    return list(found)[:_MOST_NAMES]


if __name__ == "__main__":
    # The parent has gone and reads no answer.
    with contextlib.suppress(BrokenPipeError):
        main(sys.stdin.buffer, sys.stdout.buffer)
