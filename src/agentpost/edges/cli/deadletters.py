"""`deadletters`: what could not be delivered, and what to do with it."""

import time
from typing import Annotated, Any, Final

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    ago,
    ask_for_more,
    escape,
    other_words,
    print_json,
    print_said,
    print_table,
    say,
    stdout,
)
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.protocol.errors import Code, Refusal

__all__ = ["deadletters_app"]

deadletters_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="What could not be delivered, and what to do with it."
)

# What a reason means for mail that was accepted.
_FAILED: Final = {
    "expired": "accepted, then expired",
    "failed": "failed at the agent",
    "max_attempts": "failed at the agent (max_attempts)",
    "no_route": "accepted, then the agent was removed",
}

EventArgument = Annotated[str | None, typer.Argument(help="One event; else --all or a filter.", show_default=False)]
ToOption = Annotated[str | None, typer.Option("--to", help="Only those to this agent.", show_default=False)]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Only those that failed for this reason.", show_default=False)
]
AllOption = Annotated[bool, typer.Option("--all", help="All of them.")]


@deadletters_app.command("list", epilog="Example: [bold]agentpost deadletters list --reason max_attempts[/bold]")
def list_letters(
    to: ToOption = None,
    reason: ReasonOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many at most.")] = 50,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What was sent from this gateway and no agent has dealt with, oldest first.

    No gateway accepted it, or one did and its agent failed with it or did not get it in time.
    """
    query = _filters(to, reason) | {"limit": limit}
    letters: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/dead-letters", query)
    if output is Format.JSON:
        print_json(letters)
        return
    if not letters:
        stdout.print("no dead letters")
        return
    now_ms = time.time() * 1000
    rows = [
        (
            each["eventId"],
            escape(each["fromAgentId"]),
            escape(each["toAgentId"]),
            _why(each),
            str(each["attempts"]),
            ago(now_ms - each["deadLetteredAtMs"]),
        )
        for each in letters
    ]
    print_table("Dead letters", ("event", "from", "to", "reason", "attempts", "since"), rows, numbers=(4,))
    if any(not each.get("resentAs") for each in letters):
        say("`agentpost deadletters show EVENT` tells more, `agentpost deadletters resend EVENT` sends one again")
    ask_for_more(letters, limit, "--limit takes up to 500, and --to and --reason choose")


@deadletters_app.command(epilog="Example: [bold]agentpost deadletters show evt_01K…[/bold]")
def show(
    event_id: Annotated[str, typer.Argument(help="The event.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """One dead letter: what it says, and what was tried."""
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(path_of("ansible", "dead-letters", event_id))
    if output is Format.JSON:
        print_json(found)
        return
    for each in found["letters"]:
        again = f", sent again as {each['resentAs']}" if each.get("resentAs") else ""
        stdout.print(
            f"to {escape(each['toAgentId'])}: {_why(each, is_short=True)} after {_tries(each['attempts'])}{again}",
            highlight=False,
            soft_wrap=True,
        )
        if error := each.get("error"):
            print_said(error, after="[dim]error[/dim]  ")
    if kind := found.get("kind"):
        stdout.print(f"[dim]kind[/dim]    {escape(kind)}", highlight=False)
    if problem := found.get("problem"):
        print_said(problem, after="[dim]problem[/dim]")
    content: dict[str, Any] = found.get("content") or {}
    if subject := content.get("subject"):
        print_said(subject, after="[dim]subject[/dim]")
    for name, said in other_words(content):
        print_said(said, after=f"[dim]{escape(name)}[/dim]")
    if body := content.get("body"):
        print_said(body)


@deadletters_app.command(epilog="Example: [bold]agentpost deadletters resend --to builder[/bold]")
def resend(
    event_id: EventArgument = None,
    to: ToOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Send dead letters again, as new events of the same conversation. Exit 1 if one of them had to stay."""
    body = _chosen(event_id, to, reason, everything)
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/dead-letters/resend", body)
    refused: list[dict[str, Any]] = done.get("refused", [])
    _expect_found(event_id, bool(done["resent"] or refused))
    if output is Format.JSON:
        print_json(done)
    else:
        for each in done["resent"]:
            stdout.print(f"{each['eventId']} goes again as {each['resentAs']}", highlight=False)
        for each in refused:
            stdout.print(f"{each['eventId']} stays: {escape(each['reason'])}", highlight=False)
        stdout.print(f"{len(done['resent'])} sent again", highlight=False)
    if refused:
        raise typer.Exit(1)


@deadletters_app.command(epilog="Example: [bold]agentpost deadletters purge --all[/bold]")
def purge(
    event_id: EventArgument = None,
    to: ToOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Forget dead letters. The audit log keeps that it was done."""
    body = _chosen(event_id, to, reason, everything)
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/dead-letters/purge", body)
    _expect_found(event_id, bool(done["purged"]))
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(f"{done['purged']} purged", highlight=False)


def _why(letter: dict[str, Any], *, is_short: bool = False) -> str:
    """What became of it: no gateway has it, or one had it and its agent has not dealt with it."""
    reason = letter.get("reason") or ""
    if letter.get("wasAccepted"):
        reason = _FAILED.get(reason, reason)
    if late := letter.get("late"):
        reason += f", arrived after all ({late.removeprefix('ack:')})"
    return escape(reason) + (", sent again" if letter.get("resentAs") and not is_short else "")


def _tries(attempts: int) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


def _filters(to: str | None, reason: str | None) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    if to is not None:
        found["to"] = to
    if reason is not None:
        found["reason"] = reason
    return found


def _chosen(event_id: str | None, to: str | None, reason: str | None, everything: bool) -> dict[str, Any]:
    if event_id is None and to is None and reason is None and not everything:
        raise Refusal(
            Code.INVALID_FIELD, "this would be all of them", field="all", hint="Name one, filter, or say --all."
        )
    return {"eventId": event_id, "toAgentId": to, "reason": reason, "all": everything}


def _expect_found(event_id: str | None, is_found: bool) -> None:
    """A filter may choose nothing; an id that chooses nothing is a mistake."""
    if event_id is not None and not is_found:
        raise Refusal(
            Code.NOT_FOUND, f"{event_id!r:.40} is not a dead letter here", hint="See `agentpost deadletters list`."
        )
