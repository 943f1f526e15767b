"""The coordinator: who leads, what a sweep does about late tasks, and that nothing is done twice."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from agentpost.delivery.ports import Result, ResultKind
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.protocol.coordination import CoordinationState, Preference
from agentpost.protocol.envelope import MessageEvent, SignalEvent
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.protocol.timestamps import format_ms
from agentpost.work.coordination import POLICY, SWEEP
from agentpost.work.offering import NewTask
from agentpost.work.settings import WorkSettings
from agentpost.work.sweep import LOOP_OPEN, TASK_LATE, TASK_STUCK
from tests.work.meshing import Mesh, Node

MINUTE = 60_000


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    made = Mesh()
    await made.add("node-a", "node-b", "node-c", tier=NodeTier.BACKBONE)
    yield made
    await made.close()


class Reviews:
    def __init__(self) -> None:
        self.items: list[str] = []

    async def raise_late(self, record: TaskRecord) -> None:
        self.items.append(record.task_id)


def notices(node: Node, agent_id: str) -> list[str]:
    """What the post itself said to an agent, by its subject."""
    return [
        node.engine.sealer.open(event).subject or ""
        for event in node.inbox(agent_id)
        if isinstance(event, MessageEvent) and event.source_agent_id == POSTMASTER
    ]


def open_incidents(node: Node, kind: str) -> list[str]:
    return [each.subject for each in node.store.incidents(limit=10_000) if each.kind == kind]


async def a_turn(mesh: Mesh, *, minutes: int = 1) -> None:
    """Time passes, everybody looks whether it is their turn to lead, and everything comes to rest."""
    mesh.clock.advance(minutes * MINUTE)
    for node in mesh.nodes.values():
        await node.office.coordination.tick()
    await mesh.rest()


async def an_accepted_task(mesh: Mesh, worker: str = "bob", *, node: str = "node-b", **more: object) -> str:
    a, b = mesh.nodes["node-a"], mesh.nodes[node]
    task = NewTask(requester_agent_id="ada", title="Build", to_agents=(worker,), **more)  # type: ignore[arg-type]
    offered = await a.tasks.create(task)
    await mesh.rest()
    await b.tasks.claim(offered.task_id, worker, eta_seconds=60)
    await mesh.rest()
    return offered.task_id


@pytest.mark.req("TASK-8", "OPS-4", "ACK-4")
async def test_a_missed_eta_is_asked_about_then_reassigned_once_then_for_a_person(mesh: Mesh) -> None:
    """The worker is asked, the backup gets the task, and when that is late too a person is called, each once."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await b.host("bob")
    await c.host("cid")
    mesh.board.state = CoordinationState(coordinator="node-c", backups={"bob": "cid"})
    reviews = a.office.sweeper.reviews = Reviews()
    task_id = await an_accepted_task(mesh, capability_id="cap.build")
    await a_turn(mesh)
    assert notices(b, "bob") == [], "the grace is not over"
    await a_turn(mesh, minutes=3)
    assert len(notices(b, "bob")) == 1
    assert open_incidents(a, TASK_LATE) == [task_id]
    assert reviews.items == [task_id]
    await a_turn(mesh)
    assert len(notices(b, "bob")) == 1, "it was asked already"
    await a_turn(mesh, minutes=5)
    record = a.tasks.get(task_id)
    assert (record.round, record.to_agents, record.state) == (2, ("cid",), TaskState.CREATED)
    assert not b.tasks.get(task_id).is_open
    await c.tasks.claim(task_id, "cid", eta_seconds=60)
    await mesh.rest()
    await a_turn(mesh)
    assert open_incidents(a, TASK_LATE) == [], "it is in good hands"
    await a_turn(mesh, minutes=4)
    await a_turn(mesh, minutes=6)
    assert open_incidents(a, TASK_STUCK) == [task_id]
    assert a.tasks.get(task_id).round == 2, "once, and not again"
    assert len(notices(a, "ada")) == 1
    await a_turn(mesh, minutes=6)
    assert len(notices(a, "ada")) == 1
    await c.tasks.complete(task_id, "cid", result_summary="at last")
    await mesh.rest()
    await a_turn(mesh)
    assert open_incidents(a, TASK_STUCK) == []


