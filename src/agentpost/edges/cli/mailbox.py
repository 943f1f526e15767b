"""`mailbox`: the mailbox protocol from a shell, over whichever transport, and a server for other programs."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from agentpost.edges.cli.mailbox_serve import DEFAULT_FILE, serve
from agentpost.edges.cli.options import text_of
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    escape,
    print_json,
    print_quoted,
    print_table,
    print_text,
    say,
    stdout,
)
from agentpost.mailbox.interface import MailboxProtocol
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import PROTOCOL_VERSION, DeadLetterEntry, MailboxMessage, to_wire
from agentpost.protocol.visible import visible

__all__ = ["mailbox_app"]

mailbox_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Mailboxes of sessions: send, receive, acknowledge. No gateway is needed.",
)

AtOption = Annotated[
    str,
    typer.Option(
        "--at",
        envvar="AGENTPOST_MAILBOX",
        help="Where the mailbox is: a file, unix:PATH, http://…, ws://… or gateway:HOME.",
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="AGENTPOST_MAILBOX_TOKEN_FILE", help="The token of an HTTP mailbox."),
]
SessionArgument = Annotated[str, typer.Argument(help="Whose mailbox it is.")]
IdArgument = Annotated[str, typer.Argument(help="The msg_id.")]
AfterOption = Annotated[str | None, typer.Option("--after", help="The last msg_id of the page before.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")]
_DEFAULT_AT = str(DEFAULT_FILE)

T = TypeVar("T")


def _with_mailbox(at: str, token_file: Path | None, work: Callable[[MailboxProtocol], Awaitable[T]]) -> T:
    # Here, because the carriers bring HTTP and WebSocket libraries that a file does not need.
    from agentpost.edges.mailbox.connecting import connect_mailbox

    token = None if token_file is None else _read_token(token_file)

    async def run() -> T:
        async with await connect_mailbox(at, token=token) as mailbox:
            return await work(mailbox)

    return asyncio.run(run())


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise Refusal(
            Code.NOT_FOUND,
            f"there is no token in {path}",
            hint="It lies beside the file that is served, with .token behind its name.",
        ) from None


def _done(what: str, name: str, output: Format) -> None:
    if output is Format.JSON:
        print_json({what: name})
    else:
        stdout.print(f"{what}: {escape(name)}", highlight=False)


@mailbox_app.command(epilog="Example: [bold]agentpost mailbox send analyst 'analyze the auth module' --from me[/bold]")
def send(
    to: Annotated[str, typer.Argument(help="The session that gets it.")],
    payload: Annotated[str | None, typer.Argument(help="What it says; - or nothing reads stdin.")] = None,
    sender: Annotated[str, typer.Option("--from", help="The session that it is from.")] = os.environ.get("USER", "me"),
    msg_id: Annotated[
        str | None, typer.Option("--id", help="Its id; the same id is queued once.", show_default=False)
    ] = None,
    at: AtOption = _DEFAULT_AT,
    token_file: TokenOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Put a message into a session's mailbox. It is durable when this returns."""
    text = text_of("-" if payload is None else payload)
    now_ns = time.time_ns()
    message = MailboxMessage(
        msg_id=msg_id or f"{sender}:{now_ns}",
        sender=sender,
        to=to,
        payload=text,
        created_at=now_ns // 1_000_000_000,
        attempt=0,
        protocol_version=PROTOCOL_VERSION,
    )
    ack = _with_mailbox(at, token_file, lambda mailbox: mailbox.enqueue(message))
    if output is Format.JSON:
        print_json(to_wire(ack))
        return
    what = "queued" if ack.queued else "seen before, not queued again"
    stdout.print(f"{escape(ack.msg_id)}: {what}, {ack.pending} pending", highlight=False)


