"""Dispatch to functions of somebody else: whatever they raise is an attempt that failed, and holds back nobody."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agentpost.delivery.ports import Engagement, Result
from agentpost.delivery.pull import Pull
from agentpost.edges.runtimes.handler import HandlerRuntime
from tests.delivery.dispatching import DONE, Gateway, Scripted, is_postponed, turn_the_loop, until


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise self


async def _waits_for_what_was_cancelled() -> None:
    waits_for = asyncio.ensure_future(asyncio.sleep(60))
    waits_for.cancel()
    await waits_for


async def _raises_half_a_character() -> None:
    raise ValueError("cannot read caf\udce9.txt")


async def _raises_what_cannot_be_printed() -> None:
    raise _UnprintableError


async def _exits() -> None:
    raise SystemExit(3)


@pytest.mark.req("RTY-4")
@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize(
    "fail", [_waits_for_what_was_cancelled, _raises_half_a_character, _raises_what_cannot_be_printed, _exits]
)
async def test_whatever_a_function_raises_is_tried_again(
    gateway: Gateway, fail: Callable[[], Awaitable[None]], is_idempotent: bool
) -> None:
    """Its sender's next mail waits behind it, that of others does not, and all of it ends."""
    seen: list[str | None] = []

    async def handler(engagement: Engagement) -> None:
        seen.append(engagement.content.body)
        if seen.count("bob 1") == 1 and engagement.content.body == "bob 1":
            await fail()

    await gateway.hire("ada", HandlerRuntime(handler, is_idempotent=is_idempotent))
    gateway.start()
    messages = (gateway.message(1), gateway.message(2), gateway.message(3, sender="eve"))
    first, second, third = await gateway.arrive(*messages)
    await until(lambda: is_postponed(gateway, first.event_id, 1))
    await until(lambda: gateway.is_settled(third))
    gateway.pass_time(2_500)
    await until(lambda: gateway.is_settled(first, second))
    assert [body for body in seen if body != "eve 3"] == ["bob 1", "bob 1", "bob 2"]


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_a_turn_that_began_before_the_agent_fetches_its_mail_is_not_handed_out_again(
    gateway: Gateway, is_idempotent: bool
) -> None:
    """The agent is changed to one that fetches while its program is at work. No lease ends that turn."""
    go_on = asyncio.Event()

    async def work() -> Result:
        await go_on.wait()
        return DONE

    ada = Scripted(lambda _: work(), is_idempotent=is_idempotent)
    await gateway.hire("ada", ada)
    dispatcher = gateway.start()
    pull = Pull(
        store=gateway.store,
        turns=dispatcher.turns,
        clock=gateway.clock,
        wakeups=gateway.wakeups,
        is_busy_with=dispatcher.is_busy_with,
    )
    # What comes while its worker runs is noted after its turn began.
    await turn_the_loop()
    first, second = await gateway.arrive(gateway.message(1), gateway.message(2))
    await until(lambda: bool(ada.engaged))
    await gateway.hire("ada", Scripted(), kind="pull", leaseSeconds=1)
    dispatcher.refresh()
    gateway.clock.advance(2_000)
    # What the program was not given yet, and what comes now, the agent can have at once, and nothing else.
    (third,) = await gateway.arrive(gateway.message(3))
    assert [each.event_id for each in await pull.fetch("ada", 10)] == [second.event_id, third.event_id]
    go_on.set()
    await gateway.settled(first)
    assert await pull.fetch("ada") == []
