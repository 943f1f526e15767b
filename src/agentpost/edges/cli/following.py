"""`show`, `trace`, `watch`, `tail`: what became of mail, and what happens, from the command line."""

import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    ago,
    ahead,
    escape,
    print_json,
    print_json_line,
    print_said,
    print_table,
    stdout,
)
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliveryState

__all__ = ["failing_lines", "print_deliveries", "register", "stopped"]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(epilog="Example: [bold]agentpost show evt_01K…[/bold]")(show)
    app.command(epilog="Example: [bold]agentpost trace evt_01K…[/bold]")(trace)
    app.command(epilog="Example: [bold]agentpost watch -o json[/bold]")(watch)
    app.command(epilog="Example: [bold]agentpost tail outbox --follow --format cloudevents[/bold]")(tail)


def show(
    event_id: Annotated[str, typer.Argument(help="A message that was sent from here.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What became of a message, for each recipient, with the answers that came."""
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(path_of("ansible", "messages", event_id))
    if output is Format.JSON:
        print_json(found)
    else:
        print_deliveries(found)


def trace(
    what: Annotated[str, typer.Argument(help="An event id or a corr id.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What became of a message: each step with its time, for each recipient, as far as this gateway knows."""
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(path_of("ansible", "trace", what))
    if output is Format.JSON:
        print_json(found)
        return
    start_ms = found["steps"][0]["atMs"] if found["steps"] else 0
    rows = [
        (
            f"+{(step['atMs'] - start_ms) / 1000:,.3f} s",
            escape(step["what"]),
            escape(step.get("agentId") or ""),
            escape(step.get("nodeId") or ""),
            escape(step.get("detail") or ""),
        )
        for step in found["steps"]
    ]
    print_table(f"Trace of {what}", ("when", "what", "agent", "node", ""), rows, numbers=(0,))
    for step in found["steps"]:
        if error := step.get("error"):
            print_said(error, after=f"{escape(step.get('agentId') or '')}, {escape(step.get('detail') or '')}:")


def watch(
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What happens at this gateway, as it happens, until Ctrl-C. With -o json one object on each line."""
    client = OperatorClient(home_of(None, home=home))
    try:
        for each in client.lines("/ansible/watch"):
            if output is Format.JSON:
                print_json_line(each)
                continue
            to = ", ".join(each.get("toAgents", ()))
            line = f"[dim]{each['at'][11:23]}[/dim] {escape(each['what']):20} {escape(each.get('fromAgentId') or '')}"
            about = each.get("refEventId") or each["eventId"]
            stdout.print(f"{line} → {escape(to)}  [dim]{escape(about)}[/dim]", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        raise typer.Exit from None
    raise stopped()


class StreamFormat(StrEnum):
    JSON = "json"
    CLOUDEVENTS = "cloudevents"


def tail(
    stream: Annotated[str, typer.Argument(help="outbox, inbox:<agent>, or a node that is mirrored here.")] = "outbox",
    after: Annotated[int, typer.Option("--after", min=0, help="Only what comes after this seq.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes; Ctrl-C ends it.")] = False,
    form: Annotated[
        StreamFormat, typer.Option("--format", help="Events as they are, or as CloudEvents 1.0.")
    ] = StreamFormat.JSON,
    home: HomeOption = None,
) -> None:
    """Print a stream, one event on each line. Content stays sealed; `seq` is where the next call goes on."""
    client = OperatorClient(home_of(None, home=home))
    query = {"after": after, "follow": follow, "cloudevents": form is StreamFormat.CLOUDEVENTS}
    path = path_of("ansible", "streams", stream)
    try:
        for line in client.lines(path, {name: str(value).lower() for name, value in query.items()}):
            print_json_line(line)
    except KeyboardInterrupt:
        raise typer.Exit from None
    if follow:
        raise stopped()


def print_deliveries(found: dict[str, Any]) -> None:
    """A line for each recipient: how far it is, and what was answered. Below it, what its agent fails with."""
    now_ms = time.time() * 1000
    for delivery in found["deliveries"]:
        said = delivery.get("answer") or delivery.get("reason") or ""
        # Processed says that the turn is over, not that it went well.
        is_given_up = delivery.get("hasFailed") and delivery["state"] == DeliveryState.PROCESSED
        state = "Failed" if is_given_up else delivery["state"]
        if delivery.get("answerLeftOut"):
            said = f"its reply is {delivery['answeredByEventId']}, in the inbox of who asked: see `agentpost read`"
        if late := delivery.get("late"):
            heard = f"{late.removeprefix('ack:')} {ago(now_ms - delivery['lateAtMs'])}, after the end"
            state = f"{state} ({escape(delivery.get('reason') or '')}), {heard}"
            said = delivery.get("answer") or ""
        again = f", sent again as {delivery['resentAs']}" if delivery.get("resentAs") else ""
        if held_by := delivery.get("heldBy"):
            state += f", waits behind {held_by}, which its agent fails with"
        print_said(said + again, after=f"  {escape(delivery['toAgentId'])}: {state}")
        if failing := delivery.get("failing"):
            told, *error = failing_lines(failing, now_ms=now_ms)
            print_said("\n".join(error), after=f"    {told}")


def failing_lines(failing: dict[str, Any], *, now_ms: float) -> list[str]:
    """Which try of an agent failed, when the next one is due, and the error: a line, or several."""
    told = f"attempt {failing['attempt']} of {failing['mostAttempts']} failed {ago(now_ms - failing['atMs'])}"
    next_ms = failing.get("nextTryAtMs")
    told += ", and there is no other one" if next_ms is None else f", next try {ahead(next_ms - now_ms)}"
    return [f"{told}:", *(failing.get("error") or "its gateway does not say why").splitlines()]


def stopped() -> Refusal:
    """Whoever looked on would have gone on."""
    return Refusal(Code.UNAVAILABLE, "the gateway has stopped", hint="Once it is up again, look on again.")