@mailbox_app.command(epilog="Example: [bold]agentpost mailbox receive analyst --wait 30[/bold]")
def receive(
    session: SessionArgument,
    wait: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for one.")] = 0,
    limit: LimitOption = 1,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge them at once, once they are printed.")] = False,
    at: AtOption = _DEFAULT_AT,
    token_file: TokenOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Take the next message. Acknowledge it within 30 seconds (`mailbox ack`), or it comes again.

    Exit code 5 if there is none.
    """

    async def work(mailbox: MailboxProtocol) -> list[MailboxMessage]:
        found = await mailbox.dequeue_many(session, limit, wait_seconds=wait)
        _show(found, output)
        if ack and found:
            sys.stdout.flush()
            await mailbox.ack_many(session, [each.msg_id for each in found])
        return found

    if not _with_mailbox(at, token_file, work):
        raise typer.Exit(5)


def _show(messages: list[MailboxMessage], output: Format) -> None:
    if output is Format.JSON:
        print_json([to_wire(each) for each in messages])
        return
    if not messages:
        say("no message")
    for each in messages:
        stdout.print(f"[dim]{escape(each.msg_id)} from {escape(each.sender)}[/dim]", highlight=False)
        print_quoted(each.payload)


@mailbox_app.command(epilog="Example: [bold]agentpost mailbox ack analyst me:1743999600123456789[/bold]")
def ack(
    session: SessionArgument,
    msg_id: IdArgument,
    at: AtOption = _DEFAULT_AT,
    token_file: TokenOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Say that a message was handled."""
    _with_mailbox(at, token_file, lambda mailbox: mailbox.ack(session, msg_id))
    _done("acked", msg_id, output)


@mailbox_app.command(epilog="Example: [bold]agentpost mailbox nack analyst me:1743999600123456789 'no disk'[/bold]")
def nack(
    session: SessionArgument,
    msg_id: IdArgument,
    reason: Annotated[str, typer.Argument(help="Why.")] = "",
    at: AtOption = _DEFAULT_AT,
    token_file: TokenOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Say that a message could not be handled: it comes again later, or becomes a dead letter."""
    _with_mailbox(at, token_file, lambda mailbox: mailbox.nack(session, msg_id, reason))
    _done("nacked", msg_id, output)


@mailbox_app.command(epilog="Example: [bold]agentpost mailbox peek analyst[/bold]")
def peek(
    session: SessionArgument,
    after: AfterOption = None,
    limit: LimitOption = 50,
    at: AtOption = _DEFAULT_AT,
    token_file: TokenOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Look at what waits, without taking it."""
    found = _with_mailbox(at, token_file, lambda mailbox: mailbox.peek(session, after=after, limit=limit))
    if output is Format.JSON:
        print_json([to_wire(each) for each in found])
        return
    rows = [(escape(each.msg_id), escape(each.sender), each.state.value, str(each.attempt)) for each in found]
    print_table(f"Mailbox of {session}", ("msg_id", "from", "state", "attempt"), rows, numbers=(3,))


@mailbox_app.command("dead-letter", epilog="Example: [bold]agentpost mailbox dead-letter analyst --purge[/bold]")
def dead_letter(
    session: SessionArgument,
    after: AfterOption = None,
    limit: LimitOption = 50,
    drop: Annotated[bool, typer.Option("--purge", help="Show all of them, then drop them.")] = False,
    at: AtOption = _DEFAULT_AT,
    token_file: TokenOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The messages that ran out of tries, with why."""
    if drop and after is not None:
        raise typer.BadParameter("--purge drops all of them, so it shows all of them: leave out --after")

    async def work(mailbox: MailboxProtocol) -> None:
        if not drop:
            _show_dead(session, await mailbox.peek_dead_letter(session, after=after, limit=limit), output)
            return
        found = await _all_dead(mailbox, session)
        _show_dead(session, found, output)
        if found:
            sys.stdout.flush()
            await mailbox.purge_dead_letter(session)

    _with_mailbox(at, token_file, work)


async def _all_dead(mailbox: MailboxProtocol, session: str) -> list[DeadLetterEntry]:
    found: list[DeadLetterEntry] = []
    while page := await mailbox.peek_dead_letter(session, after=found[-1].msg_id if found else None):
        found += page
    return found


def _show_dead(session: str, found: list[DeadLetterEntry], output: Format) -> None:
    if output is Format.JSON:
        print_json([to_wire(each) for each in found])
        return
    rows = [(escape(each.msg_id), escape(each.sender), str(each.attempts), escape(each.reason)) for each in found]
    print_table(f"Dead letters of {session}", ("msg_id", "from", "attempts", "reason"), rows, numbers=(2,))


@mailbox_app.command(epilog="Example: [bold]agentpost mailbox purge analyst --yes[/bold]")
def purge(
    session: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    at: AtOption = _DEFAULT_AT,
    token_file: TokenOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Drop what is pending and in flight. Dead letters stay."""
    if not yes:
        # Not on stdout, where a program reads JSON.
        typer.confirm(f"Drop everything that waits for {visible(session)}?", abort=True, err=True)
    _with_mailbox(at, token_file, lambda mailbox: mailbox.purge(session))
    _done("purged", session, output)


@mailbox_app.command(epilog="Example: [bold]agentpost mailbox typescript > mailbox.d.ts[/bold]")
def typescript() -> None:
    """The types of the protocol as a TypeScript declaration file."""
    from agentpost.mailbox.typescript import declarations

    print_text(declarations())


mailbox_app.command(epilog="Example: [bold]agentpost mailbox serve --socket ~/mail.sock[/bold]")(serve)
