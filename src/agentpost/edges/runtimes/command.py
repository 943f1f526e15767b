"""Engages an agent that is a program: the message as JSON on stdin, the reply on stdout, the exit code as the outcome.

    0       processed; what was printed is the reply, if anything was
    65      EX_DATAERR: never, this message cannot be handled; it is not tried again, and the sender is told
    75      EX_TEMPFAIL: not now, try again
    other   try again too; the last lines of stderr say why

The program is run without a shell, in a process group of its own that is killed as a whole when its time is over. It
gets a small environment: nothing of the gateway's own goes along, except what `pass_env` names.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, cast

import msgspec
from msgspec import Meta, field

from agentpost.delivery.ports import Engagement, Result
from agentpost.delivery.wording import MAX_ERROR
from agentpost.edges.runtimes import answers
from agentpost.edges.runtimes.options import Bytes, Options, Timeout
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId

__all__ = ["CommandOptions", "CommandRuntime"]

_EX_DATAERR: Final = 65
_EX_TEMPFAIL: Final = 75
_PASSED: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_OUR_PREFIX: Final = "AGENTPOST_"
_STDOUT: Final = 1
_STDERR: Final = 2
# The last line says most, so all of it fits into an error.
_STDERR_BYTES: Final = MAX_ERROR - 100
_STDERR_LINES: Final = 10
# After the program has ended, something that it left behind may still hold its stdout; nobody waits long for that.
_LEFT_BEHIND_SECONDS: Final = 1.0
# Who is killed is gone at once. What runs as another user, by sudo say, cannot be killed from here.
_KILLED_SECONDS: Final = 5.0

Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]


class CommandOptions(Options, frozen=True, kw_only=True, rename="camel"):
    """`output` says whether stdout is the text of the reply or a JSON object with it.

    Exit code 0 is success, 65 "never": there is no other try. After 75 and every other code the message is tried again.
    """

    SECRETS: ClassVar[frozenset[str]] = frozenset({"env"})

    argv: Annotated[tuple[str, ...], Meta(min_length=1)]
    cwd: str | None = None
    env: dict[Name, str] = field(default_factory=dict[Name, str])
    pass_env: tuple[Name, ...] = ()
    output: Literal["text", "json"] = "text"
    timeout_seconds: Timeout = 600
    max_output_bytes: Bytes = 1_048_576
    idempotent: bool = False

    def __post_init__(self) -> None:
        if not self.argv[0] or any("\0" in word for word in self.argv):
            raise _refused("argv", "must begin with the name of a program, and have no zero bytes in it")
        if self.cwd is not None and not _is_directory(self.cwd):
            raise _refused("cwd", "must be a directory that exists and that agentpost may look into")
        if any("\0" in value for value in self.env.values()):
            raise _refused("env", "must have no zero bytes in it")
        for name in (*self.env, *self.pass_env):
            if name.startswith(_OUR_PREFIX):
                raise _refused("env", f"must leave names that begin with {_OUR_PREFIX} to agentpost")


class CommandRuntime:
    def __init__(self, options: CommandOptions) -> None:
        self._options = options
        self.max_concurrent = options.max_concurrent
        self.is_idempotent = options.idempotent

    async def engage(self, engagement: Engagement) -> Result:
        options = self._options
        loop = asyncio.get_running_loop()
        try:
            _, run = await loop.subprocess_exec(
                lambda: _Run(max_output_bytes=options.max_output_bytes),
                *options.argv,
                cwd=options.cwd,
                env=_environment(options, engagement),
                start_new_session=True,
            )
        except OSError as error:
            # A program that is being installed or updated right now is there a moment later.
            return answers.retry(f"{options.argv[0]} cannot be run: {error.strerror}")
        try:
            async with asyncio.timeout(options.timeout_seconds):
                await run.converse(msgspec.json.encode(engagement))
        except TimeoutError:
            run.is_late = True
        finally:
            await run.end()
        return self._result(run)

    def _result(self, run: "_Run") -> Result:
        if not run.has_ended:
            # Another run beside this one would do the work twice.
            return answers.failed("it took too long or printed too much, and could not be ended: it may still run")
        if run.is_late:
            return answers.retry(f"it took longer than {self._options.timeout_seconds:g} s and was ended")
        if run.is_too_long:
            return answers.failed(f"it printed more than {self._options.max_output_bytes} bytes and was ended")
        code = run.exit_code
        if code == 0:
            return (answers.from_json if self._options.output == "json" else answers.from_text)(bytes(run.stdout))
        ended = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
        if code == _EX_DATAERR:
            said = "it said that this can never be handled (code 65)"
            return answers.failed("\n".join([said, *run.last_errors()]), failure_class="rejected")
        if code == _EX_TEMPFAIL:
            ended = "it asked to be tried again (code 75)"
        return answers.retry("\n".join([ended, *run.last_errors()]))

    async def ask(self, event_id: EventId) -> Result | None:
        return None

    async def close(self) -> None:
        pass


class _Run(asyncio.SubprocessProtocol):
    """One run of the program: what came out of it, and its end. It may end while others still hold its pipes."""

    def __init__(self, *, max_output_bytes: int) -> None:
        self._max_output_bytes = max_output_bytes
        self._exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._open_pipes = {_STDOUT, _STDERR}
        self._stderr = bytearray()
        self.stdout = bytearray()
        self.is_too_long = False
        self.is_late = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self._stderr += data
            del self._stderr[:-_STDERR_BYTES]
        elif not self.is_too_long:
            self.stdout += data
            if len(self.stdout) > self._max_output_bytes:
                self.is_too_long = True
                self._kill()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self._silent.set()

    def process_exited(self) -> None:
        self._exited.set()

    @property
    def has_ended(self) -> bool:
        return self._exited.is_set()

    @property
    def exit_code(self) -> int:
        code = self._transport.get_returncode()
        return -signal.SIGKILL if code is None else code

    def last_errors(self) -> list[str]:
        lines = self._stderr.decode("utf-8", errors="replace").splitlines()
        return [line for line in lines if line.strip()][-_STDERR_LINES:]

    async def converse(self, message: bytes) -> None:
        """Hand over the message and wait for the end, and for all that was printed until then."""
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        # A program may have ended without reading what it is told: what it did counts, and it must not run again.
        # uvloop raises this at a pipe that is closed.
        with suppress(RuntimeError):
            stdin.write(message)
            stdin.write_eof()
        await self._exited.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEFT_BEHIND_SECONDS):
                await self._silent.wait()

    async def end(self) -> None:
        """Leave nothing that runs: what has not ended by itself is killed with its whole group."""
        if not (self._exited.is_set() and self._silent.is_set()):
            self._kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED_SECONDS):
                    await self._exited.wait()
        with suppress(PermissionError):
            self._transport.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)


def _environment(options: CommandOptions, engagement: Engagement) -> dict[str, str]:
    passed = {name: os.environ[name] for name in (*_PASSED, *options.pass_env) if name in os.environ}
    said = {
        "AGENTPOST_EVENT_ID": engagement.event_id,
        "AGENTPOST_CORR_ID": engagement.corr_id,
        "AGENTPOST_KIND": engagement.kind.value,
        "AGENTPOST_AGENT_ID": engagement.to_agent_id,
        "AGENTPOST_FROM_AGENT_ID": engagement.from_agent_id,
        "AGENTPOST_FROM_NODE_ID": engagement.from_node_id,
        "AGENTPOST_ATTEMPT": str(engagement.attempt),
    }
    return passed | options.env | said


def _is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:
        # It is somebody else's, or its name is too long.
        return False


def _refused(name: str, problem: str) -> Refusal:
    return Refusal(Code.INVALID_FIELD, f"options.{name} {problem}", field=f"options.{name}")
