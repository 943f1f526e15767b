"""`send`, `inbox`, `fetch`, `read`, `reply`, `dismiss`, `resolve`: mail from the command line."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import typer

from agentpost.config import home_of
from agentpost.edges.cli.following import failing_lines, print_deliveries, stopped
from agentpost.edges.cli.options import (
    TIME,
    CapabilitiesOption,
    HomeOption,
    KeyOption,
    body_of,
    expect_somebody,
    post_once,
    seconds,
    seconds_from,
)
from agentpost.edges.cli.output import (
    INTERRUPTED,
    Format,
    FormatOption,
    ago,
    ask_for_more,
    escape,
    other_words,
    print_error,
    print_json,
    print_quoted,
    print_said,
    print_table,
    say,
    stderr,
    stdout,
)
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.headers import HeaderKind
from agentpost.protocol.payloads import Kind, Priority
from agentpost.protocol.snapshot import MOST_NOT_TAKEN, MOST_WAITING

__all__ = ["only_agent", "register"]

# Shorter than the client's patience with the gateway.
_LOOK_SECONDS: Final = 1.0
_EARLY_SECONDS: Final = 0.5
# What waits for somebody who is there is some seconds old: fewer may have gone by now.
_BACKLOG: Final = 10

# As `delivery.dispatch` has them, which takes longer to load than the command to run.
Resolution = Literal["retry", "settle"]
KindOption = Annotated[
    HeaderKind | None,
    typer.Option("--kind", help="Header: what the message is, e.g. request.", show_default=False),
]
ThreadOption = Annotated[
    str | None,
    typer.Option("--thread", help='Header: what the message is about, e.g. "release 1.3".', show_default=False),
]
AgentOption = Annotated[
    str | None, typer.Option("--agent", "-a", help="The agent; the only one here without it.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands of mail to the command line."""
    app.command(epilog='Example: [bold]agentpost send --from architect --to builder "Build it, please."[/bold]')(send)
    app.command(epilog="Example: [bold]agentpost inbox builder --open[/bold]")(inbox)
    app.command(epilog="Example: [bold]agentpost fetch builder --wait 60s -o json[/bold]")(fetch)
    app.command(epilog="Example: [bold]agentpost read evt_01K… --agent builder[/bold]")(read)
    app.command(epilog='Example: [bold]agentpost reply evt_01K… --agent builder "It is built."[/bold]')(reply)
    app.command(epilog="Example: [bold]agentpost dismiss evt_01K… --agent builder[/bold]")(dismiss)
    app.command(epilog="Example: [bold]agentpost resolve evt_01K… --agent builder --how retry[/bold]")(resolve)


def send(
    body: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.")],
    to: Annotated[
        list[str] | None, typer.Option("--to", "-t", help="An agent; again for more; all for everyone.")
    ] = None,
    capability: CapabilitiesOption = None,
    sender: Annotated[
        str | None, typer.Option("--from", "-f", help="Who says it; the only agent here without it.")
    ] = None,
    subject: Annotated[str | None, typer.Option("--subject", "-s", help="In a few words.")] = None,
    priority: Annotated[Priority, typer.Option("--priority", help="How urgent it is.")] = Priority.NORMAL,
    kind: KindOption = None,
    thread: ThreadOption = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            "--ttl",
            parser=seconds_from("1s", "366d"),
            metavar=TIME,
            help="Not to be delivered after this time, as 2h.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option(
            "--wait",
            "-w",
            parser=seconds,
            metavar=TIME,
            show_default=False,
            help="Wait so long for the answers, as 30s; exit 5 if one is missing, 1 if one has failed.",
        ),
    ] = None,
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Send a message to one or more agents. When this returns, the message is durable.

    It says at once who of them is away, since when, and how much each has waiting.
    """
    expect_somebody(to, capability)
    client = OperatorClient(home_of(None, home=home))
    receipt: dict[str, Any] = post_once(
        client,
        "/ansible/messages",
        {
            "fromAgentId": sender or only_agent(client, said_with="--from"),
            "toAgents": to or [],
            "requiredCapabilities": capability or [],
            "subject": subject,
            "body": body_of(body),
            "priority": priority,
            "kind": kind,
            "thread": thread,
            "expectsReply": wait is not None,
            "ttlSeconds": ttl,
        },
        key,
    )
    if wait is None:
        if output is Format.JSON:
            print_json(receipt)
        else:
            _print_receipt(receipt)
        return
    if output is Format.TEXT:
        _print_receipt(receipt)
    _print_answers(client, receipt["eventId"], wait, output)


def inbox(
    agent: Annotated[str | None, typer.Argument(help="The agent; the only one here without it.")] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only what has no outcome yet.")] = False,
    after: Annotated[
        int, typer.Option("--after", min=0, help="Only what came after this inboxSeq, as -o json tells it.")
    ] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many at most.")] = 50,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What came for an agent, oldest first. Looking changes nothing."""
    client = OperatorClient(home_of(None, home=home))
    name = agent or only_agent(client, said_with="its id as an argument")
    lines: list[dict[str, Any]] = client.get(
        path_of("ansible", "agents", name, "inbox"), {"limit": limit, "after": after, "only_open": only_open}
    )
    if output is Format.JSON:
        print_json(lines)
        return
    if not lines:
        stdout.print(f"nothing for {escape(name)}", highlight=False)
        return
    now_ms = time.time() * 1000
    rows = [
        (
            "" if line.get("isRead") else "[bold]new[/bold]",
            line["eventId"],
            escape(f"{line['fromAgentId']}@{line['fromNodeId']}"),
            escape(_subject_of(line)),
            _state_of(line),
            ago(now_ms - line["acceptedAtMs"]),
        )
        for line in lines
    ]
    print_table(f"Inbox of {name}", ("", "event", "from", "subject", "state", "came"), rows)
    ask_for_more(lines, limit, f"agentpost inbox {name} --after {lines[-1]['inboxSeq']}")


