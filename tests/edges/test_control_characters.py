"""No character that a terminal obeys reaches one, or a log, from whatever place a stranger's text comes in."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.table import Table

from agentpost.delivery.frames import Refused
from agentpost.edges.cli import output
from agentpost.edges.cli.output import Format
from agentpost.logs import make_logs_safe
from agentpost.protocol.errors import Code, Refusal
from agentpost.terminal import SafeConsole, escape
from agentpost.testing import FakeClock
from tests.edges.lying import Liar
from tests.edges.meshing import eventually
from tests.edges.running import RunningGateway, agentpost, running_gateway, served_gateway
from tests.edges.test_strange_seeds import a_stranger
from tests.pipeline.sample_report import sample_report

C0 = [chr(code) for code in range(0x20)] + ["\x7f"]
C1 = [chr(code) for code in range(0x80, 0xA0)]
BIDI = [*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", "\u2028", "\u2029"]
ALL = [*C0, *C1, *BIDI]
# What text has: a line break and a tab.
TEXT = {"\n", "\t"}
FORGED = "2026-11-16 ERROR agentpost.gateway vps-jane was taken over"
NASTY = "".join(f"<{each}>" for each in ALL) + f"\r\n{FORGED}\n\x1b]0;owned\x07\x9b31m"


def obeyed(text: str) -> set[str]:
    """What a terminal would obey in a text."""
    shown = text.replace("\r\n", "\n")
    return {each for each in ALL if each in shown} - TEXT


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """A log as a program has it that has a gateway inside: a handler of its own."""
    text, logger = io.StringIO(), logging.getLogger("agentpost.test")
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    make_logs_safe()
    yield text
    logger.removeHandler(handler)


@pytest.mark.parametrize("each", ALL, ids=lambda each: f"U+{ord(each):04X}")
def test_a_log_shows_what_it_is_told(log: io.StringIO, each: str) -> None:
    """In a message, in its arguments, and in an error below it: written out, and a record stays one line."""
    logger = logging.getLogger("agentpost.test")
    logger.warning(f"a{each}b")
    logger.warning("%s", f"a{each}b")
    try:
        raise ValueError(f"a{each}{FORGED}")
    except ValueError as error:
        logger.exception("of %s", each, exc_info=error)
    shown = log.getvalue()
    assert not obeyed(shown)
    lines = shown.splitlines()
    assert len([line for line in lines if not line.startswith("    ")]) == 3
    assert not any(line.startswith(FORGED) for line in lines)


def test_a_long_reason_does_not_fill_the_log(log: io.StringIO) -> None:
    """A reason of megabytes is cut, and its length told."""
    logging.getLogger("agentpost.test").warning("because %s", "x" * 1_000_000)
    assert len(log.getvalue()) < 5_000
    assert "(1,000,008 characters)" in log.getvalue()


def _cell(text: str) -> None:
    table = Table()
    table.add_column(text)
    table.add_row(text)
    output.stdout.print(table)


PRINTED: dict[str, Callable[[str], None]] = {
    "raw on a console": lambda text: output.stdout.print(text, markup=False),
    "raw in a cell": _cell,
    "a line": lambda text: output.stdout.print(escape(text)),
    "progress": output.say,
    "a table": lambda text: output.print_table(text, (text,), [(escape(text),)]),
    "a quoted message": lambda text: output.print_said(text, after="[bold]from[/bold]"),
    "a quotation": output.print_quoted,
    "a text": output.print_text,
    "JSON": lambda text: output.print_json({text: [text]}),
    "a line of JSON": lambda text: output.print_json_line({text: [text]}),
    "an error": lambda text: output.print_error(Refusal(Code.NOT_FOUND, text, hint=text), Format.TEXT),
    "a defect": lambda text: output.print_defect(ValueError, ValueError(text), None),
    "an error as JSON": lambda text: output.print_error(Refusal(Code.NOT_FOUND, text, hint=text), Format.JSON),
}


@pytest.mark.parametrize("how", PRINTED)
@pytest.mark.parametrize("each", ALL, ids=lambda each: f"U+{ord(each):04X}")
def test_a_terminal_is_told_nothing(capsys: pytest.CaptureFixture[str], how: str, each: str) -> None:
    """Each way to the terminal, with each control character: it is shown, and not obeyed."""
    PRINTED[how](f"a{each}b")
    shown = capsys.readouterr()
    assert not obeyed(shown.out + shown.err)


@pytest.mark.parametrize("each", ALL, ids=lambda each: f"U+{ord(each):04X}")
def test_json_says_the_same(capsys: pytest.CaptureFixture[str], each: str) -> None:
    """What is written out in JSON is read back as it was."""
    output.print_json({each: f"a{each}b"})
    output.print_json_line({each: f"a{each}b"})
    document, _, line = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    assert json.loads(document) == json.loads(line) == {each: f"a{each}b"}


def test_the_report_of_the_pipeline_shows_names_as_they_are() -> None:
    """Names of gateways, capabilities and rules come from lakes that others wrote: no controls, and no markup."""
    from agentpost.pipeline.report.page import page
    from agentpost.pipeline.report.terminal import print_report

    nasty = NASTY + "[red]x[/red][/x]"

    def spoilt(value: Any) -> Any:
        """The value with every name in it replaced."""
        if isinstance(value, tuple):
            return tuple(spoilt(each) for each in value)
        if isinstance(value, msgspec.Struct):
            names = ("node", "capability_id", "failure_class", "name", "lake", "note", "sample_corr_ids", "target")
            fields = {
                field: (nasty,)
                if isinstance(old, tuple) and field in names
                else nasty
                if field in names
                else spoilt(old)
                for field in value.__struct_fields__
                if not isinstance(old := getattr(value, field), int | float)
            }
            return msgspec.structs.replace(value, **fields)
        return value

    out = io.StringIO()
    print_report(spoilt(sample_report()), SafeConsole(file=out, width=200))
    assert not obeyed(out.getvalue())
    assert not any(line.startswith(FORGED) for line in out.getvalue().splitlines())
    assert "[red]" in out.getvalue()
    assert not obeyed(page(spoilt(sample_report())))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with a message that has all of them in its subject, body and context."""
    with running_gateway(tmp_path_factory.mktemp("controls") / "vps-jane") as running:
        for agent in ("ada", "bob"):
            running.operator.post("/ansible/agents", {"agentId": agent})
        said = {"subject": NASTY, "body": NASTY, "context": {NASTY: NASTY}}
        sent = running.operator.post("/ansible/messages", {"fromAgentId": "ada", "toAgents": ["bob"], **said})
        task = {"requesterAgentId": "ada", "toAgents": ["bob"], "title": NASTY, "description": NASTY, "input": NASTY}
        created = running.operator.post("/ansible/tasks", task)
        running.operator.post(
            f"/ansible/tasks/{created['taskId']}/claim",
            {"agentId": "bob", "etaSeconds": 600, "planSummary": NASTY},
        )
        failed = {"agentId": "bob", "failureClass": "failed", "errorSummary": NASTY}
        running.operator.post(f"/ansible/tasks/{created['taskId']}/fail", failed)
        running.operator.post(f"/ansible/agents/bob/inbox/{sent['eventId']}/reply", {"body": NASTY})
        running.sent, running.task = sent["eventId"], created["taskId"]  # type: ignore[attr-defined]
        yield running


