"""Secrets of agents: the store has them encrypted, the runtime gets them, a list shows none."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from agentpost.delivery.agents import LocalAgents
from agentpost.delivery.secrets import AgentSecrets
from agentpost.edges.runtimes import make_runtime
from agentpost.protocol.errors import Code
from agentpost.room.directory import RoomDirectory
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LocalAgent
from agentpost.testing import START_MS, FakeClock, SeededChance
from tests.room.building import SEED, a_populated_room
from tests.store.building import EPOCH, refused

SECRET = "whsec_c2VjcmV0LXRoYXQtbm9ib2R5LW1heS1yZWFk"  # noqa: S105 - made up
OPTIONS = {"url": "http://127.0.0.1:9/hook", "secret": SECRET, "headers": {"Authorization": f"Bearer {SECRET}"}}


@pytest.fixture
def secrets() -> AgentSecrets:
    return _secrets_of(bytes(32))


def _secrets_of(key: bytes) -> AgentSecrets:
    return AgentSecrets(Ed25519PrivateKey.from_private_bytes(key), SeededChance(1), make_runtime.secret_options)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store = SqliteStore.open(home, node_id=SEED, epoch=EPOCH, now_ms=START_MS)
    yield store
    await store.close()


def _agents(store: SqliteStore, secrets: AgentSecrets) -> LocalAgents:
    clock = FakeClock()
    directory = RoomDirectory(a_populated_room(clock=clock))
    return LocalAgents(store=store, directory=directory, clock=clock, secrets=secrets)


def _on_disk(tmp_path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in (tmp_path / "home").iterdir() if file.is_file())


async def test_a_copy_of_the_database_gives_no_secret_away(
    store: SqliteStore, secrets: AgentSecrets, tmp_path: Path
) -> None:
    """What a webhook is signed with is nowhere on the disk in the clear, and its runtime has it all the same."""
    added = await _agents(store, secrets).add("hook", "webhook", dict(OPTIONS))
    assert SECRET.encode() not in _on_disk(tmp_path)
    kept = store.local_agent("hook")
    assert kept is not None
    assert secrets.open(kept).options == OPTIONS
    assert SECRET not in str(secrets.shown(kept)) + str(secrets.shown(added)) + str(added)
    assert set(secrets.shown(kept)["secret"]) == {"*"}
    assert kept.options["url"] == OPTIONS["url"]


async def test_secrets_of_an_earlier_version_are_encrypted_at_the_next_start(
    store: SqliteStore, secrets: AgentSecrets
) -> None:
    """An agent that was kept with its secret in the clear is kept anew, once."""
    agent = LocalAgent(agent_id="hook", runtime="webhook", options=dict(OPTIONS), created_at_ms=START_MS)
    await store.put_agent(agent)
    await _agents(store, secrets).announce()
    kept = store.local_agent("hook")
    assert kept is not None
    assert SECRET not in str(kept)
    assert secrets.open(kept) == agent
    await _agents(store, secrets).announce()
    assert store.local_agent("hook") == kept


def test_a_secret_opens_only_with_the_key_of_its_node_and_in_its_place(secrets: AgentSecrets) -> None:
    """Another node's key, another agent, another option: refused, and the secret is not in the refusal."""
    agent = LocalAgent(agent_id="hook", runtime="webhook", options=dict(OPTIONS), created_at_ms=START_MS)
    kept = secrets.seal(agent)
    others = _secrets_of(bytes(31) + b"\1")
    with refused(Code.CONFLICT):
        others.open(kept)
    with refused(Code.CONFLICT):
        secrets.open(replace(kept, agent_id="another"))
    with refused(Code.CONFLICT):
        secrets.open(replace(kept, options={"secret": kept.options["headers"]}))


def test_what_a_runtime_declares_is_sealed_in_either_spelling() -> None:
    """A new runtime's `apiToken` is kept encrypted because the runtime says so, also when it is spelled api_token."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    secrets = AgentSecrets(key, SeededChance(1), {"new": {"apiToken"}}.__getitem__)
    for name in ("apiToken", "api_token"):
        agent = LocalAgent(
            agent_id="ada", runtime="new", options={name: SECRET, "secret": "no"}, created_at_ms=START_MS
        )
        kept = secrets.seal(agent)
        assert SECRET not in str(kept)
        assert secrets.shown(agent) == {name: "***", "secret": "no"}
        assert secrets.open(kept) == agent


def test_what_was_sealed_stays_readable_when_it_is_not_declared_any_more() -> None:
    """An option that a later version of a runtime does not call secret is opened all the same, and still not shown."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    agent = LocalAgent(agent_id="ada", runtime="new", options={"token": SECRET}, created_at_ms=START_MS)
    kept = AgentSecrets(key, SeededChance(1), lambda _: {"token"}).seal(agent)
    later = AgentSecrets(key, SeededChance(2), lambda _: ())
    assert later.open(kept) == agent
    assert later.shown(kept) == {"token": "***"}
