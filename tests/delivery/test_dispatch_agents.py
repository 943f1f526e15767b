"""Dispatch to agents that come, change, pause and go, and a gateway that stops."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.delivery.ports import Result
from agentpost.protocol.errors import Code, Refusal
from tests.delivery.dispatching import (
    AGAIN,
    DONE,
    EXACT,
    Gateway,
    Scripted,
    hang_for_ever,
    is_postponed,
    turn_the_loop,
    until,
)


async def test_a_paused_agent_gets_nothing_until_it_is_resumed(gateway: Gateway) -> None:
    """Mail for a paused agent waits, and comes first when it is back."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    agent = gateway.store.local_agent("ada")
    assert agent is not None
    dispatcher = gateway.start()
    (first,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(first)
    await gateway.store.put_agent(replace(agent, is_paused=True))
    dispatcher.refresh()
    await until(lambda: ada.closed == 1)
    (second,) = await gateway.arrive(gateway.message(2))
    await turn_the_loop()
    assert ada.bodies == ["bob 1"]
    await gateway.store.put_agent(agent)
    dispatcher.refresh()
    await gateway.settled(second)


async def test_a_changed_agent_ends_its_turn_under_the_old_runtime(gateway: Gateway) -> None:
    """A new runtime takes over when the running turn is over, never beside it."""
    release = asyncio.Event()

    async def wait() -> Result:
        await release.wait()
        return DONE

    before, afterwards = Scripted(lambda engagement: wait()), Scripted()
    await gateway.hire("ada", before)
    dispatcher = gateway.start()
    events = await gateway.arrive(gateway.message(1), gateway.message(2))
    await until(lambda: before.engaged)
    await gateway.hire("ada", afterwards, version=2)
    dispatcher.refresh()
    await turn_the_loop()
    assert afterwards.engaged == []
    release.set()
    await gateway.settled(*events)
    assert (before.bodies, afterwards.bodies) == (["bob 1"], ["bob 2"])
    assert before.closed == 1


async def test_an_agent_that_is_added_while_the_gateway_runs_is_served(gateway: Gateway) -> None:
    """Whoever is added gets its mail without a restart."""
    gateway.start()
    await gateway.hire("ada", Scripted())
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(event)


@pytest.mark.parametrize(
    "problem", [Refusal(Code.INVALID_FIELD, "options.function cannot be loaded"), PermissionError(13, "not for you")]
)
async def test_a_runtime_that_cannot_be_made_is_an_incident_of_its_agent_alone(
    gateway: Gateway, problem: Exception
) -> None:
    """An agent with broken options waits for its operator; the others are served."""
    await gateway.hire("eve", Scripted())
    await gateway.hire("ada", Scripted())
    working = gateway.runtimes.pop("ada")

    class Missing(dict[str, Any]):
        def __missing__(self, agent_id: str) -> Any:
            raise problem

    gateway.runtimes = Missing(gateway.runtimes)
    dispatcher = gateway.start()
    (event,) = await gateway.arrive(gateway.message(1, to=("ada", "eve")))
    await gateway.settled(event, agent_id="eve")
    await until(lambda: [each.kind for each in gateway.store.incidents()] == ["runtime_unusable"])
    assert not gateway.is_settled(event)
    await gateway.hire("ada", working, version=2)
    dispatcher.refresh()
    await gateway.settled(event)
    assert gateway.store.incidents() == []


async def test_an_agent_that_pulls_is_left_alone(gateway: Gateway) -> None:
    """Who fetches its mail is not engaged."""
    ada = Scripted()
    await gateway.hire("ada", ada, kind="pull")
    await gateway.hire("eve", Scripted())
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1, to=("ada", "eve")))
    await gateway.settled(event, agent_id="eve")
    assert ada.engaged == []


async def test_a_message_that_was_answered_by_hand_is_not_handed_over(gateway: Gateway) -> None:
    """What a person settled while it waited for its retry has its outcome."""
    ada = Scripted(lambda engagement: AGAIN)
    await gateway.hire("ada", ada)
    dispatcher = gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: is_postponed(gateway, event.event_id, 1))
    assert await dispatcher.turns.end(event, "ada", DONE)
    gateway.pass_time(2_000)
    (marker,) = await gateway.arrive(gateway.message(2))
    await until(lambda: is_postponed(gateway, marker.event_id, 1))
    assert ada.bodies == ["bob 1", "bob 2"]
    assert len(gateway.outcomes(event)) == 1


# Stopping


async def test_drain_waits_for_what_runs_and_begins_nothing(gateway: Gateway) -> None:
    """A gateway that stops lets the turns end that have begun, and leaves the rest for the next start."""
    release = asyncio.Event()

    async def wait() -> Result:
        await release.wait()
        return DONE

    ada = Scripted(lambda engagement: wait())
    await gateway.hire("ada", ada)
    dispatcher = gateway.start()
    events = await gateway.arrive(gateway.message(1), gateway.message(2))
    await until(lambda: ada.engaged)
    draining = asyncio.ensure_future(dispatcher.drain())
    await turn_the_loop()
    assert not draining.done()
    release.set()
    assert await draining
    assert gateway.is_settled(events[0])
    assert not gateway.is_settled(events[1])
    assert len(ada.engaged) == 1
    await dispatcher.close()
    assert ada.closed == 1


async def test_drain_does_not_wait_for_ever(gateway: Gateway) -> None:
    """A turn that does not end keeps no gateway from stopping."""
    ada = Scripted(lambda engagement: hang_for_ever())
    await gateway.hire("ada", ada)
    dispatcher = gateway.start()
    await gateway.arrive(gateway.message(1))
    await until(lambda: ada.engaged)
    assert not await dispatcher.drain(timeout_seconds=0.01)
    await dispatcher.close()