@pytest.mark.req("TASK-8")
async def test_what_nobody_claims_goes_to_who_else_can_do_it(mesh: Mesh) -> None:
    """A capability task that its agent leaves lying is asked about, and then offered to another agent that has it."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await b.host("bob")
    mesh.room.add_capability("cap.build", "bob")
    offered = await a.tasks.create(
        NewTask(requester_agent_id="ada", title="Build", required_capabilities=("cap.build",))
    )
    await mesh.rest()
    await c.host("cid")
    mesh.room.add_capability("cap.build", "bob", "cid")
    await a_turn(mesh, minutes=6)
    assert len(notices(b, "bob")) == 1
    await a_turn(mesh, minutes=6)
    assert a.tasks.get(offered.task_id).to_agents == ("cid",)
    assert len(c.open_mail("cid")) == 1


@pytest.mark.req("TASK-8")
@pytest.mark.parametrize("is_claimed", [False, True], ids=["unclaimed", "claimed"])
async def test_a_task_is_reassigned_once_however_many_could_do_it(mesh: Mesh, *, is_claimed: bool) -> None:
    """Three agents have the capability. After the second of them was late too, a person is called, and nobody else."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    for node, agent_id in ((a, "ada"), (b, "bob"), (c, "cid"), (b, "dan")):
        await node.host(agent_id)
    mesh.room.add_capability("cap.build", "bob")
    task = NewTask(requester_agent_id="ada", title="Build", required_capabilities=("cap.build",))
    task_id = (await a.tasks.create(task)).task_id
    await mesh.rest()
    mesh.room.add_capability("cap.build", "bob", "cid")
    for _ in range(2):
        await a_turn(mesh, minutes=6)
    assert (a.tasks.get(task_id).round, a.tasks.get(task_id).to_agents) == (2, ("cid",))
    mesh.room.add_capability("cap.build", "bob", "cid", "dan")
    if is_claimed:
        await c.tasks.claim(task_id, "cid", eta_seconds=60)
        await mesh.rest()
    for _ in range(4):
        await a_turn(mesh, minutes=6)
    record = a.tasks.get(task_id)
    assert (record.round, record.to_agents) == (2, ("cid",)), "once, and not again"
    assert open_incidents(a, TASK_STUCK) == [task_id]
    assert len(notices(c, "cid")) == 1
    assert notices(b, "dan") == []
    assert len(notices(a, "ada")) == 1
    if is_claimed:
        await c.tasks.complete(task_id, "cid", result_summary="at last")
    else:
        await c.tasks.claim(task_id, "cid", eta_seconds=3600)
    await mesh.rest()
    await a_turn(mesh)
    assert open_incidents(a, TASK_STUCK) == []


@pytest.mark.req("TASK-8")
async def test_a_second_worker_that_is_gone_is_no_reason_for_a_third(mesh: Mesh) -> None:
    """The gateway of the backup is gone as well: a person is called, although another agent could do the task."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    for node, agent_id in ((a, "ada"), (b, "bob"), (c, "cid"), (a, "dan")):
        await node.host(agent_id)
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob", "cid", "dan")))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    mesh.cut("node-b")
    await a_turn(mesh, minutes=6)
    assert a.tasks.get(offered.task_id).to_agents == ("cid", "dan")
    await c.tasks.claim(offered.task_id, "cid", eta_seconds=86_400)
    await mesh.rest()
    mesh.cut("node-c")
    for _ in range(3):
        await a_turn(mesh, minutes=6)
    record = a.tasks.get(offered.task_id)
    assert (record.round, record.accepted_by_agent_id) == (2, "cid")
    assert open_incidents(a, TASK_STUCK) == [offered.task_id]


@pytest.mark.req("TASK-6", "TASK-8")
async def test_a_task_is_offered_again_when_its_workers_gateway_is_gone(mesh: Mesh) -> None:
    """The claim lapses with the gateway of the claimant: others get the task, and it has one worker all the time."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await b.host("bob")
    await c.host("cid")
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob", "cid")))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    mesh.cut("node-b")
    await a_turn(mesh, minutes=2)
    assert a.tasks.get(offered.task_id).accepted_by_agent_id == "bob", "it may come back"
    await a_turn(mesh, minutes=5)
    assert a.tasks.get(offered.task_id).to_agents == ("cid",)
    await c.tasks.claim(offered.task_id, "cid", eta_seconds=86_400)
    mesh.mend("node-b")
    await mesh.rest()
    assert not b.tasks.get(offered.task_id).is_open
    assert a.tasks.get(offered.task_id).accepted_by_agent_id == "cid"


