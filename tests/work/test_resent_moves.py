"""What was said of a task and did not arrive, sent again by an operator."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentpost.delivery.deadletters import Filter, Resent
from agentpost.delivery.ports import Engagement
from agentpost.protocol.envelope import Event, TaskCompleteEvent, TaskCreateEvent, TaskFailedEvent, TaskUpdateEvent
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.taskbook import Verdict
from agentpost.protocol.tasks import TaskState
from agentpost.store.interface import Store
from agentpost.store.values import Appended, Subscriber
from agentpost.work.offering import NewTask
from tests.delivery.linking import hand
from tests.work.meshing import Mesh, Node


async def a_task(mesh: Mesh, *to_agents: str) -> TaskId:
    """A task of ada at node-a; bob is at node-b, cid at node-c."""
    for agent_id, node_id in {"ada": "node-a", "bob": "node-b", "cid": "node-c"}.items():
        await mesh.nodes[node_id].host(agent_id)
    task = NewTask(requester_agent_id="ada", title="Build it", to_agents=to_agents or ("bob",))
    offered = await mesh.nodes["node-a"].tasks.create(task)
    await mesh.rest()
    return offered.task_id


def part(mesh: Mesh) -> None:
    """Everybody is there, and node-b is not heard."""
    mesh.pipes.pop(("node-a", "node-b")).cut()
    mesh.pipes.pop(("node-b", "node-c")).cut()


async def give_up(mesh: Mesh, sender: str = "node-b") -> None:
    """Longer than a gateway that is asked may be silent, and then than all attempts."""
    retrier = mesh.nodes[sender].engine.retrier
    for seconds in (60, 90_000, *[700] * 30):
        mesh.clock.advance(seconds * 1000)
        for node_id in mesh.nodes:
            mesh.room.set_online(node_id)
        while await retrier.work():
            pass


async def mend(mesh: Mesh, *, is_lost: bool = True) -> None:
    """All hear each other again. What node-b has given up has left its outbox before, unless it is not lost."""
    b = mesh.nodes["node-b"]
    if is_lost:
        await compact(b.store, mesh.clock.now_ms())
    mesh.mend("node-b")
    await mesh.rest()
    # CUR-4: what is missing is waited for, and then passed over.
    for _ in range(2):
        mesh.clock.advance(31_000)
        for node in mesh.nodes.values():
            await node.hub.tick()
        await mesh.rest()


async def compact(store: Store, now_ms: int) -> None:
    """Another reader has read everything, and nothing is kept for those who are away."""
    await store.note_subscriber(
        Subscriber(
            consumer_node_id="node-c",
            epoch=store.epoch,
            last_seq=store.head().seq,
            updated_at_ms=now_ms,
            lease_expires_at_ms=now_ms + 60_000,
        )
    )
    await store.compact(store.watermarks(now_ms=now_ms, retention_events=0))


async def resend(node: Node, event_id: EventId | None = None) -> Resent:
    return await node.engine.dead_letters.resend(Filter(event_id=event_id), actor="op")


def ends(node: Node) -> list[Event]:
    """What ada hears of how a task ended."""
    return [each for each in node.open_mail("ada") if isinstance(each, TaskCompleteEvent | TaskFailedEvent)]


async def end(node: Node, task_id: TaskId, ending: TaskState) -> None:
    if ending is TaskState.COMPLETED:
        await node.tasks.complete(task_id, "bob", result_summary="It stands.")
    else:
        await node.tasks.fail(task_id, "bob", failure_class="broken", error_summary="It fell.")


@pytest.mark.req("TASK-7", "RTY-7")
@pytest.mark.parametrize("ending", [TaskState.COMPLETED, TaskState.FAILED])
async def test_the_end_of_a_task_that_was_lost_is_told_when_it_is_sent_again(mesh: Mesh, ending: TaskState) -> None:
    """Its requester was away for longer than all attempts. Sent again, by whoever did the task, the end arrives."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    part(mesh)
    await end(b, task_id, ending)
    await give_up(mesh)
    await mend(mesh)
    assert a.tasks.get(task_id).state is TaskState.ACCEPTED
    done = await resend(b)
    assert done.refused == ()
    await mesh.rest()
    assert a.tasks.get(task_id).state is ending
    assert [each.event_id for each in ends(a)] == [done.resent[0].resent_as]
    assert b.tasks.get(task_id).state is ending
    for node in (a, b):
        assert (await node.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-7", "RTY-7")
async def test_a_task_of_which_nothing_arrived_is_told_from_its_acceptance_on(mesh: Mesh) -> None:
    """Acceptance, progress and end are all dead letters: sent again together, each finds the task as it has to be."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    part(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await b.tasks.complete(task_id, "bob", result_summary="It stands.")
    await give_up(mesh)
    await mend(mesh)
    assert a.tasks.get(task_id).state is TaskState.CREATED
    done = await resend(b)
    assert (len(done.resent), done.refused) == (2, ())
    await mesh.rest()
    assert a.tasks.get(task_id).state is TaskState.COMPLETED
    assert len(ends(a)) == 1
    claim = b.tasks.get(task_id).claim_of("bob")
    assert claim is not None
    assert (claim.event_id, claim.verdict) == (done.resent[0].resent_as, Verdict.WON)
    for node in (a, b):
        assert (await node.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-5", "TASK-7", "RTY-7")
async def test_what_arrived_after_all_is_told_once_however_often_it_is_sent_again(mesh: Mesh) -> None:
    """The sender had given up, and its requester caught up later: what is sent again is known there, and no mistake."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    part(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await b.tasks.complete(task_id, "bob", result_summary="It stands.")
    await give_up(mesh)
    await mend(mesh, is_lost=False)
    assert a.tasks.get(task_id).state is TaskState.COMPLETED
    done = await resend(b)
    assert (len(done.resent), done.refused) == (2, ())
    await mesh.rest()
    assert len(ends(a)) == 1
    for line in done.resent:
        (delivery,) = b.store.deliveries_of(line.resent_as)
        assert (delivery.state, delivery.reason) == (DeliveryState.PROCESSED, None)
    assert b.tasks.get(task_id).state is TaskState.COMPLETED
    for node in (a, b):
        assert (await node.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-2", "TASK-5", "RTY-7")
async def test_whoever_has_a_task_does_not_lose_it_by_saying_so_again(mesh: Mesh) -> None:
    """An acceptance that arrived after its sender had given up, and is sent again, is answered as it was."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    part(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await give_up(mesh)
    await mend(mesh, is_lost=False)
    assert a.tasks.get(task_id).accepted_by_agent_id == "bob"
    assert (await resend(b)).refused == ()
    await mesh.rest()
    assert b.tasks.get(task_id).is_held_by("bob", "node-b")
    await b.tasks.complete(task_id, "bob", result_summary="It stands.")
    await mesh.rest()
    assert a.tasks.get(task_id).state is TaskState.COMPLETED
    for node in (a, b):
        assert (await node.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-6", "RTY-7")
async def test_a_claim_that_was_never_decided_is_decided_when_it_is_sent_again(mesh: Mesh) -> None:
    """Of two agents one claimed the task, and was not heard. He cannot claim it twice; his claim can be sent again."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh, "bob", "cid")
    part(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await give_up(mesh)
    await mend(mesh)
    done = await resend(b)
    assert (len(done.resent), done.refused) == (1, ())
    await mesh.rest()
    assert a.tasks.get(task_id).accepted_by_agent_id == "bob"
    assert b.tasks.get(task_id).is_held_by("bob", "node-b")
    for node in (a, b):
        assert (await node.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-6", "RTY-7")
async def test_a_claim_of_an_agent_that_has_given_up_is_not_sent_again(mesh: Mesh) -> None:
    """An agent whose claim was not heard is not asked to work any more: it must not win the task after that."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]

    async def works(_: Engagement) -> str:
        return "It stands."

    await a.host("ada")
    await b.host("bob", works)
    await mesh.nodes["node-c"].host("cid")
    await mesh.rest()
    pipe = mesh.pipes[("node-a", "node-b")]
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build it", to_agents=("bob", "cid")))
    # The offer arrives, and the claim does not.
    for _ in range(5):
        await asyncio.sleep(0.01)
        pipe.right.bring(pipe.left.session.frames_to_send())
        while pipe.right.coming:
            await hand(pipe.right.session, pipe.right.coming.pop(0))
    await asyncio.sleep(0.05)
    part(mesh)
    claim = b.tasks.get(offered.task_id).claim_of("bob")
    assert claim is not None
    await give_up(mesh)
    (offer,) = [each for each in b.open_mail("bob") if isinstance(each, TaskCreateEvent)]
    await b.engine.dispatcher.turns.leave(offer, "bob")
    await mend(mesh)
    (refused,) = (await resend(b)).refused
    assert "bob is not offered it any more" in refused.reason
    await mesh.rest()
    assert a.tasks.get(offered.task_id).accepted_by_agent_id is None


@pytest.mark.req("TASK-3", "TASK-7", "RTY-7")
async def test_of_lost_progress_only_the_last_word_is_sent_again(mesh: Mesh) -> None:
    """An older word would put the task back; the last one is told, and none any more once the task is over."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    part(mesh)
    older = await b.tasks.update(task_id, "bob", progress=30, notify=True)
    await b.tasks.update(task_id, "bob", progress=60, notify=True)
    await give_up(mesh)
    await mend(mesh)
    done = await resend(b)
    assert [each.event_id for each in done.refused] == [older.event_id]
    assert "has said more since" in done.refused[0].reason
    await mesh.rest()
    assert a.tasks.get(task_id).progress == 60
    assert len([each for each in a.open_mail("ada") if isinstance(each, TaskUpdateEvent)]) == 1
    await b.tasks.complete(task_id, "bob", result_summary="It stands.")
    assert len((await resend(b)).refused) == 1
    await mesh.rest()
    assert a.tasks.get(task_id).progress == 100


@pytest.mark.req("TASK-6", "TASK-7", "RTY-7")
async def test_a_task_that_went_to_somebody_else_is_not_ended_by_who_had_it(mesh: Mesh) -> None:
    """Its requester gave it to cid, and bob's gateway did not hear: what bob did is refused, and wakes nobody."""
    a, b, c = (mesh.nodes[name] for name in ("node-a", "node-b", "node-c"))
    task_id = await a_task(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    part(mesh)
    await b.tasks.complete(task_id, "bob", result_summary="Mine.")
    await a.tasks.offering.offer_again(a.tasks.get(task_id), ("cid",))
    await give_up(mesh)
    await mend(mesh)
    await c.tasks.claim(task_id, "cid", eta_seconds=60)
    await mesh.rest()
    done = await resend(b)
    assert done.refused == ()
    await mesh.rest()
    (delivery,) = b.store.deliveries_of(done.resent[0].resent_as)
    assert (delivery.state, delivery.reason) == (DeliveryState.PROCESSED, "invalid_transition")
    assert ends(a) == []
    assert a.tasks.get(task_id).accepted_by_agent_id == "cid"
    await c.tasks.complete(task_id, "cid", result_summary="Mine.")
    await mesh.rest()
    assert [each.source_agent_id for each in ends(a)] == ["cid"]


@pytest.mark.req("TASK-6", "RTY-7")
@pytest.mark.parametrize("is_canceled", [False, True])
async def test_an_acceptance_of_what_was_taken_back_is_not_sent_again(mesh: Mesh, is_canceled: bool) -> None:
    """Meanwhile the task was given to another agent, or canceled, and its gateway knows: the operator is told."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    part(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await give_up(mesh)
    if is_canceled:
        await a.tasks.cancel(task_id, "ada")
    else:
        await a.tasks.offering.offer_again(a.tasks.get(task_id), ("cid",))
    await mend(mesh)
    (refused,) = (await resend(b)).refused
    assert ("ada has canceled it" if is_canceled else "it was given to somebody else") in refused.reason


@pytest.mark.req("TASK-6", "RTY-7")
async def test_an_acceptance_counts_for_the_offer_that_it_was_said_to(mesh: Mesh) -> None:
    """The agent was offered the task anew, and has not said yes to that: its old word is not sent again."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    part(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=60)
    await give_up(mesh)
    await a.tasks.offering.offer_again(a.tasks.get(task_id), ("bob",))
    await mend(mesh)
    assert b.tasks.get(task_id).round == 2
    (refused,) = (await resend(b)).refused
    assert "bob does not have it by that claim" in refused.reason
    assert b.tasks.get(task_id).accepted_by_agent_id is None


@pytest.mark.req("TASK-7", "RTY-7")
async def test_what_is_lost_twice_is_sent_again_twice(mesh: Mesh) -> None:
    """The second time fails as the first did: the new dead letter can be sent again, the old one cannot."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await a_task(mesh)
    await b.tasks.claim(task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    part(mesh)
    first = await b.tasks.complete(task_id, "bob", result_summary="It stands.")
    await give_up(mesh)
    (second,) = (await resend(b)).resent
    await give_up(mesh)
    # The report to the sender is mail, too.
    await mesh.rest()
    await mend(mesh)
    assert (await resend(b, first.event_id)).resent == ()
    (third,) = (await resend(b)).resent
    assert third.event_id == second.resent_as
    await mesh.rest()
    assert [each.event_id for each in ends(a)] == [third.resent_as]
    assert b.engine.sealer.open(next(each for each in b.outbox() if each.event_id == third.resent_as)).result_summary
    assert b.tasks.get(task_id).end_event_id == third.resent_as


@pytest.mark.req("TASK-6", "RTY-7")
async def test_a_task_that_is_claimed_while_its_offer_is_sent_again_stays_with_the_claimant(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two targets one never got the task. The other takes it in the moment before the offer is written anew."""
    a, c = mesh.nodes["node-a"], mesh.nodes["node-c"]
    for agent_id, node_id in {"ada": "node-a", "bob": "node-b", "cid": "node-c"}.items():
        await mesh.nodes[node_id].host(agent_id)
    mesh.cut("node-b")
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build it", to_agents=("bob", "cid")))
    await mesh.rest()
    mesh.room.revoke("node-b")
    mesh.clock.advance(60_000)
    while await a.engine.retrier.work():
        await mesh.rest()
    mesh.room.remove_agent("bob")
    await c.host("bob")
    before = a.tasks.get(offered.task_id)
    append = a.store.append

    async def claimed_first(events: Sequence[Event], **also: Any) -> Appended:
        if any(isinstance(each, TaskCreateEvent) for each in events):
            await c.tasks.claim(offered.task_id, "cid", eta_seconds=60)
            await mesh.rest()
            assert a.tasks.get(offered.task_id).accepted_by_agent_id == "cid"
        return await append(events, **also)

    monkeypatch.setattr(a.store, "append", claimed_first)
    done = await a.engine.dead_letters.resend(Filter(event_id=before.create_event_id), actor="op")
    assert done.resent == ()
    assert [each.to_agents for each in done.refused] == [("bob",)]
    assert "it is accepted, by cid" in done.refused[0].reason
    await mesh.rest()
    assert (a.tasks.get(offered.task_id).round, a.tasks.get(offered.task_id).accepted_by_agent_id) == (1, "cid")
    assert c.tasks.get(offered.task_id).is_held_by("cid", "node-c")
