"""The runtimes, with real processes and a real HTTP server."""

import asyncio
import base64
import gzip
import hmac
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from agentpost.delivery.ports import Content, Engagement, Result, ResultKind, Runtime
from agentpost.edges.runtimes import check_agent, command, make_runtime
from agentpost.edges.runtimes.handler import HandlerRuntime
from agentpost.edges.runtimes.registry import RUNTIMES
from agentpost.protocol.errors import Code
from agentpost.protocol.payloads import Kind
from agentpost.store.values import LocalAgent
from agentpost.testing import START_MS, FakeClock, a_message
from tests.store.building import refused

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()


def an_agent(runtime: str, **options: Any) -> LocalAgent:
    return LocalAgent(agent_id="bob", runtime=runtime, options=options, created_at_ms=START_MS)


def an_engagement(body: str = "hello", *, attempt: int = 1) -> Engagement:
    event = a_message(1)
    return Engagement(
        event_id=event.event_id,
        corr_id=event.corr_id,
        kind=Kind.MESSAGE,
        to_agent_id="bob",
        from_agent_id="ada",
        from_node_id="node-a",
        created_at=event.created_at,
        attempt=attempt,
        content=Content(subject="greeting", body=body),
    )


def a_command(script: str, **options: Any) -> Runtime:
    """A program in Python that runs this script; `say` has the message."""
    setup = "import json, os, sys, time, subprocess\n"
    return make_runtime(an_agent("command", argv=[sys.executable, "-c", setup + script], **options))


async def engage(runtime: Runtime, engagement: Engagement | None = None) -> Result:
    try:
        return await runtime.engage(engagement or an_engagement())
    finally:
        await runtime.close()


def body_of(result: Result) -> str | None:
    assert result.kind is ResultKind.PROCESSED, result
    return None if result.reply is None else result.reply.body


# Commands


async def test_a_program_gets_the_message_as_json_and_its_output_is_the_reply() -> None:
    """What a program prints is the answer to the message that it read from stdin."""
    runtime = a_command("say = json.load(sys.stdin); print(say['content']['body'].upper(), say['fromAgentId'])")
    assert body_of(await engage(runtime)) == "HELLO ada"


async def test_a_program_that_prints_nothing_has_processed_the_message() -> None:
    """No output is no reply, and still an end."""
    assert body_of(await engage(a_command("pass"))) is None


