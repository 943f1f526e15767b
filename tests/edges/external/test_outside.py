"""The client of an agent outside the mesh that dies in the middle of a refresh."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentpost.edges import outside
from agentpost.edges.outside import OutsideClient
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import write_private
from tests.edges.external.conftest import Door

HOUR_MS = 3_600_000


class Killed(BaseException):
    """As a process ends that is killed: nothing after it runs."""


async def accept(door: Door, file: Path) -> dict[str, Any]:
    client = await OutsideClient.accept(
        file, url=door.url, agent_id="codex", invite_token=door.invite("codex"), clock=door.clock
    )
    await client.close()
    return remember(door, file)


def remember(door: Door, file: Path) -> dict[str, Any]:
    """What is in the file; none of it may ever be in a log."""
    kept = json.loads(file.read_bytes())
    door.secrets |= {value for name, value in kept.items() if value and ("Token" in name or name == "privateKey")}
    return kept


def kill_at_the_answer(monkeypatch: pytest.MonkeyPatch, stale: str) -> None:
    """Let the client die when it is about to write down the tokens that it got."""

    def die(path: Path, content: bytes) -> None:
        if json.loads(content)["accessToken"] != stale:
            raise Killed
        write_private(path, content)

    monkeypatch.setattr(outside, "write_private", die)


@pytest.mark.req("EXT-2")
async def test_a_client_that_dies_with_the_answer_to_its_refresh_goes_on(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times in a row, and an hour later each time: its session lives, and nobody is called a thief."""
    file = tmp_path / "codex.json"
    kept = await accept(door, file)
    for _ in range(3):
        door.clock.advance(HOUR_MS)
        with monkeypatch.context() as patched:
            kill_at_the_answer(patched, kept["accessToken"])
            async with OutsideClient(file, clock=door.clock) as client:
                with pytest.raises(Killed):
                    await client.call("ansible_status", {})
        kept = remember(door, file)
    door.clock.advance(HOUR_MS)
    async with OutsideClient(file, clock=door.clock) as client:
        assert (await client.call("ansible_status", {}))["agentId"] == "codex"
    remember(door, file)
    assert door.operator.get("/ansible/incidents") == []


@pytest.mark.req("EXT-2")
async def test_a_copy_of_the_file_from_before_the_death_is_still_found_out(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stole the file before its owner died, and refreshes with it, ends the session for both."""
    file, stolen = tmp_path / "codex.json", tmp_path / "stolen.json"
    kept = await accept(door, file)
    stolen.write_bytes(file.read_bytes())
    door.clock.advance(HOUR_MS)
    kill_at_the_answer(monkeypatch, kept["accessToken"])
    async with OutsideClient(file, clock=door.clock) as owner:
        with pytest.raises(Killed):
            await owner.call("ansible_status", {})
    remember(door, file)
    monkeypatch.undo()
    door.clock.advance(HOUR_MS)
    for thief_or_owner in (stolen, file):
        async with OutsideClient(thief_or_owner, clock=door.clock) as client:
            with pytest.raises(Refusal) as refused:
                await client.call("ansible_status", {})
        assert refused.value.code is Code.INVALID_REFRESH_TOKEN
        remember(door, thief_or_owner)
    assert [each["kind"] for each in door.operator.get("/ansible/incidents")] == ["agent_token_stolen"]


async def test_a_file_that_cannot_be_written_spends_no_token(door: Door, tmp_path: Path) -> None:
    """A disk that is full, or a folder that is closed: a sentence, and the next try works."""
    folder = tmp_path / "mine"
    file = folder / "codex.json"
    kept = await accept(door, file)
    door.clock.advance(HOUR_MS)
    async with OutsideClient(file, clock=door.clock) as client:
        # As a folder in which nothing can be made: the draft of the file is a folder that is not empty.
        (folder / "codex.json.new" / "in the way").mkdir(parents=True)
        with pytest.raises(Refusal) as refused:
            await client.call("ansible_status", {})
        assert refused.value.code is Code.HOME_UNSAFE
        assert remember(door, file) == kept
        (folder / "codex.json.new" / "in the way").rmdir()
        (folder / "codex.json.new").rmdir()
        assert (await client.call("ansible_status", {}))["agentId"] == "codex"
    remember(door, file)