@pytest.mark.req("TASK-8")
async def test_a_worker_that_was_not_heard_since_the_start_is_not_gone(mesh: Mesh) -> None:
    """The requester's gateway has just started: the silence of a worker counts from there, not from ever."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    for node, agent_id in ((a, "ada"), (b, "bob"), (c, "cid")):
        await node.host(agent_id)
    state = CoordinationState(coordinator="node-a", backups={"bob": "cid"})
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob",)))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    mesh.room.set_unheard("node-b")
    mesh.clock.advance(299_000)
    assert (await a.office.sweeper.sweep(1, state)).problems == {}
    mesh.clock.advance(1_000)
    report = await a.office.sweeper.sweep(2, state)
    assert (report.problems, report.reassigned) == ({"worker_gone": 1}, 1)


@pytest.mark.req("TASK-8")
async def test_a_gateway_that_hears_nobody_takes_no_task_away(mesh: Mesh) -> None:
    """With the worker's gateway silent and the backup's too, the worker keeps the task, and a person is called."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    for node, agent_id in ((a, "ada"), (b, "bob"), (c, "cid")):
        await node.host(agent_id)
    state = CoordinationState(coordinator="node-a", backups={"bob": "cid"})
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob",)))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=86_400)
    await mesh.rest()
    for node_id in ("node-b", "node-c"):
        mesh.cut(node_id)
    mesh.clock.advance(301_000)
    report = await a.office.sweeper.sweep(1, state)
    assert (report.problems, report.asked, report.reassigned) == ({"worker_gone": 1}, 1, 0)
    mesh.clock.advance(301_000)
    report = await a.office.sweeper.sweep(2, state)
    assert (report.reassigned, report.needs_action) == (0, 1)
    for node_id in ("node-b", "node-c"):
        mesh.mend(node_id)
    await mesh.rest()
    await b.tasks.complete(offered.task_id, "bob", result_summary="done")
    await mesh.rest()
    assert a.tasks.get(offered.task_id).state is TaskState.COMPLETED