@pytest.mark.req("RTY-3")
async def test_a_program_that_ends_before_it_is_told_anything_has_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick program that does not read its message is done with it: it is not run again for that."""
    converse = command._Run.converse

    async def converse_late(run: command._Run, message: bytes) -> None:
        await run._exited.wait()
        await asyncio.sleep(0.05)
        await converse(run, message)

    monkeypatch.setattr(command._Run, "converse", converse_late)
    assert body_of(await engage(a_command("print('done')"))) == "done"


async def test_a_program_may_answer_in_json() -> None:
    """With output=json a program sets the subject and the context of its reply too."""
    runtime = a_command(
        "print(json.dumps({'reply': {'subject': 's', 'body': 'b', 'context': {'n': 1}}}))", output="json"
    )
    result = await engage(runtime)
    assert result.reply == Content(subject="s", body="b", context={"n": 1})


async def test_json_that_makes_no_sense_is_a_failure_and_not_another_run() -> None:
    """A program that has run is not run again because nobody understands what it printed."""
    result = await engage(a_command("print('not json')", output="json"))
    assert result.kind is ResultKind.FAILED
    assert "not json" not in (result.error or "")


@pytest.mark.req("RTY-4")
async def test_exit_code_65_means_never() -> None:
    """A program that knows that it will never handle a message ends the tries, and its last words say why."""
    result = await engage(a_command("import sys; print('no such branch', file=sys.stderr); sys.exit(65)"))
    assert (result.kind, result.failure_class, result.is_defect) == (ResultKind.FAILED, "rejected", True)
    assert result.error == "it said that this can never be handled (code 65)\nno such branch"


@pytest.mark.req("RTY-4")
async def test_exit_code_75_asks_for_another_try() -> None:
    """A program says with EX_TEMPFAIL that it cannot do it now."""
    result = await engage(a_command("sys.exit(75)"))
    assert result.kind is ResultKind.RETRY


@pytest.mark.req("RTY-4")
async def test_another_exit_code_is_tried_again_with_the_last_lines_of_stderr() -> None:
    """The operator sees what the program said before it failed, and no more than that."""
    script = "[print('line', n, file=sys.stderr) for n in range(1000)]; print('half an answer'); sys.exit(3)"
    result = await engage(a_command(script))
    assert result.kind is ResultKind.RETRY
    assert result.reply is None
    error = (result.error or "").splitlines()
    assert error[0] == "it ended with code 3"
    assert error[-1] == "line 999"
    assert len(error) <= 11


async def test_a_program_that_is_not_there_is_tried_again() -> None:
    """A program that is being installed is there a moment later."""
    result = await engage(make_runtime(an_agent("command", argv=["/nowhere/agent"])))
    assert result.kind is ResultKind.RETRY
    assert "/nowhere/agent cannot be run" in (result.error or "")


async def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    """When the time is over nothing of the program goes on running."""
    pids = tmp_path / "pids"
    script = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(600)"
    )
    result = await engage(a_command(script, timeoutSeconds=3))
    assert result.kind is ResultKind.RETRY
    assert "3 s" in (result.error or "")
    await gone(*(int(pid) for pid in pids.read_text().split()))


async def test_a_program_that_cannot_be_killed_does_not_hold_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs as another user, by sudo, goes on; its turn is over, and the message is not given to a second one."""
    started = tmp_path / "pid"
    kill = os.kill

    def deny(_pid: int, _signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("agentpost.edges.runtimes.command._KILLED_SECONDS", 0.1)
    monkeypatch.setattr(os, "killpg", deny)
    monkeypatch.setattr(os, "kill", deny)
    script = f"open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    try:
        result = await asyncio.wait_for(engage(a_command(script, timeoutSeconds=2)), 30)
    finally:
        monkeypatch.undo()
        # uvloop kills what it lets go of, past what was denied here.
        with suppress(ProcessLookupError):
            kill(int(started.read_text()), signal.SIGKILL)
    await gone(int(started.read_text()))
    # The loop hears of its end a moment later, and would complain about one that it has not heard of.
    await asyncio.sleep(0.1)
    assert result.kind is ResultKind.FAILED
    assert "could not be ended" in (result.error or "")


async def test_the_last_line_of_stderr_is_always_told() -> None:
    """However much a program says before it gives up, the reason is what it said last."""
    result = await engage(a_command("sys.stderr.write('e' * 100_000 + '\\nno compiler'); sys.exit(1)"))
    assert (result.error or "").endswith("\nno compiler")


async def test_a_turn_that_is_cut_off_leaves_no_process(tmp_path: Path) -> None:
    """A gateway that stops takes the programs that it runs with it."""
    started = tmp_path / "pid"
    runtime = a_command(f"open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    turn = asyncio.ensure_future(runtime.engage(an_engagement()))
    await until(lambda: started.exists() and started.read_text() != "")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await gone(int(started.read_text()))


async def test_something_left_behind_in_the_background_does_not_hold_the_turn() -> None:
    """A program may end while a child of it still has its output open."""
    script = "print('done', flush=True); subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert body_of(await engage(a_command(script))) == "done"


async def test_output_has_a_limit() -> None:
    """A program that prints without end is ended, and the sender hears of it."""
    result = await engage(a_command("while True: print('x' * 10_000)", maxOutputBytes=50_000))
    assert result.kind is ResultKind.FAILED
    assert "50000 bytes" in (result.error or "")


async def test_a_large_message_and_a_program_that_does_not_read_it() -> None:
    """Pipes are short; neither a large message nor one that nobody reads blocks the turn."""
    large = an_engagement("x" * 2_000_000)
    assert body_of(await engage(a_command("print('fine')"), large)) == "fine"
    echo = a_command("print(len(json.load(sys.stdin)['content']['body']))")
    assert body_of(await engage(echo, large)) == "2000000"


async def test_a_program_gets_nothing_of_the_gateways_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of the gateway stay with it; what an operator names goes along."""
    monkeypatch.setenv("AGENTPOST_TOKEN", "secret")
    monkeypatch.setenv("API_KEY", "secret")
    monkeypatch.setenv("MODEL_KEY", "granted")
    runtime = a_command("print(json.dumps(dict(os.environ)))", passEnv=["MODEL_KEY"], env={"MODE": "test"})
    environment = json.loads(body_of(await engage(runtime, an_engagement(attempt=2))) or "")
    assert "secret" not in environment.values()
    assert environment["MODEL_KEY"] == "granted"
    assert environment["MODE"] == "test"
    assert environment["AGENTPOST_EVENT_ID"] == an_engagement().event_id
    assert environment["AGENTPOST_ATTEMPT"] == "2"
    assert environment["PATH"] == os.environ["PATH"]


async def test_a_program_runs_where_it_is_told(tmp_path: Path) -> None:
    """The directory of a program is an option."""
    assert body_of(await engage(a_command("print(os.getcwd())", cwd=str(tmp_path)))) == str(tmp_path)


async def test_no_shell_looks_at_the_arguments(tmp_path: Path) -> None:
    """What stands in an argument is an argument, whatever a shell would make of it."""
    agent = an_agent("command", argv=[sys.executable, "-c", "import sys; print(sys.argv[1])", "$HOME; `id` && exit 1"])
    assert body_of(await engage(make_runtime(agent))) == "$HOME; `id` && exit 1"


# Webhooks


class Request(NamedTuple):
    headers: dict[str, str]
    body: bytes


class Endpoint:
    """A loopback HTTP server that answers each request with the next of `answers`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[bytes] = []
        self.url = ""

    def answer(self, status: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.answers.append("\r\n".join([*lines, "", ""]).encode() + body)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append(Request(headers, body))
        if self.answers:
            writer.write(self.answers.pop(0))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[Endpoint]":
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        async with server:
            yield self


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint().running() as endpoint:
        yield endpoint


def a_webhook(endpoint: Endpoint, **options: Any) -> Runtime:
    return make_runtime(an_agent("webhook", url=endpoint.url, **options), clock=FakeClock())


async def test_a_webhook_gets_the_message_and_answers_with_a_reply(endpoint: Endpoint) -> None:
    """The endpoint's JSON answer is the reply."""
    endpoint.answer("200 OK", b'{"reply": {"body": "hi"}}', content_type="application/json; charset=utf-8")
    assert body_of(await engage(a_webhook(endpoint))) == "hi"
    (request,) = endpoint.requests
    assert json.loads(request.body)["content"] == {"subject": "greeting", "body": "hello"}


async def test_a_webhook_is_signed_and_has_an_idempotency_key(endpoint: Endpoint) -> None:
    """The endpoint can tell who sent it, when, and that it is the same message as before."""
    endpoint.answer("204 No Content")
    endpoint.answer("204 No Content")
    await engage(a_webhook(endpoint, secret=SECRET))
    await engage(a_webhook(endpoint, secret=SECRET), an_engagement(attempt=2))
    first, second = endpoint.requests
    key = f"{an_engagement().event_id}:bob"
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == key
    assert first.headers["webhook-id"] == key
    assert first.headers["webhook-timestamp"] == str(START_MS // 1000)
    signed = f"{key}.{START_MS // 1000}.".encode() + first.body
    expected = base64.b64encode(hmac.digest(b"k" * 24, signed, "sha256")).decode()
    assert first.headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("200 OK", ResultKind.PROCESSED),
        ("202 Accepted", ResultKind.PROCESSED),
        ("302 Found", ResultKind.FAILED),
        ("400 Bad Request", ResultKind.FAILED),
        ("404 Not Found", ResultKind.FAILED),
        ("408 Request Timeout", ResultKind.RETRY),
        ("425 Too Early", ResultKind.RETRY),
        ("429 Too Many Requests", ResultKind.RETRY),
        ("500 Internal Server Error", ResultKind.RETRY),
        ("503 Service Unavailable", ResultKind.RETRY),
    ],
)
@pytest.mark.req("RTY-4")
async def test_the_status_is_the_outcome(endpoint: Endpoint, status: str, kind: ResultKind) -> None:
    """Success ends the turn, what may pass is tried again, and a refusal is told to the sender."""
    endpoint.answer(status, location="http://127.0.0.1:1/elsewhere")
    assert (await engage(a_webhook(endpoint))).kind is kind
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_redirect_of_a_webhook_leads_nowhere(endpoint: Endpoint, status: str) -> None:
    """A signed message goes where the operator said; an endpoint cannot send it on into the gateway's network."""
    async with Endpoint().running() as inside:
        endpoint.answer(status, location=inside.url)
        assert (await engage(a_webhook(endpoint, secret=SECRET))).kind is ResultKind.FAILED
        assert inside.requests == []


async def test_retry_after_is_heard(endpoint: Endpoint) -> None:
    """An endpoint that asks for time gets it."""
    endpoint.answer("429 Too Many Requests", retry_after="17")
    assert (await engage(a_webhook(endpoint))).retry_after_seconds == 17


async def test_plain_text_is_the_body_of_the_reply_and_a_page_is_not(endpoint: Endpoint) -> None:
    """What a proxy in between makes up does not become an answer."""
    endpoint.answer("200 OK", b"plain", content_type="text/plain")
    endpoint.answer("200 OK", b"<p>welcome</p>", content_type="text/html")
    assert body_of(await engage(a_webhook(endpoint))) == "plain"
    assert body_of(await engage(a_webhook(endpoint))) is None


async def test_an_endpoint_that_hangs_up_or_is_not_there_is_tried_again(endpoint: Endpoint) -> None:
    """No answer is no outcome, and the error does not tell the URL."""
    runtime = a_webhook(endpoint)
    assert (await engage(runtime)).kind is ResultKind.RETRY
    nobody = make_runtime(an_agent("webhook", url="http://127.0.0.1:1/token-in-the-path"))
    result = await engage(nobody)
    assert result.kind is ResultKind.RETRY
    assert "token" not in (result.error or "")


async def test_an_answer_has_a_limit(endpoint: Endpoint) -> None:
    """An endpoint cannot fill the gateway's memory."""
    endpoint.answer("200 OK", b"x" * 5000, content_type="text/plain")
    assert (await engage(a_webhook(endpoint, maxResponseBytes=1000))).kind is ResultKind.FAILED


async def test_an_answer_that_was_packed_is_not_unpacked(endpoint: Endpoint) -> None:
    """A few bytes that become many would get round the limit; the endpoint is asked not to, and refused if it does."""
    endpoint.answer("200 OK", gzip.compress(b"x" * 100), content_type="text/plain", content_encoding="gzip")
    result = await engage(a_webhook(endpoint, headers={"Accept-Encoding": "gzip"}))
    assert result.kind is ResultKind.FAILED
    assert "content-encoding" in (result.error or "")
    assert endpoint.requests[0].headers["accept-encoding"] == "identity"


async def test_nothing_of_one_message_goes_along_with_the_next(endpoint: Endpoint) -> None:
    """What an endpoint wants remembered is not: cookies would grow, and tie messages together."""
    endpoint.answer("204 No Content", set_cookie="seen=1; Path=/")
    endpoint.answer("204 No Content")
    runtime = a_webhook(endpoint)
    await runtime.engage(an_engagement())
    await engage(runtime)
    assert "cookie" not in endpoint.requests[1].headers


# Handlers


async def handler_of_the_tests(engagement: Engagement) -> str:
    return f"{engagement.content.body} back"


async def test_a_function_is_found_by_its_name() -> None:
    """module:function is enough to have a Python function as an agent."""
    runtime = make_runtime(an_agent("handler", function=f"{__name__}:handler_of_the_tests"))
    assert body_of(await engage(runtime)) == "hello back"


@pytest.mark.req("RTY-4")
async def test_a_function_that_raises_is_tried_again() -> None:
    """An exception is an attempt that failed, and its text is the error."""

    async def broken(engagement: Engagement) -> None:
        raise RuntimeError("no model")

    result = await engage(HandlerRuntime(broken))
    assert result == Result(kind=ResultKind.RETRY, error="RuntimeError: no model")


async def test_a_function_may_give_content_nothing_or_something_wrong() -> None:
    """A reply is text, content or nothing."""

    async def content(engagement: Engagement) -> Content:
        return Content(subject="s")

    async def nothing(engagement: Engagement) -> None:
        return None

    async def wrong(engagement: Engagement) -> Any:
        return 17

    assert (await engage(HandlerRuntime(content))).reply == Content(subject="s")
    assert (await engage(HandlerRuntime(nothing))).reply is None
    assert (await engage(HandlerRuntime(wrong))).kind is ResultKind.FAILED


async def test_a_function_can_have_a_time_limit() -> None:
    """A function that waits for ever is an attempt that failed."""

    async def waits(engagement: Engagement) -> None:
        await asyncio.Event().wait()

    result = await engage(HandlerRuntime(waits, timeout_seconds=0.01))
    assert result.kind is ResultKind.RETRY
    assert "0.01 s" in (result.error or "")


# Options


@pytest.mark.parametrize(
    ("runtime", "options", "field"),
    [
        ("teleport", {}, "runtime"),
        ("command", {}, "options.argv"),
        ("command", {"argv": []}, "options.argv"),
        ("command", {"argv": [""]}, "options.argv"),
        ("command", {"argv": ["x"], "cwd": "/no/such/directory"}, "options.cwd"),
        ("command", {"argv": ["x"], "cwd": "x" * 5000}, "options.cwd"),
        ("command", {"argv": ["x"], "env": {"KEY": "two\0halves"}}, "options.env"),
        ("command", {"argv": ["x"], "timeoutSeconds": 0}, "options.timeoutSeconds"),
        ("command", {"argv": ["x"], "maxConcurrent": "many"}, "options.maxConcurrent"),
        ("command", {"argv": ["x"], "output": "xml"}, "options.output"),
        ("command", {"argv": ["x"], "env": {"AGENTPOST_EVENT_ID": "y"}}, "options.env"),
        ("command", {"argv": ["x"], "shell": True}, "options.shell"),
        ("webhook", {}, "options.url"),
        ("webhook", {"url": "ftp://host/x"}, "options.url"),
        ("webhook", {"url": "http://"}, "options.url"),
        ("webhook", {"url": "http://host:99999/"}, "options.url"),
        ("webhook", {"url": "http://me:pw@host/"}, "options.url"),
        ("webhook", {"url": "http://host/", "secret": "short"}, "options.secret"),
        ("webhook", {"url": "http://host/", "secret": "whsec_???"}, "options.secret"),
        ("webhook", {"url": "http://host/", "headers": {"Webhook-Id": "1"}}, "options.headers"),
        ("handler", {"function": "os"}, "options.function"),
        ("handler", {"function": "os:nothing"}, "options.function"),
        ("handler", {"function": "no.such.module:f"}, "options.function"),
        ("handler", {"function": "os:getcwd"}, "options.function"),
        ("pull", {"leaseSeconds": 0}, "options.leaseSeconds"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(runtime: str, options: dict[str, Any], field: str) -> None:
    """Whoever adds an agent is told which option is wrong."""
    with refused(Code.INVALID_FIELD) as caught:
        check_agent(an_agent(runtime, **options))
    assert caught.value.field == field


def test_a_directory_that_may_not_be_looked_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in somebody else's home is no defect of the gateway."""

    def deny(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", deny)
    with refused(Code.INVALID_FIELD) as caught:
        check_agent(an_agent("command", argv=["x"], cwd="/root/secret"))
    assert caught.value.field == "options.cwd"


def test_options_from_the_command_line_are_text_and_mean_the_same() -> None:
    """max_concurrent=4 on a command line is the number 4."""
    runtime = make_runtime(an_agent("webhook", url="https://host/x", max_concurrent="4"))
    assert runtime.max_concurrent == 4
    assert runtime.is_idempotent
    command = make_runtime(an_agent("command", argv=["x"], idempotent="true"))
    assert command.max_concurrent == 1
    assert command.is_idempotent


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - a process tells nobody here that it has ended
            await asyncio.sleep(0.005)


async def gone(*pids: int) -> None:
    """Wait until none of these runs any more; a process that is dead and not collected yet counts as gone."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    await until(lambda: not any(runs(pid) for pid in pids))


def test_every_runtime_declares_its_secret_options() -> None:
    """Each runtime says beside its options which of them are secret; one that looks secret is declared."""
    suspicious = re.compile(r"secret|token|password|credential|key|env$|headers", re.IGNORECASE)
    for name, kind in RUNTIMES.items():
        options = {field.encode_name for field in msgspec.structs.fields(kind.options)}
        assert "SECRETS" in vars(kind.options), f"{name} does not declare its secret options"
        assert options >= kind.options.SECRETS, name
        assert {each for each in options - {"passEnv"} if suspicious.search(each)} == kind.options.SECRETS, name
        assert make_runtime.secret_options(name) == kind.options.SECRETS
