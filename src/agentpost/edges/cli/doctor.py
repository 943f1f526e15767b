"""`doctor`: what is wrong with the gateway of this machine, and what to do about it."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import typer

from agentpost.config import CONFIG_FILE, load_settings
from agentpost.edges.cli.gateway import NO_PROOF, home_of_node, not_taken, why_stopped
from agentpost.edges.cli.options import HomeOption, NodeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, failing_since, print_json, stdout
from agentpost.edges.open_files import LEAST_OPEN_FILES
from agentpost.edges.operator_client import OperatorClient
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home
from agentpost.store.integrity import check_home

__all__ = ["register"]

_LEAST_FREE_BYTES: Final = 50_000_000
# Mail that a gateway which is there has not taken in this time is slow mail.
_LATE_SECONDS: Final = 300


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: [bold]agentpost doctor[/bold]")(doctor)


def doctor(node: NodeOption = None, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Look for what is wrong with this machine's gateway, and say what to do about it."""
    path = home_of_node(node, home)
    findings = [
        _finding("home", lambda: _home_is_private(path)),
        _finding("settings", lambda: _settings_are_valid(path)),
        _finding("disk", lambda: _disk_has_room(path)),
        _finding("store", lambda: _store_is_whole(path)),
        _finding("epoch", lambda: _database_is_the_latest(path)),
        _finding("gateway", lambda: f"is {OperatorClient(path).get('/operator/status')['phase']}"),
        _finding("open files", lambda: _open_files_are_enough(path)),
        _finding("proofs", lambda: _proofs_are_wanted(path)),
        _finding("seeds", lambda: _seeds_are_there(path)),
        _finding("mail", lambda: _mail_is_taken(path)),
        _finding("clocks", lambda: _clocks_agree(path)),
        _finding("agents", lambda: _agents_work(path)),
        _finding("incidents", lambda: _nothing_needs_a_look(path)),
    ]
    if output is Format.JSON:
        print_json(findings)
    else:
        for found in findings:
            mark = "[green]ok[/green]     " if found["ok"] else "[red]problem[/red]"
            stdout.print(f"{mark} {found['check']}: {escape(found['message'])}", highlight=False)
            for line in (found["hint"] or "").splitlines():
                stdout.print(f"        {escape(line)}", highlight=False)
    if not all(found["ok"] for found in findings):
        raise typer.Exit(1)