@pytest.mark.req("TASK-8", "OPS-4")
async def test_five_hundred_late_tasks_are_no_storm(mesh: Mesh) -> None:
    """With 500 tasks of 50 agents late at once a sweep keeps to its budget, and tells of the rest in one summary."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    for number in range(50):
        await b.host(f"bob-{number}")
    for number in range(500):
        await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=(f"bob-{number % 50}",)))
    await mesh.rest()
    await a_turn(mesh, minutes=10)
    report = a.office.coordination.show().last_sweep
    assert report is not None
    assert (report.checked, report.asked, report.problems) == (500, 500, {"missed_claim": 500})
    assert report.messages == WorkSettings().message_budget
    said = [len(notices(b, f"bob-{number}")) for number in range(50)]
    assert Counter(said) == {1: 19, 0: 31}
    (summary,) = notices(a, "ada")
    assert summary.startswith("More tasks are late")
    assert len(open_incidents(a, TASK_LATE)) == 500
    await a_turn(mesh)
    assert sum(len(notices(b, f"bob-{number}")) for number in range(50)) == 19, "nobody is asked twice"


@pytest.mark.req("OPS-4")
async def test_the_sweep_goes_on_when_the_coordinator_dies(mesh: Mesh) -> None:
    """While the coordinator is silent whom most prefer leads; each turn is swept once, an old term is not followed."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    for node in (a, b):
        node.office.coordination.prefer(Preference(desired_coordinator="node-b"))
    mesh.board.state = CoordinationState(coordinator="node-c", preferences=mesh.board.state.preferences)

    def turns() -> dict[str, list[object]]:
        return {
            node.node_id: [
                event.payload.details["turn"]
                for event in node.outbox()
                if isinstance(event, SignalEvent) and event.payload.signal == SWEEP
            ]
            for node in (a, b, c)
        }

    for _ in range(3):
        await a_turn(mesh)
    assert {node_id: len(called) for node_id, called in turns().items()} == {"node-a": 0, "node-b": 0, "node-c": 3}
    mesh.cut("node-c")
    for _ in range(3):
        # The one that is cut off does not know, and goes on calling.
        await a_turn(mesh)
    assert a.office.coordination.show().acting == "node-b"
    assert {node_id: len(called) for node_id, called in turns().items()} == {"node-a": 0, "node-b": 3, "node-c": 6}
    assert mesh.board.state.terms["node-b"] > mesh.board.state.terms["node-c"]
    last = a.office.coordination.show().last_sweep
    mesh.mend("node-c")
    await mesh.rest()
    assert a.office.coordination.show().last_sweep == last, "these turns were swept"
    for term, is_followed in ((1, False), (mesh.board.state.highest_term + 1, True)):
        call = c.engine.maker.signal(
            SWEEP, to_nodes=("node-a",), details={"turn": mesh.clock.now_ms() + 1, "term": term, "every": 60}
        )
        await a.office.coordination.hear([call])
        assert (a.office.coordination.show().last_sweep != last) == is_followed
    last = a.office.coordination.show().last_sweep
    await a_turn(mesh)
    assert a.office.coordination.show().acting == "node-c"
    swept = a.office.coordination.show().last_sweep
    assert swept is not None
    assert last is not None
    assert swept.turn > last.turn
    assert mesh.board.state.terms["node-c"] > mesh.board.state.terms["node-b"]
    again = await a.office.coordination._sweep(swept.turn)  # pyright: ignore[reportPrivateUsage]
    assert again is None, "a turn is swept once"


def a_call(mesh: Mesh, caller: str, *, turn_ms: int, term: int) -> SignalEvent:
    """A call for a sweep, as another gateway says it."""
    details: dict[str, str | int | float | bool | None] = {"turn": turn_ms, "term": term, "every": 60}
    return mesh.nodes[caller].engine.maker.signal(SWEEP, to_nodes=("node-a",), details=details)


@pytest.mark.req("OPS-4")
async def test_a_term_that_was_heard_counts_before_the_room_has_it(mesh: Mesh) -> None:
    """A call under term 9 came over a link, the room is behind: nobody is followed under less, and the next is 10."""
    a = mesh.nodes["node-a"]
    mesh.board.state = CoordinationState(coordinator="node-a")
    await a_turn(mesh)
    assert mesh.board.state.terms == {"node-a": 1}
    now_ms = mesh.clock.now_ms() + 1
    await a.office.coordination.hear([a_call(mesh, "node-c", turn_ms=now_ms, term=9)])
    followed = a.office.coordination.show().last_sweep
    assert followed is not None
    assert followed.turn == now_ms
    await a.office.coordination.hear([a_call(mesh, "node-b", turn_ms=now_ms + 1, term=5)])
    assert a.office.coordination.show().last_sweep == followed
    await a_turn(mesh)
    assert mesh.board.state.terms == {"node-a": 10}


@pytest.mark.req("OPS-4")
async def test_calls_that_waited_for_a_gateway_that_slept_are_not_followed(mesh: Mesh) -> None:
    """It was away for an hour: of sixty calls only those of the last turns count."""
    a = mesh.nodes["node-a"]
    now_ms = mesh.clock.now_ms()
    followed: list[int] = []
    for minutes in (60, 4, 3, 2, 1, 0):
        before = a.office.coordination.show().last_sweep
        await a.office.coordination.hear([a_call(mesh, "node-c", turn_ms=now_ms - minutes * MINUTE, term=1)])
        if a.office.coordination.show().last_sweep != before:
            followed.append(minutes)
    assert followed == [2, 1, 0]


