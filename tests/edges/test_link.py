"""Links on real sockets: two gateways that exchange mail, lose each other, find each other, and are cut off."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentpost.auth.wire import CONTROL_ROOM, LINK_ROOM
from agentpost.config import Settings
from agentpost.edges.http.server import serve
from agentpost.edges.operator_client import OperatorClient
from agentpost.gateway import Gateway
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import MessageEvent, Trace
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Message
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import LocalAgent
from agentpost.tasks import TaskOwner
from agentpost.world import SystemChance, SystemClock
from tests.edges.meshing import PATIENCE_SECONDS, Stranger, invite
from tests.edges.meshing import eventually as wait_until
from tests.edges.running import running_gateway


class MailGateway(Gateway):
    """A gateway with one agent, which takes mail and is never engaged."""

    async def start(self) -> None:
        await super().start()
        agent_id = f"agent-{self.settings.node_id}"
        agent = LocalAgent(agent_id=agent_id, runtime="none", options={}, created_at_ms=0, is_paused=True)
        await self.store.put_agent(agent)

    async def send(self, to_node: str) -> EventId:
        event_id = self.ids.make(EventId)
        now_ms = self.clock.now_ms()
        event = MessageEvent(
            event_id=event_id,
            source_node_id=self.settings.node_id,
            source_agent_id=f"agent-{self.settings.node_id}",
            to_nodes=(to_node,),
            corr_id=corr_id_of(event_id),
            created_at=format_ms(now_ms),
            trace=Trace(),
            payload=Message(to_agents=(f"agent-{to_node}",), body="hello"),
        )
        delivery = Delivery(event_id=event_id, to_agent_id=f"agent-{to_node}", to_node_id=to_node, emitted_at_ms=now_ms)
        await self.store.append([event], deliveries=[delivery])
        self.engine.wakeups.outbox_grew()
        return event_id

    def inbox(self) -> list[EventId]:
        return [item.entry.event_id for item in self.store.inbox_items(f"agent-{self.settings.node_id}")]

    def state(self, event_id: EventId) -> DeliveryState:
        (delivery,) = self.store.deliveries_of(event_id)
        return delivery.state

    async def ask_operator(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(OperatorClient(self.settings.home).post, path, body)


@asynccontextmanager
async def mail_gateway(home: Path, *, tier: NodeTier = NodeTier.EDGE, port: int = 0) -> AsyncIterator[MailGateway]:
    settings = Settings(home=home, node_id=home.name, tier=tier, listen_port=port)
    gateway = MailGateway(settings, clock=SystemClock(), chance=SystemChance())
    tasks, is_up = TaskOwner("test"), asyncio.Event()
    running = tasks.spawn(serve(gateway, on_ready=lambda _url: is_up.set()), name=home.name)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            up = tasks.spawn(is_up.wait(), name="up")
            await asyncio.wait({up, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        yield gateway
    finally:
        gateway.request_stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running
        await tasks.close()


async def join(gateway: MailGateway, seed: MailGateway) -> None:
    made = await seed.ask_operator("/operator/invites", {"node": gateway.settings.node_id})
    await gateway.ask_operator("/operator/join", {"url": seed.url, "token": made["token"]})


async def eventually(what: Callable[[], bool]) -> None:
    for _ in range(PATIENCE_SECONDS * 100):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen in time")


@pytest.mark.req("ACK-2", "ACK-3", "PIPE-9")
async def test_gateways_exchange_mail_over_links(tmp_path: Path) -> None:
    """Two laptops that can only dial the seed write to it and to each other, and every message is acknowledged."""
    async with AsyncExitStack() as stack:
        seed = await stack.enter_async_context(mail_gateway(tmp_path / "seed", tier=NodeTier.BACKBONE))
        left = await stack.enter_async_context(mail_gateway(tmp_path / "left"))
        right = await stack.enter_async_context(mail_gateway(tmp_path / "right"))
        await join(left, seed)
        await join(right, seed)
        sent = [await left.send("seed"), await left.send("right")]
        back = await seed.send("right")
        await eventually(lambda: len(right.inbox()) == 2 and len(seed.inbox()) == 1)
        await eventually(lambda: {left.state(event_id) for event_id in sent} == {DeliveryState.ACCEPTED})
        await eventually(lambda: seed.state(back) is DeliveryState.ACCEPTED)
        assert seed.inbox() == [sent[0]]
        assert set(right.inbox()) == {sent[1], back}


@pytest.mark.req("CUR-1", "CUR-2")
async def test_mail_that_was_sent_while_the_seed_was_away_arrives_when_it_is_back(tmp_path: Path) -> None:
    """The link is made again by itself, and goes on from the cursor."""
    async with mail_gateway(tmp_path / "left") as left:
        async with mail_gateway(tmp_path / "seed", tier=NodeTier.BACKBONE) as seed:
            await join(left, seed)
            sent = [await left.send("seed")]
            await eventually(lambda: left.state(sent[0]) is DeliveryState.ACCEPTED)
            port = int(seed.url.rpartition(":")[2])
        assert left.links is not None
        await eventually(lambda: left.links is not None and left.links.sessions == ())
        sent.append(await left.send("seed"))
        async with mail_gateway(tmp_path / "seed", tier=NodeTier.BACKBONE, port=port) as seed:
            await eventually(lambda: left.state(sent[1]) is DeliveryState.ACCEPTED)
            assert seed.inbox() == sent


@pytest.mark.req("ROOM-6")
async def test_a_revoked_node_is_cut_off_at_once_and_not_let_in_again(tmp_path: Path) -> None:
    """Revoking takes the link away; the node's mail stays where it is."""
    async with AsyncExitStack() as stack:
        seed = await stack.enter_async_context(mail_gateway(tmp_path / "seed", tier=NodeTier.BACKBONE))
        left = await stack.enter_async_context(mail_gateway(tmp_path / "left"))
        await join(left, seed)
        links = seed.links
        assert links is not None
        await eventually(lambda: any(session.is_open for session in links.sessions))
        await seed.revoke("left")
        assert links.sessions == ()
        await left.send("seed")
        await asyncio.sleep(0.2)
        assert links.sessions == ()
        assert seed.inbox() == []


