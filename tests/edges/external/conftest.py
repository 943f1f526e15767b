"""A gateway on real sockets, the agents that call it, and its log, which is searched for their secrets in the end."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentpost.edges.cli.gateway import quiet_libraries
from agentpost.edges.runtimes import make_runtime
from agentpost.testing import FakeClock
from tests.edges.external.client import AgentClient, Key
from tests.edges.running import ServedGateway, served_gateway

PLENTY = 1_000_000_000
ALL_MAIL = ("ansible.message.read", "ansible.message.send", "ansible.status.read")


class Door:
    """A gateway with a clock that the test moves, and clients that live by the same clock."""

    def __init__(self, served: ServedGateway) -> None:
        self.served = served
        self.clock = served.clock
        self.operator = served.operator
        self.url = served.url
        self.clients: list[AgentClient] = []
        self.secrets: set[str] = set()

    def invite(self, agent: str = "codex", scopes: tuple[str, ...] = ALL_MAIL, **more: Any) -> str:
        body = {"agentId": agent, "scopes": list(scopes), **more}
        token: str = self.operator.post("/ansible/agent/invites", body)["inviteToken"]
        self.secrets.add(token)
        return token

    def client(self, *, key: Key | None = None) -> AgentClient:
        made = AgentClient(self.url, key=key, now=lambda: self.clock.now_ms() / 1000)
        self.clients.append(made)
        return made

    def agent(self, agent: str = "codex", *, key: Key | None = None, **invited: Any) -> AgentClient:
        """A client with a session, which knows the nonce of the moment."""
        client = self.client(key=key)
        answer = client.exchange(self.invite(agent, **invited), agent)
        assert answer.status_code == 200, answer.text
        return client

    def audit(self, **query: str) -> list[dict[str, Any]]:
        return self.operator.get("/ansible/audit", {"limit": 1000, **query})

    def all_secrets(self) -> set[str]:
        return self.secrets.union(*(client.secrets for client in self.clients))


@contextmanager
def recorded_log() -> Iterator[io.StringIO]:
    """All that is logged meanwhile, with the libraries as quiet as `agentpost up` makes them."""
    loggers = [logging.getLogger(name) for name in ("", "httpx", "httpcore", "uvicorn", "websockets")]
    levels = [logger.level for logger in loggers]
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    quiet_libraries()
    try:
        yield text
    finally:
        logging.getLogger().removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path / "vps-jane") as door:
        yield door


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One gateway for all tests of a file, which leave its clock alone."""
    with open_door(tmp_path_factory.mktemp("gate") / "vps-jane") as door:
        yield door


@contextmanager
def open_door(home: Path) -> Iterator[Door]:
    """In the end neither the log nor the audit, nor any file of the home, has a secret in it."""
    settings = {"attempts_per_address": PLENTY, "attempts_per_token": PLENTY}
    with recorded_log() as log, served_gateway(home, clock=FakeClock(), runtimes=make_runtime, **settings) as served:
        door = Door(served)
        yield door
        written = str(door.audit()) + log.getvalue()
    assert "gateway vps-jane is ready" in log.getvalue()
    assert "Traceback" not in log.getvalue()
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    found = [secret for secret in door.all_secrets() if secret in written or secret.encode() in kept]
    assert found == []