@pytest.mark.req("OPS-4")
async def test_a_turn_is_called_once(mesh: Mesh) -> None:
    """A leader that looks twice within a turn, or starts again within it, calls nobody a second time."""
    a = mesh.nodes["node-a"]
    mesh.board.state = CoordinationState(coordinator="node-a")
    await a_turn(mesh)
    assert await a.office.coordination.tick() is None
    await a.engine.close()
    a.wake_up()
    assert await a.office.coordination.tick() is None
    calls = [each for each in a.outbox() if isinstance(each, SignalEvent) and each.payload.signal == SWEEP]
    assert len(calls) == 1
    assert mesh.board.state.terms == {"node-a": 1}


@pytest.mark.req("OPS-4")
async def test_two_that_began_with_the_same_term_do_not_share_it(mesh: Mesh) -> None:
    """Gateways that led before they had met have the same number; whoever leads next takes a higher one."""
    terms = {"node-b": 1, "node-c": 1}
    mesh.board.state = CoordinationState(coordinator="node-c", terms=terms)
    await a_turn(mesh)
    assert mesh.board.state.terms == terms | {"node-c": 2}
    mesh.cut("node-c")
    await a_turn(mesh)
    await a_turn(mesh)
    leader = mesh.nodes["node-a"].office.coordination.show().acting
    assert leader in ("node-a", "node-b")
    assert mesh.board.state.terms[leader] > 2


@pytest.mark.req("OPS-4")
async def test_a_call_of_a_term_that_no_sweep_led_to_is_not_followed(mesh: Mesh) -> None:
    """It would be remembered, and nobody else could ever lead again."""
    mesh.board.state = CoordinationState(coordinator="node-c")
    await a_turn(mesh)
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    before = a.office.coordination.show().term
    call = b.engine.maker.signal(
        SWEEP, to_nodes=("node-a",), details={"turn": mesh.clock.now_ms() + 1, "term": 2**53 - 1, "every": 60}
    )
    await a.office.coordination.hear([call])
    assert a.office.coordination.show().term == before


@pytest.mark.req("TASK-8", "OPS-4")
async def test_the_end_of_a_task_that_nobody_reads_is_an_open_loop(mesh: Mesh) -> None:
    """A completion that lies in the requester's inbox for too long is reported, until somebody deals with it."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    task_id = await an_accepted_task(mesh)
    await b.tasks.complete(task_id, "bob", result_summary="done")
    await mesh.rest()
    await a_turn(mesh, minutes=90)
    report = a.office.coordination.show().last_sweep
    assert report is not None
    assert report.open_loops == 1
    assert open_incidents(a, LOOP_OPEN) == ["ada"]
    (told,) = await a.engine.pull.fetch("ada")
    await a.engine.pull.settle(told.event_id, "ada", Result(kind=ResultKind.PROCESSED))
    await a_turn(mesh)
    assert open_incidents(a, LOOP_OPEN) == []


class Wrong:
    """A problem of the delegation policy."""

    subject = "2026-02-25.1"
    message = "without an active backup: build"


@pytest.mark.req("OPS-8", "OPS-4")
async def test_whoever_leads_reports_what_is_wrong_with_the_delegation_policy(mesh: Mesh) -> None:
    """A problem of the policy is one incident at the gateway that leads, and is closed when it is gone."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    for node in (a, b):
        node.office.coordination.policy_problems = lambda: [Wrong()]
    for _ in range(2):
        await a_turn(mesh)
    assert open_incidents(a, POLICY) == [Wrong.subject]
    assert open_incidents(b, POLICY) == [], "it does not lead"
    a.office.coordination.policy_problems = tuple
    await a_turn(mesh)
    assert open_incidents(a, POLICY) == []


@pytest.mark.req("OPS-4")
async def test_only_what_needs_action_is_reported(mesh: Mesh) -> None:
    """Gateways where all is well answer the coordinator with nothing; the others with numbers and no content."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await b.host("bob")
    mesh.board.state = CoordinationState(coordinator="node-c")
    await an_accepted_task(mesh, deadline_at=format_ms(mesh.clock.now_ms() + 2 * MINUTE))
    await a_turn(mesh)
    assert c.office.coordination.show().reports == ()
    await a_turn(mesh, minutes=10)
    (report,) = c.office.coordination.show().reports
    assert (report.node_id, report.problems, report.asked) == ("node-a", {"missed_deadline": 1}, 1)
