"""The agents of a gateway and its incidents: small lists that must be right after every restart."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Code
from agentpost.store.interface import Store
from agentpost.store.values import Incident, LocalAgent
from agentpost.testing import START_MS, a_message
from tests.store.building import NODE, open_sqlite, refused

ADA = LocalAgent(agent_id="ada", runtime="command", options={"argv": ["claude", "-p"]}, created_at_ms=START_MS)
EVE = LocalAgent(agent_id="eve", runtime="pull", created_at_ms=START_MS + 1)


def an_incident(subject: str = "node-b", *, kind: str = "sequence_gap", at_ms: int = START_MS) -> Incident:
    return Incident(kind=kind, subject=subject, at_ms=at_ms, corr_id="corr_x", detail={"lastSeq": 7, "open": True})


async def test_agents_are_put_replaced_and_removed(store: Store) -> None:
    """Each id has one agent, which is what was put last."""
    assert store.local_agents() == []
    await store.put_agent(EVE)
    await store.put_agent(ADA)
    assert store.local_agents() == [ADA, EVE]
    paused = replace(ADA, is_paused=True, options={"url": "http://localhost:1", "nested": {"a": [1, None, 2.5]}})
    await store.put_agent(paused)
    assert store.local_agent("ada") == paused
    assert await store.remove_agent("ada") is True
    assert await store.remove_agent("ada") is False
    assert store.local_agent("ada") is None
    assert store.local_agents() == [EVE]


async def test_options_that_cannot_be_kept_are_refused(store: Store) -> None:
    """What no JSON can say is refused by its field, and the agent stays as it was."""
    await store.put_agent(ADA)
    for value in (object(), float("nan"), {1, 2}):
        with refused(Code.INVALID_FIELD) as caught:
            await store.put_agent(replace(ADA, options={"bad": value}))
        assert caught.value.field == "options"
    assert store.local_agents() == [ADA]


async def test_options_that_were_given_out_are_not_those_that_are_kept(store: Store) -> None:
    """Nobody changes an agent by changing what they were handed."""
    await store.put_agent(ADA)
    found = store.local_agent("ada")
    assert found is not None
    found.options["argv"].append("--dangerous")
    assert store.local_agent("ada") == ADA


@pytest.mark.req("CUR-4")
async def test_an_incident_is_raised_once_until_it_is_closed(store: Store) -> None:
    """The same kind and subject are open at most once; after that it can happen again."""
    assert await store.raise_incident(an_incident()) is True
    assert await store.raise_incident(an_incident(at_ms=START_MS + 9)) is False
    assert await store.raise_incident(an_incident("node-c")) is True
    assert await store.raise_incident(an_incident(kind="epoch_changed")) is True
    assert store.incidents() == [
        replace(an_incident(), id=1),
        replace(an_incident("node-c"), id=2),
        replace(an_incident(kind="epoch_changed"), id=3),
    ]
    assert await store.close_incident("sequence_gap", "node-b", at_ms=START_MS + 20) is True
    assert await store.close_incident("sequence_gap", "node-b", at_ms=START_MS + 21) is False
    assert await store.raise_incident(an_incident(at_ms=START_MS + 30)) is True
    assert [(each.id, each.subject, each.at_ms) for each in store.incidents()] == [
        (2, "node-c", START_MS),
        (3, "node-b", START_MS),
        (4, "node-b", START_MS + 30),
    ]
    assert store.incidents(open_only=False)[0] == replace(an_incident(), id=1, closed_at_ms=START_MS + 20)


async def test_incidents_are_read_in_pages(store: Store) -> None:
    """Each page goes on after the last id of the one before, open ones or all."""
    for number in range(1, 6):
        await store.raise_incident(an_incident(f"node-{number}"))
    await store.close_incident("sequence_gap", "node-2", at_ms=1)
    assert [each.id for each in store.incidents(after_id=1, limit=2)] == [3, 4]
    assert [each.id for each in store.incidents(open_only=False, after_id=1, limit=2)] == [2, 3]
    assert store.incidents(after_id=5) == []


async def test_an_incident_is_raised_with_what_is_said_about_it(store: Store) -> None:
    """An event and the incident that remembers it are one transaction: if the event is refused, nothing is raised."""
    await store.append([a_message(1, source_node_id=NODE)], incidents=[an_incident()])
    with refused(Code.FOREIGN_SOURCE):
        await store.append([a_message(2, source_node_id="somebody")], incidents=[an_incident("node-c")])
    await store.append([a_message(3, source_node_id=NODE)], incidents=[an_incident(at_ms=START_MS + 9)])
    assert store.incidents() == [replace(an_incident(), id=1)]
    assert store.head().seq == 2


async def test_agents_and_incidents_are_there_after_a_restart(home: Path) -> None:
    """A gateway that starts again has its agents, and knows what nobody has looked at."""
    store = open_sqlite(home)
    await store.put_agent(ADA)
    await store.raise_incident(an_incident())
    await store.close()
    store = open_sqlite(home)
    assert (store.local_agents(), store.incidents()) == ([ADA], [replace(an_incident(), id=1)])
    assert await store.raise_incident(an_incident()) is False
    await store.close()
