"""A gateway for A2A on real sockets, for all tests of a file; in the end its log and its files hold no secret."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentpost.edges.runtimes import make_runtime
from agentpost.testing import FakeClock
from agentpost.work.settings import A2aSettings
from tests.edges.a2a.peers import SCOPES, Worker, session_of
from tests.edges.external.client import AgentClient
from tests.edges.external.conftest import PLENTY, recorded_log
from tests.edges.running import ServedGateway, served_gateway


class Post:
    """The gateway, its worker, and a way to get peers that live by its clock."""

    def __init__(self, served: ServedGateway) -> None:
        self.served = served
        self.url = served.url
        self.operator = served.operator
        self.clock = served.clock
        self.worker = Worker(served)
        self.secrets: set[str] = set()
        self.sessions: list[AgentClient] = []

    def peer(self, name: str, scopes: tuple[str, ...] = SCOPES) -> AgentClient:
        made = session_of(self.served, name, scopes, now=lambda: self.clock.now_ms() / 1000)
        self.sessions.append(made)
        return made


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    home: Path = tmp_path_factory.mktemp("a2a") / "vps-jane"
    settings = {
        "attempts_per_address": PLENTY,
        "attempts_per_token": PLENTY,
        "a2a": A2aSettings(push_networks=("127.0.0.0/8",)),
    }
    with recorded_log() as log, served_gateway(home, clock=FakeClock(), runtimes=make_runtime, **settings) as served:
        made = Post(served)
        yield made
        written = str(served.operator.get("/ansible/audit", {"limit": 1000})) + log.getvalue()
    assert "Traceback" not in log.getvalue()
    secrets = made.secrets.union(*(each.secrets for each in made.sessions))
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert [each for each in secrets if each in written or each.encode() in kept] == []