@pytest.mark.req("AUTH-1")
async def test_the_door_of_the_links_wants_a_ticket_for_links(tmp_path: Path) -> None:
    """No ticket, a ticket for the room, a used one: an HTTP answer, and no connection. A ticket opens only its door."""
    async with mail_gateway(tmp_path / "seed", tier=NodeTier.BACKBONE) as seed:
        made = await seed.ask_operator("/operator/invites", {"node": "stranger"})

        def knock() -> None:
            stranger = Stranger("stranger", tmp_path / "stranger", seed.url)
            assert stranger.knock(None, "/ansible/link")[0] == 401
            refused = stranger.exchange(made["token"], requestedRooms=[LINK_ROOM])
            assert refused.json()["error"]["code"] == "room_denied"
            assert stranger.knock(stranger.ticket(made["token"]))[0] == 101
            status, body = stranger.knock(stranger.ticket(None), "/ansible/link")
            assert (status, body["error"]["code"]) == (403, "room_denied")
            ticket = stranger.exchange(None, requestedRooms=[LINK_ROOM]).json()["wsTicket"]
            assert stranger.knock(ticket, f"/ansible/room/{CONTROL_ROOM}")[0] == 403
            ticket = stranger.exchange(None, requestedRooms=[LINK_ROOM]).json()["wsTicket"]
            assert stranger.knock(ticket, f"/ansible/room/{LINK_ROOM}")[0] == 404
            assert stranger.knock(ticket, "/ansible/link")[0] == 101
            assert stranger.knock(ticket, "/ansible/link")[0] == 409

        await asyncio.to_thread(knock)


@pytest.mark.req("PIPE-5", "PIPE-9")
def test_real_gateways_bring_a_large_message_through_a_seed(tmp_path: Path) -> None:
    """Three processes: content of a megabyte goes from one laptop to the other, which never meet, and is read there."""
    with (
        running_gateway(tmp_path / "seed", node="seed") as seed,
        running_gateway(tmp_path / "left", node="left", tier="edge") as left,
        running_gateway(tmp_path / "right", node="right", tier="edge") as right,
    ):
        for gateway in (left, right):
            gateway.operator.post("/operator/join", {"url": seed.url, "token": invite(seed, gateway.home.name)})
        left.operator.post("/ansible/agents", {"agentId": "lea"})
        right.operator.post("/ansible/agents", {"agentId": "rob"})
        wait_until(lambda: "rob" in str(left.operator.get("/ansible/directory")))
        body = "large " * 200_000
        sent = left.operator.post("/ansible/messages", {"fromAgentId": "lea", "toAgents": ["rob"], "body": body})
        path = f"/ansible/agents/rob/inbox/{sent['eventId']}"

        def has_it() -> bool:
            try:
                return right.operator.get(path)["content"]["body"] == body
            except Refusal:
                return False

        wait_until(has_it)
        what_became = f"/ansible/messages/{sent['eventId']}"
        wait_until(lambda: "Accepted" in str(left.operator.get(what_became)))
        # The seed has carried it and cannot read it.
        assert "large" not in seed.log
