"""A capability in the demo: published on one laptop, installed on the others, used, and reviewed when it breaks its
word."""

import sys
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from rich.console import Console

from agentpost.demo.command import agentpost, once
from agentpost.terminal import escape

__all__ = ["CapabilityShown", "show_capability"]

_CAPABILITY: Final = "release.notes"
_VERSION: Final = "1.0.0"
_SCRIBE: Final = "scribe"
_AGENT: Final = "print('Everything is new.')"
_DECLARED: Final = """\
capabilityId = "release.notes"
name = "Release notes"
version = "1.0.0"
ownerAgentId = "{owner}"
delegationSkillRef = {{ name = "ask-for-notes", version = "1.0.0" }}
executorSkillRef = {{ name = "write-notes", version = "1.0.0" }}
defaultEtaSeconds = 300

[contract.delegation]
when = "A version is about to be released."

[contract.executor]
progressEverySeconds = 60

[contract.output]
type = "object"
required = ["notes"]
"""


class CapabilityShown(Struct, frozen=True, kw_only=True):
    """Who got the skill, how the task ended, and which review it left."""

    installed: list[str]
    task_state: str
    review: str


def show_capability(requester: Path, owner: Path, console: Console, *, requester_agent: str) -> CapabilityShown:
    """Publish a capability whose agent answers with plain words, where its contract promises an object."""
    asks, does = requester_agent, _SCRIBE
    agentpost("agents", "add", does, home=owner, rest=(sys.executable, "-c", _AGENT))
    for skill in ("ask-for-notes", "write-notes"):
        folder = owner / "skills" / does / skill
        folder.mkdir(parents=True)
        text = f"---\nname: {skill}\ndescription: For the demo.\nversion: {_VERSION}\n---\n"
        (folder / "SKILL.md").write_text(text)
    declared = owner / "release-notes.toml"
    declared.write_text(_DECLARED.format(owner=does))
    made = agentpost("capability", "publish", str(declared), home=owner)
    console.print(f"  {does} offers {_CAPABILITY} {_VERSION}; policy {made['line']['policyVersion']}.", highlight=False)
    shown = once(lambda: _installations(owner), lambda found: found.get(asks) == "installed")
    installed = sorted(agent_id for agent_id, state in shown.items() if state == "installed")
    console.print(f"  its skill is installed for {escape(', '.join(installed))}.", highlight=False)
    once(
        lambda: agentpost("capability", "list", home=requester),
        lambda found: any(each["capabilityId"] == _CAPABILITY for each in found),
    )
    words = ("task", "create", "Notes for 1.4", "--from", asks, "--capability", _CAPABILITY)
    task_id = agentpost(*words, home=requester)["taskId"]
    task = once(
        lambda: agentpost("task", "show", task_id, home=requester)["task"],
        lambda found: found["state"] in ("completed", "failed"),
    )
    console.print(f"  a task for it: {task['state']}, {task.get('failureClass', '')}.", highlight=False)
    reviews: list[dict[str, Any]] = once(
        lambda: agentpost("review", "list", "--capability", _CAPABILITY, home=requester), lambda found: bool(found)
    )
    review = reviews[0]["reviewId"] if reviews else ""
    console.print(f"  {review} is on the review queue, with the conversation that shows it.", highlight=False)
    agentpost("capability", "unpublish", _CAPABILITY, home=owner)
    return CapabilityShown(installed=installed, task_state=task["state"], review=review)


def _installations(home: Path) -> dict[str, str]:
    found = agentpost("capability", "show", _CAPABILITY, home=home)["installations"]
    return {each["agentId"]: each["state"] for each in found}