def _finding(check: str, look: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": check, "ok": True, "message": look(), "hint": None}
    except Refusal as refusal:
        return {"check": check, "ok": False, "message": refusal.message, "hint": refusal.hint}


def _home_is_private(path: Path) -> str:
    if not path.is_dir():
        raise Refusal(Code.NOT_FOUND, f"there is no home at {path}", hint="Start a gateway with `agentpost up`.")
    Home(path).prepare()
    return f"{path} is its owner's alone"


def _store_is_whole(path: Path) -> str:
    report = check_home(path)
    if report.problems:
        raise Refusal(Code.STORAGE_CORRUPT, report.problems[0])
    return f"whole, {report.outbox_events:,} events in the outbox"


def _settings_are_valid(path: Path) -> str:
    load_settings(home=path, flags={})
    return f"{path / CONFIG_FILE} can be used"


def _disk_has_room(path: Path) -> str:
    try:
        free_bytes = shutil.disk_usage(path).free
    except OSError as error:
        raise Refusal(Code.NOT_FOUND, f"{path} cannot be looked at: {error.strerror}", hint="Check the path.") from None
    if free_bytes < _LEAST_FREE_BYTES:
        problem = f"{free_bytes / 1e6:,.0f} MB are free; a gateway whose disk is full takes no mail"
        raise Refusal(Code.STORAGE_FULL, problem, hint="Free space, or move the home to a larger disk.")
    return f"{free_bytes / 1e6:,.0f} MB are free"


def _seeds_are_there(path: Path) -> str:
    try:
        seeds: list[dict[str, Any]] = OperatorClient(path).get("/operator/nodes")["seeds"]
    except Refusal:
        return "not known while no gateway runs"
    if not seeds:
        return "none: others join here, or nobody does"
    away = [
        f"{seed['nodeId']} at {seed['url']}: {seed.get('problem') or 'not yet'}"
        for seed in seeds
        if not seed["connected"]
    ]
    told = f"{len(seeds) - len(away)} of {len(seeds)} connected" + "".join(f"; not {each}" for each in away)
    if len(away) == len(seeds):
        hint = "What is sent is kept, and goes out once one is. Look at that gateway, and at the way there."
        raise Refusal(Code.UNAVAILABLE, told, hint=hint)
    # One of them is enough to reach everybody.
    return told


def _database_is_the_latest(path: Path) -> str:
    if (older := why_stopped(path)) is not None:
        raise older
    return "no peer has seen more of the outbox than there is"


def _agents_work(path: Path) -> str:
    try:
        agents: list[dict[str, Any]] = OperatorClient(path).get("/ansible/agents")
    except Refusal:
        return "not known while no gateway runs"
    now_ms = time.time() * 1000
    failing = [
        f"{each['agentId']} is {failing_since(each['failing'], now_ms=now_ms)}"
        for each in agents
        if each.get("failing")
    ]
    if failing:
        hint = "`agentpost agents list` shows the last error, `agentpost inbox AGENT --open` the mail that waits."
        raise Refusal(Code.CONFLICT, "; ".join(failing), hint=hint)
    return "none fails" if agents else "none"


def _mail_is_taken(path: Path) -> str:
    try:
        status: dict[str, Any] = OperatorClient(path).get("/operator/status")
    except Refusal:
        return "not known while no gateway runs"
    found: list[dict[str, Any]] = status.get("notTaken") or []
    told = "; ".join(not_taken(each) for each in found) or "all of it is taken"
    late_ms = time.time() * 1000 - _LATE_SECONDS * 1000
    if any(each["isOnline"] and each["oldestSentAtMs"] < late_ms for each in found):
        hint = (
            "Nothing is lost and nothing is sent twice: it waits its turn. Look at the line to that gateway and, with "
            "`agentpost doctor` on its machine, at its disk."
        )
        raise Refusal(Code.UNAVAILABLE, told, hint=hint)
    return told


def _nothing_needs_a_look(path: Path) -> str:
    try:
        kinds: list[dict[str, Any]] = OperatorClient(path).get("/ansible/incidents/kinds")
    except Refusal:
        return "not known while no gateway runs"
    found = sorted((each for each in kinds if each["open"]), key=lambda each: each["kind"])
    if found:
        names = ", ".join(each["kind"] for each in found)
        hints = "\n".join(f"{each['kind']}: {each['what']} {each['hint']}" for each in found)
        hint = f"{hints}\nSee `agentpost incidents list`, and `agentpost incidents show ID` for each."
        raise Refusal(Code.CONFLICT, f"{sum(each['open'] for each in found)} open: {names}", hint=hint)
    return "none open"


def _open_files_are_enough(path: Path) -> str:
    try:
        limit: int = OperatorClient(path).get("/operator/status").get("openFilesLimit", -1)
    except Refusal:
        return "not known while no gateway runs"
    if 0 <= limit < LEAST_OPEN_FILES:
        problem = (
            f"the gateway may have {limit:,} files and connections open; {LEAST_OPEN_FILES:,} is the least it needs"
        )
        hint = "Set `LimitNOFILE=65536` in its systemd unit, or `ulimit -Hn 65536` as root, and start it again."
        raise Refusal(Code.UNAVAILABLE, problem, hint=hint)
    return "as many as it likes" if limit < 0 else f"up to {limit:,}"


def _clocks_agree(path: Path) -> str:
    try:
        found: list[dict[str, Any]] = OperatorClient(path).get("/ansible/incidents", {"limit": 500})
    except Refusal:
        return "not known while no gateway runs"
    off = [_clock_of(each["detail"]) for each in found if each["kind"] == "clock_off"]
    if off:
        raise Refusal(
            Code.CONFLICT,
            "; ".join(off),
            hint="Set it, e.g. with `timedatectl set-ntp true`: expiries, ETAs and deadlines go by it.",
        )
    return "no gateway that is heard is more than 30 s off"


def _clock_of(detail: dict[str, Any]) -> str:
    seconds: int = detail["aheadSeconds"]
    whose = "this gateway's clock" if detail["isOwn"] else f"the clock of {detail['nodeId']}"
    return f"{whose} is {abs(seconds):,} s {'ahead' if seconds > 0 else 'behind'}"


def _proofs_are_wanted(path: Path) -> str:
    try:
        found: dict[str, Any] = OperatorClient(path).get("/operator/status")
    except Refusal:
        return "wanted, unless it is started with --insecure-no-proof"
    if found.get("insecureNoProof"):
        raise Refusal(Code.HOME_UNSAFE, NO_PROOF, hint="`agentpost down`, then `agentpost up` without the flag.")
    return "wanted of every node"