COMMANDS = [
    "inbox bob",
    "read {sent} --agent bob --peek",
    "show {sent}",
    "trace {sent}",
    "tail outbox",
    "tail inbox:bob",
    "tail outbox --format cloudevents",
    "task list",
    "task show {task}",
    "context --agent bob",
    "agents list",
    "incidents list",
    "audit",
    "status",
    "doctor",
]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_mail_of_others_as_text(gateway: RunningGateway, command: str, form: str) -> None:
    """A message, a task and a failure with every control character in them, in each command that shows some of it."""
    words = command.format(sent=gateway.sent, task=gateway.task).split()  # type: ignore[attr-defined]
    more = () if words[0] == "tail" else ("-o", form)
    shown = agentpost(*words, *more, "--home", str(gateway.home))
    assert shown.returncode in (0, 1), shown.stderr
    assert shown.stdout
    assert not obeyed(shown.stdout + shown.stderr)
    # A body is printed last and as it is, line by line.
    assert words[0] == "read" or not any(line.startswith(FORGED) for line in shown.stdout.splitlines())
    if form == "json" and words[0] == "read":
        assert json.loads(shown.stdout)["content"]["body"] == NASTY


@pytest.mark.req("PIPE-1")
def test_reasons_of_a_peer_are_logged_as_text(tmp_path: Path) -> None:
    """A member that ends its link with a reason of its own, or with a frame whose error quotes it."""
    with running_gateway(tmp_path / "vps-jane") as victim:
        liar = Liar("lab-liar", tmp_path, victim)
        for frame in (
            msgspec.msgpack.encode({"type": "refused", "code": "internal", "message": NASTY[:500]}),
            msgspec.msgpack.encode({"type": "refused", "code": "x\x1b[2J\n", "message": f"\n{FORGED}\x9b\u202e"}),
            msgspec.msgpack.encode({"type": f"\n{FORGED}\x1b[31m"}),
            msgspec.msgpack.encode({"type": "ping", f"\n{FORGED}\x1b": 1, "readSeq": "\x9b"}),
            msgspec.msgpack.encode({"type": "subscribe", "source": f"x\n{FORGED}\x1b", "afterSeq": 0}),
        ):
            with liar.link() as link:
                link.asked()
                link.send_raw(frame)
                link.refusal()
        with liar.link() as link:
            link.asked()
            link.send(Refused(code="internal", message=f"because\n{FORGED}\x1b[2J\x9b\u202e"))
            link.refusal()
        eventually(lambda: "because" in victim.log)
        assert not obeyed(victim.log)
        assert not any(line.startswith(FORGED) for line in victim.log.splitlines())
        listed = [agentpost(*words, "--home", str(victim.home)).stdout for words in (("audit",), ("incidents", "list"))]
        assert not obeyed("".join(listed))


def test_the_reason_of_a_seed_is_logged_as_text(tmp_path: Path, log: io.StringIO) -> None:
    """What answers at the address of a seed gives a reason: in the log, in `nodes` and in `doctor` it is text."""
    home = tmp_path / "home"
    error = {"error": {"code": "room_denied", "message": NASTY, "hint": NASTY}}
    logger = logging.getLogger("agentpost")
    handler = logging.StreamHandler(log)
    logger.addHandler(handler)
    with a_stranger(403, msgspec.json.encode(error)) as (url, asked):
        with served_gateway(home, clock=FakeClock()):
            pass
        (home / "seeds.json").write_bytes(msgspec.json.encode([{"url": url, "nodeId": "hub-jane"}]))
        with served_gateway(home, clock=FakeClock(), seed=2):
            eventually(lambda: "link to hub-jane" in log.getvalue())
            for words in (("nodes",), ("nodes", "-o", "json"), ("doctor",), ("doctor", "-o", "json")):
                shown = agentpost(*words, "--home", str(home))
                assert shown.stdout
                assert not obeyed(shown.stdout + shown.stderr)
    logger.removeHandler(handler)
    assert asked
    assert not obeyed(log.getvalue())
    assert not any(line.startswith(FORGED) for line in log.getvalue().splitlines())