def fetch(
    agent: Annotated[str | None, typer.Argument(help="The agent; the only one here without it.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=256, help="How many at most; fewer come at once if they are large.")
    ] = 1,
    wait: Annotated[
        int | None,
        typer.Option(
            "--wait",
            "-w",
            parser=seconds_from("0s", "5m"),
            metavar=TIME,
            help="Wait so long for mail, as 60s, 5m at most; exit 5 if none comes.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Fetch mail for an agent that pulls: it is the caller's until it is answered, or until the lease is over."""
    patience = wait or 0
    # The gateway keeps its word a little late; the line must not be cut before that.
    client = OperatorClient(home_of(None, home=home), timeout_seconds=patience + 30)
    name = agent or only_agent(client, said_with="its id as an argument")
    path = path_of("ansible", "agents", name)
    until = time.monotonic() + patience
    with client.held(f"{path}/fetch", {"limit": limit, "waitSeconds": patience, "hold": True}) as fetched:
        if not fetched and until - time.monotonic() > _EARLY_SECONDS:
            # Whoever waits is let go before the time is over only then.
            raise stopped()
        _print_fetched(fetched, output)
        if fetched:
            # Now that it can be read it is the caller's. Without this word it is given back.
            sys.stdout.flush()
            client.post(f"{path}/taken", {"eventIds": [each["eventId"] for each in fetched]})
    if 0 < len(fetched) < limit:
        say(f"{len(fetched)} came; as long as some come there may be more: agentpost fetch {name}")
    if not fetched:
        if wait is not None:
            stderr.print(f"nothing came for {escape(name)} within {wait} s", highlight=False)
            raise typer.Exit(5)
        if output is Format.TEXT:
            stdout.print(f"nothing for {escape(name)}", highlight=False)


def _print_fetched(fetched: list[dict[str, Any]], output: Format) -> None:
    if output is Format.JSON:
        print_json(fetched)
    for engagement in fetched if output is Format.TEXT else ():
        content: dict[str, Any] = engagement.get("content", {})
        sender = f"{engagement['fromAgentId']}@{engagement['fromNodeId']}"
        stdout.print(f"[bold]{engagement['eventId']}[/bold] from {escape(sender)}", highlight=False)
        if subject := content.get("subject"):
            print_quoted(subject)
        for word, said in other_words(content):
            print_quoted(f"{word}: {said}")
        if text := content.get("body"):
            print_quoted(text)


def read(
    event_id: Annotated[str, typer.Argument(help="The message.")],
    agent: AgentOption = None,
    peek: Annotated[bool, typer.Option("--peek", help="Do not mark it as read.")] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """One message in full. Reading never consumes it: the agent still gets it."""
    client = OperatorClient(home_of(None, home=home))
    path = path_of("ansible", "agents", agent or only_agent(client), "inbox", event_id)
    message: dict[str, Any] = client.get(path, {"mark": "false" if peek else "true"})
    if output is Format.JSON:
        print_json(message)
        return
    line, content = message["line"], message["content"]
    stdout.print(
        f"[dim]from[/dim]    {escape(line['fromAgentId'])}@{escape(line['fromNodeId'])}",
        highlight=False,
        soft_wrap=True,
    )
    stdout.print(f"[dim]to[/dim]      {escape(line['toAgentId'])}", highlight=False, soft_wrap=True)
    stdout.print(f"[dim]sent[/dim]    {escape(line['createdAt'])}", highlight=False, soft_wrap=True)
    if line["kind"] != Kind.MESSAGE:
        stdout.print(f"[dim]kind[/dim]    {escape(line['kind'])}", highlight=False)
    if line.get("priority", Priority.NORMAL) != Priority.NORMAL:
        stdout.print(f"[dim]priority[/dim] {line['priority']}", highlight=False)
    stdout.print(f"[dim]subject[/dim] {escape(content.get('subject') or '')}", highlight=False, soft_wrap=True)
    for name, said in other_words(content):
        print_said(said, after=f"[dim]{escape(name)}[/dim]")
    stdout.print(f"[dim]state[/dim]   {_state_of(line)}", highlight=False)
    if problem := line.get("error"):
        print_said(problem, after="[dim]error[/dim]  ")
    stdout.print()
    print_said(content.get("body") or "")


def reply(
    event_id: Annotated[str, typer.Argument(help="The message to answer.")],
    body: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.")],
    agent: AgentOption = None,
    kind: KindOption = None,
    thread: ThreadOption = None,
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Answer a message as the agent it came for. If it was still open, this settles it."""
    client = OperatorClient(home_of(None, home=home))
    text = body_of(body)
    path = path_of("ansible", "agents", agent or only_agent(client), "inbox", event_id, "reply")
    answered: dict[str, Any] = post_once(client, path, {"body": text, "kind": kind, "thread": thread}, key)
    if output is Format.JSON:
        print_json(answered)
    else:
        done = ", and the message is settled" if answered["settled"] else ""
        stdout.print(f"answered with {answered['eventId']}{done}", highlight=False)


def dismiss(
    event_id: Annotated[str, typer.Argument(help="The message.")],
    agent: AgentOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Settle a message without an answer: the agent has had it, and its sender sees it as processed."""
    client = OperatorClient(home_of(None, home=home))
    path = path_of("ansible", "agents", agent or only_agent(client), "inbox", event_id, "dismiss")
    done: dict[str, bool] = client.post(path)
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print("settled" if done["settled"] else "it had its outcome before", highlight=False)


def resolve(
    event_id: Annotated[str, typer.Argument(help="The message.")],
    how: Annotated[Resolution, typer.Option("--how", help="retry: engage the agent again. settle: it has had it.")],
    agent: AgentOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Decide about a message that a crash cut off while the agent had it. Only you can know whether it did the work."""
    client = OperatorClient(home_of(None, home=home))
    path = path_of("ansible", "agents", agent or only_agent(client), "inbox", event_id, "resolve")
    done: dict[str, Any] = client.post(path, {"how": how})
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(f"{escape(event_id)}: {done['how']}", highlight=False)


def _subject_of(line: dict[str, Any]) -> str:
    """The subject, after what the headers of the message say of it."""
    headers = ", ".join(line[name] for name in ("headerKind", "thread") if line.get(name))
    subject = line.get("subject") or line.get("problem") or ""
    return f"[{headers}] {subject}".rstrip() if headers else subject


def _state_of(line: dict[str, Any]) -> str:
    """How far a message is here. One that its agent cannot handle does not look like one that only waits."""
    if outcome := line.get("outcome"):
        return outcome
    return f"{line['state']}, {line['attempts']} failed" if line.get("error") else line["state"]


def _print_receipt(receipt: dict[str, Any]) -> None:
    stdout.print(f"sent {receipt['eventId']}", highlight=False)
    now_ms = time.time() * 1000
    for recipient in receipt["recipients"]:
        name = escape(f"{recipient['agentId']}@{recipient['nodeId'] or '?'}")
        if recipient["isOnline"]:
            has_backlog = (recipient.get("waiting") or 0) >= _BACKLOG
            told = (_waiting(recipient) if has_backlog else "") + _not_taken(recipient)
            stdout.print(f"  to {name}{told}", highlight=False, soft_wrap=True)
            continue
        seen = recipient.get("lastSeenMs")
        since = f", last seen {ago(now_ms - seen)}" if seen else ""
        stdout.print(
            f"  to {name}: [yellow]away[/yellow]{since}{_waiting(recipient)}; it is kept for it",
            highlight=False,
            soft_wrap=True,
        )
    for rejected in receipt["rejected"]:
        stderr.print(f"  not to {escape(rejected['agentId'])}: {escape(rejected['reason'])}", highlight=False)


def _waiting(recipient: dict[str, Any]) -> str:
    """What waits for the agent; where its gateway has not said, what waits there for all."""
    own, at_gateway = recipient.get("waiting"), recipient.get("gatewayWaiting")
    if own is not None:
        or_more = " or more" if own >= MOST_WAITING else ""
        return f", {own:,}{or_more} waiting for it" if own else ""
    return f", {at_gateway:,} waiting at its gateway" if at_gateway else ""


def _not_taken(recipient: dict[str, Any]) -> str:
    """What is still on its way to a gateway that is there."""
    count = recipient.get("notTaken") or 0
    or_more = " or more" if count >= MOST_NOT_TAKEN else ""
    return f", {count:,}{or_more} not taken yet by its gateway" if count >= _BACKLOG else ""


def _print_answers(client: OperatorClient, event_id: str, patience: float, output: Format) -> None:
    """Wait until every recipient has answered, settled or failed."""
    found: dict[str, Any] = {"eventId": event_id, "deliveries": []}
    is_over = False
    try:
        told: dict[str, Any] = {}
        for found in _looks(client, event_id, patience):
            if output is Format.TEXT:
                _tell_of_failures(found, told)
            is_over = all(delivery["isOver"] for delivery in found["deliveries"])
            if is_over:
                break
    except (Refusal, KeyboardInterrupt) as end:
        # It is sent all the same. Who does not hear its id sends it twice.
        if output is Format.JSON:
            print_json(found)
        if isinstance(end, Refusal):
            raise _not_waited_for(event_id, end.code, end.message) from None
        print_error(_not_waited_for(event_id, Code.UNAVAILABLE, "interrupted"), output)
        raise typer.Exit(INTERRUPTED) from None
    if output is Format.JSON:
        print_json(found)
    else:
        print_deliveries(found)
    if not is_over:
        hint = f"Do not send it again: `agentpost show {event_id}` tells what becomes of it."
        stderr.print(f"it is not over for all within {patience:g} s\n  {hint}", highlight=False, soft_wrap=True)
        raise typer.Exit(5)
    if any(delivery.get("hasFailed") for delivery in found["deliveries"]):
        raise typer.Exit(1)


def _tell_of_failures(found: dict[str, Any], told: dict[str, Any]) -> None:
    """Say of each recipient that fails, once for each try, while others wait for the end."""
    now_ms = time.time() * 1000
    for delivery in found["deliveries"]:
        name, failing, held_by = delivery["toAgentId"], delivery.get("failing"), delivery.get("heldBy")
        news = held_by if failing is None else failing["attempt"]
        if delivery["isOver"] or news is None or told.get(name) == news:
            continue
        told[name] = news
        if failing is None:
            say(f"  {name} fails with {held_by}, and this waits behind it")
        else:
            for line in failing_lines(failing, now_ms=now_ms):
                say(f"  {name}: {line}")


def _looks(client: OperatorClient, event_id: str, patience: float) -> Iterator[dict[str, Any]]:
    """What became of a message, again and again until the time is over, once at least."""
    deadline = time.monotonic() + patience
    is_last = False
    while not is_last:
        left_seconds = min(max(deadline - time.monotonic(), 0.0), _LOOK_SECONDS)
        yield client.get(path_of("ansible", "messages", event_id), {"wait_seconds": round(left_seconds, 3)})
        is_last = time.monotonic() >= deadline


def _not_waited_for(event_id: str, code: Code, why: str) -> Refusal:
    return Refusal(
        code,
        f"{event_id} is sent, but its answers were not waited for to the end: {why}",
        hint=f"Do not send it again: `agentpost trace {event_id}` tells what became of it.",
    )


def only_agent(client: OperatorClient, *, said_with: str = "--agent") -> str:
    """The agent of a gateway that has one; a refusal that tells how to say which one, if there are several."""
    agents: list[dict[str, Any]] = client.get("/ansible/agents")
    if len(agents) == 1:
        return agents[0]["agentId"]
    problem = "this gateway has no agent" if not agents else "this gateway has several agents"
    hint = (
        "Add one with `agentpost agents add`."
        if not agents
        else f"Say which one with {said_with}: {', '.join(agent['agentId'] for agent in agents[:10])}."
    )
    raise Refusal(Code.NOT_FOUND, problem, hint=hint)
