"""A gateway with something in it, and the names of it: calls that only name what is not there would get to 404."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import schemathesis

from agentpost.auth.external.scopes import SCOPES
from agentpost.edges.operations import OPERATIONS
from agentpost.store.home import Home
from tests.edges.openapi.unix import BASE_URL, unix_session
from tests.edges.running import ServedGateway
from tests.work.building import CAPABILITY, a_declaration, write_pair

# How often something that exists is put in the place of what was made up: in some calls seldom, in others mostly.
SHARES = (0.3, 0.95)
AGENTS = ("architect", "worker", "scribe")
# Would wait for mail, or never end.
_TAKES_TIME = ("wait_seconds", "waitSeconds", "follow")
_MAILBOX = ("dequeue", "dequeue-many", "ack", "ack-many", "nack", "extend")

Known = Mapping[str, Sequence[Any]]


class World:
    """What the gateway of a test has in it. `refill` brings back what calls have used up."""

    def __init__(self, served: ServedGateway, files: Path, chance: random.Random) -> None:
        self._http = unix_session(Home(served.gateway.settings.home).operator_socket)
        self._files = files
        self._chance = chance
        self._home = served.gateway.settings.home
        self._known: Known = {}
        write_pair(self._home / "skills/scribe")

    def refill(self) -> None:
        """Agents, mail in each state, tasks in each state, a capability."""
        for agent in AGENTS:
            self._post("/ansible/agents", {"agentId": agent})
            self._post(f"/ansible/agents/{agent}/resume")
        self._post("/ansible/capabilities", a_declaration())
        mail = [self._send(str(turn)) for turn in range(3)]
        self._post("/ansible/agents/worker/fetch", {"limit": 1})
        tasks = [self._delegate(str(turn)) for turn in range(2)]
        self._post(f"/ansible/tasks/{tasks[0]}/claim", {"agentId": "worker", "etaSeconds": 60})
        self._known = self._names(mail, tasks)

    def steer(self, case: schemathesis.Case, *, is_good: bool) -> None:
        """Put names of what exists in the place of some that were made up, and take out what would take time.

        What is wrong with a bad call stays in it: only its path is led to what exists.
        """
        share = self._chance.choice(SHARES)
        steered = (case.path_parameters, case.query, case.body) if is_good else (case.path_parameters,)
        for place in steered:
            if isinstance(place, dict):
                for name in sorted(self._known.keys() & place.keys()):
                    if self._chance.random() < share:
                        place[name] = self._pick(case, name)
        for place in (case.query, case.body):
            if isinstance(place, dict):
                for name in _TAKES_TIME:
                    place.pop(name, None)

    def _pick(self, case: schemathesis.Case, name: str) -> Any:
        if name == "operation" and "mailbox" in case.path:
            return self._chance.choice(_MAILBOX)
        return self._chance.choice(self._known[name])

    def _post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._http.post(BASE_URL + path, json=body or {}).json()

    def _get(self, path: str) -> list[dict[str, Any]]:
        return self._http.get(BASE_URL + path).json()

    def _send(self, body: str) -> str:
        message = {"fromAgentId": "architect", "toAgents": ["worker"], "body": body}
        return self._post("/ansible/messages", message)["eventId"]

    def _delegate(self, title: str) -> str:
        task = {"requesterAgentId": "architect", "toAgents": ["worker"], "title": title}
        return self._post("/ansible/tasks", task)["taskId"]

    def _names(self, mail: list[str], tasks: list[str]) -> Known:
        reviews = [each["reviewId"] for each in self._get("/ansible/reviews")]
        incidents = [each["id"] for each in self._get("/ansible/incidents?only_open=false")]
        sessions = [each["sessionId"] for each in self._get("/ansible/agent/sessions")]
        agents = dict.fromkeys(
            ("agent_id", "agentId", "agent", "fromAgentId", "requesterAgentId", "by", "to", "session"), AGENTS
        )
        nodes = dict.fromkeys(("node", "coordinator", "desiredCoordinator"), ("vps-jane", "mbp-jane"))
        capabilities = dict.fromkeys(("capability_id", "capabilityId"), (CAPABILITY,))
        never = dict.fromkeys(
            (
                *("etaAt", "revisedEtaAt", "deadlineAt", "installedAt", "installedVersion", "requiredBy", "corrId"),
                *("publicKey", "tailnet", "taskType", "delegationSkillRef", "resultRef", "input", "output"),
            ),
            (None,),
        )
        texts = dict.fromkeys(
            ("title", "subject", "body", "description", "note", "resultSummary", "errorSummary", "planSummary"), ("x",)
        )
        seconds = dict.fromkeys(("etaSeconds", "revisedEtaSeconds", "ttlSeconds", "seconds"), (60, 900))
        return {
            **agents,
            **nodes,
            **capabilities,
            **never,
            **seconds,
            **texts,
            "event_id": mail,
            "eventId": mail,
            "what": [*mail, *tasks],
            "task_id": tasks,
            "review_id": reviews or ["rev_none"],
            "incident_id": incidents or [1],
            "sessionId": sessions or [None],
            "toAgents": (["worker"], ["worker", "scribe"], ["all"]),
            "requiredCapabilities": ([], [CAPABILITY]),
            "nodeIds": ([], ["vps-jane"], ["mbp-jane"]),
            # A program must not be started, nor a file written, that somebody made up.
            "runtime": ("pull",),
            "options": ({},),
            "file": [str(self._files / "IDENTITY.md")],
            "directory": [str(self._files / "skills")],
            "stream": ("outbox", "inbox:worker", "mbp-jane"),
            "status": ("in_progress",),
            "progress": (50,),
            "failureClass": ("failed",),
            "message": ({"from": "architect", "to": "worker", "payload": "x"},),
            "operation": [*OPERATIONS],
            "args": ({}, {"toAgents": ["architect"], "body": "x"}, {"taskId": tasks[0]}, {"eventId": mail[0]}),
            "scopes": ([*SCOPES], [SCOPES[0]]),
            "url": ("http://127.0.0.1:9",),
            "version": ("1.0.0",),
            "limit": (1, 50),
        }
