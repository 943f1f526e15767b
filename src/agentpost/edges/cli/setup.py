"""`agentpost setup`: other programs told about the post, and made to forget it; `agentpost hook`: what they call."""

import difflib
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from agentpost.config import expanded, home_of, homes_here, only_home
from agentpost.edges.cli.options import TIME, HomeOption, seconds, seconds_of
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_json_line, print_said, stdout
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.edges.setup.clients import ClientName, Wish, edits_of
from agentpost.edges.setup.edits import Edit
from agentpost.edges.setup.ledger import Change, Ledger, state_directory
from agentpost.store.home import Home

__all__ = ["register"]

Program = Literal["claude", "codex", "gemini", "openclaw", "all"]
_MOST_NAMES: Final = 5
_PAGE: Final = 500
_LOOK_SECONDS: Final = 120.0
_MOST_TOLD_BYTES: Final = 4 * 1024 * 1024


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: [bold]agentpost setup claude --agent claude-jane --dry-run[/bold]")(setup)
    app.command(hidden=True)(hook)


def setup(
    client: Annotated[Program, typer.Argument(help="The program, or all of them.", show_default=False)],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Who it speaks for; the name of the program without it.")
    ] = None,
    project: Annotated[Path, typer.Option("--project", help="The directory that Claude Code works in.")] = Path(),
    wake: Annotated[
        int | None,
        typer.Option(
            "--wake",
            parser=seconds,
            metavar=TIME,
            help="Have an idle program wait so long for mail when it stops, as 10m.",
            show_default=False,
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Put everything back as it was.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Tell an agent's program about the post: its tools, a skill that teaches them, and a look into the inbox.

    Files are merged, not replaced, and what was there before is kept. A second run changes nothing.
    """
    if home is None and not remove and len(homes_here()) > 1:
        # The program would be refused each time it starts, where nobody sees it.
        only_home()
    ledger = Ledger(state_directory())
    planned: dict[Path, tuple[Edit, Change]] = {}
    chosen = _chosen(client)
    # All of it is worked out before any of it is written: one file that cannot be read stops everything.
    for name in chosen:
        wish = Wish(
            agent=agent or name.value,
            gateway=None if home is None else expanded(home).resolve(),
            user_home=Path.home(),
            project=project.resolve(),
            wake_seconds=wake,
        )
        edits = [edit for edit in edits_of(name, wish) if not remove or not _is_shared(edit, chosen, wish, ledger)]
        planned |= {edit.path: (edit, ledger.to_undo(edit) if remove else ledger.to_make(edit)) for edit in edits}
    changes = [(edit, change) for edit, change in planned.values() if not change.is_none]
    left = [str(edit.path) for edit, change in planned.values() if remove and _is_left(edit, change, ledger)]
    backups: list[str] = []
    if not dry_run:
        for edit, change in changes:
            if remove:
                ledger.undo(edit, change)
            elif (backup := ledger.make(edit, change)) is not None:
                backups.append(str(backup))
    if output is Format.JSON:
        shown = [{"path": str(change.path), "diff": _diff(change)} for _, change in changes]
        print_json({"changed": shown, "backups": backups, "left": left, "dryRun": dry_run})
        return
    _print_changes([change for _, change in changes], dry_run=dry_run, remove=remove)
    for path in left:
        stdout.print(f"left {escape(path)}: somebody has changed it since", highlight=False, soft_wrap=True)


def _chosen(program: Program) -> list[ClientName]:
    return list(ClientName) if program == "all" else [ClientName(program)]


def _is_shared(edit: Edit, chosen: list[ClientName], wish: Wish, ledger: Ledger) -> bool:
    """Whether another program, which is to stay set up, needs the same file."""
    for other in set(ClientName) - set(chosen):
        configuration, *more = edits_of(other, wish)
        if edit.path in {each.path for each in more} and ledger.knows(configuration):
            return True
    return False


def _is_left(edit: Edit, change: Change, ledger: Ledger) -> bool:
    """Whether a file that we wrote stays, because it is somebody else's by now."""
    return change.is_none and change.before is not None and ledger.knows(edit)


def _print_changes(changes: list[Change], *, dry_run: bool, remove: bool) -> None:
    if not changes:
        stdout.print("nothing to change")
        return
    for change in changes:
        if dry_run:
            print_said(_diff(change))
        else:
            what = "removed" if change.after is None else ("written" if change.before is None else "changed")
            stdout.print(f"{what} {escape(str(change.path))}", highlight=False, soft_wrap=True)
    if not dry_run and not remove:
        stdout.print("Start the program anew. `agentpost setup … --remove` puts everything back.", highlight=False)


def _diff(change: Change) -> str:
    before, after = ((text or b"").decode(errors="replace").splitlines() for text in (change.before, change.after))
    old = "/dev/null" if change.before is None else str(change.path)
    new = "/dev/null" if change.after is None else str(change.path)
    return "\n".join(difflib.unified_diff(before, after, old, new, lineterm=""))


def hook(
    event: Annotated[str, typer.Argument(help="start or stop.")],
    agent: Annotated[str, typer.Option("--agent", "-a", help="Whose inbox.")],
    wait: Annotated[str | None, typer.Option("--wait", help="Wait so long for mail.")] = None,
    home: HomeOption = None,
) -> None:
    """What a program calls when a session starts, and when it stops: tells the model that mail waits.

    It never fails and never says the same twice: whatever goes wrong with the post is no reason to stop work.
    """
    with suppress(Exception):
        _say(event, agent, wait, home_of(None, home=home))


def _say(event: str, agent: str, wait: str | None, home: Path) -> None:
    if not sys.stdin.isatty():
        # Whoever calls this may want to be rid of what it tells; none of it is needed.
        sys.stdin.buffer.read(_MOST_TOLD_BYTES)
    told = Home(home).path / "hooks" / agent
    before = int(told.read_text()) if told.exists() else 0
    until = time.monotonic() + (seconds_of(wait, field="wait") if wait else 0)
    client = OperatorClient(home, timeout_seconds=10 + _LOOK_SECONDS)
    path = path_of("ansible", "agents", agent, "inbox")
    unread: list[dict[str, Any]] = []
    after = before if event == "stop" else 0
    while True:
        look_seconds = 0.0 if unread else min(max(until - time.monotonic(), 0), _LOOK_SECONDS)
        query = {"only_unread": "true", "limit": _PAGE, "wait_seconds": round(look_seconds, 3), "after": after}
        page: list[dict[str, Any]] = client.get(path, query)
        unread += page
        if len(page) == _PAGE:
            after = page[-1]["inboxSeq"]
        elif unread or time.monotonic() >= until:
            break
    newest = max((line["inboxSeq"] for line in unread), default=0)
    if not unread:
        return
    told.parent.mkdir(mode=0o700, exist_ok=True)
    told.write_text(str(newest))
    senders = sorted({f"{line['fromAgentId']}@{line['fromNodeId']}" for line in unread})
    names = ", ".join(senders[:_MOST_NAMES]) + (" and others" if len(senders) > _MOST_NAMES else "")
    text = f"{len(unread)} unread on agentpost for {agent}, from {names}. Look with ansible_read_messages."
    # Claude Code, Codex and Gemini CLI read the same JSON.
    context = {"hookEventName": "SessionStart", "additionalContext": text}
    said = {"decision": "block", "reason": text} if event == "stop" else {"hookSpecificOutput": context}
    print_json_line(said)
