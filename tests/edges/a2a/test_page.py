"""docs/a2a.md: its client works as it stands there, beside the one of the page that it refers to."""

import asyncio
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentpost.auth.external.scopes import A2A_SCOPES
from agentpost.testing import FakeClock
from tests.edges.a2a.peers import SCOPES, Worker
from tests.edges.meshing import eventually
from tests.edges.running import served_gateway

DOCS = Path(__file__).parents[3] / "docs"


def code_of(page: str) -> SimpleNamespace:
    code = re.search(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert code is not None
    module = SimpleNamespace()
    exec(compile(code[1], page, "exec"), module.__dict__)  # noqa: S102 - it is our own text
    return module


@pytest.mark.req("EXT-3")
async def test_the_client_of_the_page_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A session from the one page, a task with the other, and the answer is printed."""
    clock = FakeClock(now_ms=int(time.time() * 1000))
    with served_gateway(tmp_path / "vps-jane", clock=clock) as served:
        worker = Worker(served)
        invited = served.operator.post("/ansible/agent/invites", {"agentId": "orbit", "scopes": list(SCOPES)})
        agent = code_of("external-agents.md").Agent(served.url, "orbit", invited["inviteToken"])
        asking = asyncio.ensure_future(code_of("a2a.md").ask(agent, "scribe", "Write it."))

        def work() -> None:
            eventually(lambda: served.operator.get("/ansible/tasks") != [], patience_seconds=60)
            task_id = served.operator.get("/ansible/tasks")[0]["task"]["taskId"]
            worker.claim(task_id)
            worker.complete(task_id, "It is written.")

        await asyncio.gather(asyncio.to_thread(work), asking)
    assert "It is written." in capsys.readouterr().out


def test_the_page_names_every_operation() -> None:
    """What can be called is in the tables."""
    page = (DOCS / "a2a.md").read_text()
    named = [name.removeprefix("a2a.") for name in A2A_SCOPES]
    assert [name for name in named if "PushNotificationConfig" not in name and f"`{name}`" not in page] == ["Unknown"]
