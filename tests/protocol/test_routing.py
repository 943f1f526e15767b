"""Routing decisions on small rooms, and the laws that hold in every room."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.routing import (
    STALE_AFTER_MS,
    Decision,
    Recipient,
    Rejected,
    RejectReason,
    Route,
    RouteRequest,
    decide_route,
    is_live,
)
from agentpost.protocol.snapshot import (
    AgentRecord,
    AgentStatus,
    CapabilityIndex,
    CapabilityRecord,
    CapabilityStatus,
    Failover,
    NodeRecord,
    NodeStatus,
    RoomSnapshot,
    RoutingRule,
    SkillRef,
)

NOW_MS = 1_772_000_000_000
LONG_AGO_MS = NOW_MS - STALE_AFTER_MS - 1
SKILL = SkillRef(name="executor", version="1.0.0")

LIVE = NodeRecord(last_heartbeat_at=NOW_MS)
SILENT = NodeRecord(last_heartbeat_at=LONG_AGO_MS)


def room(**maps: Any) -> RoomSnapshot:
    return RoomSnapshot(routing_policy_version="rpv_1", capability_policy_version="cpv_1", **maps)


def route(snapshot: RoomSnapshot, *to_agents: str, capabilities: tuple[str, ...] = ()) -> Route:
    request = RouteRequest(source_agent_id="sender", to_agents=to_agents, required_capabilities=capabilities)
    return decide_route(request, snapshot, now_ms=NOW_MS)


def refusal(snapshot: RoomSnapshot, *to_agents: str, capabilities: tuple[str, ...] = ()) -> Refusal:
    with pytest.raises(Refusal) as caught:
        route(snapshot, *to_agents, capabilities=capabilities)
    return caught.value


def capability(name: str, *, owner: str = "ann", **changes: Any) -> CapabilityRecord:
    fields: dict[str, Any] = {"executor_skill_ref": SKILL, **changes}
    return CapabilityRecord(capability_id=name, owner_agent_id=owner, **fields)


def two_agents(**changes: Any) -> RoomSnapshot:
    maps: dict[str, Any] = {
        "nodes": {"n1": LIVE, "n2": LIVE},
        "agents": {"ann": AgentRecord(owner_node_id="n1"), "bob": AgentRecord(owner_node_id="n2")},
        **changes,
    }
    return room(**maps)


@pytest.mark.req("ROUTE-1", "ROUTE-9")
def test_mail_goes_to_the_gateway_that_owns_the_agent():
    """A message to an agent whose gateway is awake goes to that gateway, under the room's policy versions."""
    assert route(two_agents(), "ann") == Route(
        recipients=(
            Recipient(
                agent_id="ann",
                node_id="n1",
                decision=Decision.OWNER,
                owner_node_id="n1",
                failover=Failover.WAIT,
            ),
        ),
        rejected=(),
        routing_policy_version="rpv_1",
        capability_policy_version="cpv_1",
    )


@pytest.mark.req("ROUTE-1")
def test_the_agents_own_record_outranks_a_rule():
    """A routing rule cannot take an agent away from the gateway that its record names."""
    snapshot = two_agents(routing={"ann": RoutingRule(owner_node_id="n2")})
    assert route(snapshot, "ann").recipients[0].node_id == "n1"


@pytest.mark.req("ROUTE-1")
def test_a_rule_names_the_owner_where_the_record_is_silent():
    """An agent whose record has no owner is found through its routing rule."""
    snapshot = two_agents(agents={"ann": AgentRecord()}, routing={"ann": RoutingRule(owner_node_id="n2")})
    assert route(snapshot, "ann").recipients[0].node_id == "n2"


@pytest.mark.req("ROUTE-1")
def test_the_older_name_of_the_owner_is_read():
    """A room that still says `gateway` for `ownerNodeId`, with fields nobody knows, is understood."""
    raw = {"gateway": "n1", "type": "external", "lastSeenAt": 1772000000000.0, "favouriteColour": "blue"}
    agent = msgspec.convert(raw, AgentRecord)
    assert agent.owner_node_id == "n1"
    assert "gateway" not in msgspec.to_builtins(agent)


@pytest.mark.req("ROUTE-2")
def test_the_first_live_and_capable_fallback_is_proposed():
    """When the owner is silent, the first stand-in that is awake and has what the agent needs is proposed."""
    rule = RoutingRule(
        fallback_node_ids=("gone", "asleep", "weak", "n2", "n3"),
        requires_capabilities=("gpu",),
        failover=Failover.AT_LEAST_ONCE,
    )
    strong = NodeRecord(last_heartbeat_at=NOW_MS, capabilities=("disk", "gpu"))
    asleep = NodeRecord(last_heartbeat_at=LONG_AGO_MS, capabilities=("gpu",))
    snapshot = two_agents(
        nodes={"n1": SILENT, "asleep": asleep, "weak": LIVE, "n3": strong, "n2": strong},
        routing={"ann": rule},
    )
    assert route(snapshot, "ann").recipients == (
        Recipient(
            agent_id="ann",
            node_id="n2",
            decision=Decision.FALLBACK,
            owner_node_id="n1",
            failover=Failover.AT_LEAST_ONCE,
        ),
    )


@pytest.mark.req("ROUTE-2")
@pytest.mark.parametrize(
    "routing",
    [{}, {"ann": RoutingRule()}, {"ann": RoutingRule(fallback_node_ids=("n2",), requires_capabilities=("gpu",))}],
    ids=["no rule", "no fallback", "no capable fallback"],
)
def test_mail_waits_for_a_silent_owner_without_a_stand_in(routing: dict[str, RoutingRule]):
    """When nobody may stand in, the mail stays addressed to the owner and waits for it."""
    snapshot = two_agents(nodes={"n1": SILENT, "n2": LIVE}, routing=routing)
    (recipient,) = route(snapshot, "ann").recipients
    assert (recipient.decision, recipient.node_id) == (Decision.WAIT, "n1")


@pytest.mark.req("ROUTE-2")
@pytest.mark.parametrize(
    ("listening_ms", "owner", "decision"),
    [
        (0, NodeRecord(), Decision.WAIT),
        (STALE_AFTER_MS, NodeRecord(), Decision.WAIT),
        (STALE_AFTER_MS + 1, NodeRecord(), Decision.FALLBACK),
        (0, NodeRecord(status=NodeStatus.OFFLINE), Decision.FALLBACK),
    ],
    ids=["just started", "still new", "long enough", "said goodbye"],
)
def test_an_owner_that_was_not_heard_since_the_start_is_not_silent_yet(
    listening_ms: int, owner: NodeRecord, decision: Decision
):
    """A gateway that has just started gives the owner as long as anybody before a stand-in gets its mail."""
    snapshot = two_agents(
        nodes={"n1": owner, "n2": LIVE},
        routing={"ann": RoutingRule(fallback_node_ids=("n2",), failover=Failover.AT_LEAST_ONCE)},
        unheard=frozenset({"n1"}),
        listening_since_ms=NOW_MS - listening_ms,
    )
    (recipient,) = route(snapshot, "ann").recipients
    assert (recipient.decision, recipient.node_id) == (decision, "n2" if decision is Decision.FALLBACK else "n1")


@pytest.mark.req("ROUTE-2")
def test_mail_waits_for_an_owner_the_room_does_not_know_yet():
    """An owner whose node record has not synced yet is treated like one that is asleep."""
    assert route(two_agents(nodes={}), "ann").recipients[0].decision is Decision.WAIT


@pytest.mark.req("ROUTE-2")
@pytest.mark.parametrize(
    ("node", "live"),
    [
        (NodeRecord(last_heartbeat_at=NOW_MS - STALE_AFTER_MS), True),
        (NodeRecord(last_heartbeat_at=NOW_MS - STALE_AFTER_MS - 1), False),
        (NodeRecord(last_heartbeat_at=NOW_MS + 3_600_000), True),
        (NodeRecord(last_heartbeat_at=NOW_MS, status=NodeStatus.DEGRADED), True),
        (NodeRecord(last_heartbeat_at=NOW_MS, status=NodeStatus.OFFLINE), False),
        (NodeRecord(), False),
        (None, False),
    ],
    ids=["just in time", "just late", "clock ahead", "degraded", "said goodbye", "never heard of", "unknown"],
)
def test_liveness_follows_the_heartbeat(node: NodeRecord | None, live: bool):
    """A gateway is live while its heartbeat is fresh and it has not said goodbye."""
    assert is_live(node, NOW_MS, STALE_AFTER_MS) is live


@pytest.mark.req("ROUTE-3")
def test_an_agent_without_an_owner_is_unroutable():
    """Mail to an agent that no gateway owns is marked for the dead letters, fallbacks or not."""
    snapshot = two_agents(agents={"ann": AgentRecord()}, routing={"ann": RoutingRule(fallback_node_ids=("n2",))})
    (recipient,) = route(snapshot, "ann").recipients
    assert (recipient.decision, recipient.node_id, recipient.owner_node_id) == (Decision.UNROUTABLE, None, None)


@pytest.mark.req("ROUTE-4")
def test_valid_targets_are_served_and_the_others_are_named():
    """A message to several agents goes to those that can get it, once each, and says who could not."""
    snapshot = two_agents(
        agents={
            "ann": AgentRecord(owner_node_id="n1"),
            "bob": AgentRecord(owner_node_id="n2"),
            "old": AgentRecord(owner_node_id="n2", status=AgentStatus.INACTIVE),
        }
    )
    decided = route(snapshot, "bob", "old", "ann", "nobody", "bob", "old")
    assert [each.agent_id for each in decided.recipients] == ["bob", "ann"]
    assert decided.rejected == (
        Rejected(agent_id="old", reason=RejectReason.INACTIVE),
        Rejected(agent_id="nobody", reason=RejectReason.UNKNOWN),
    )


@pytest.mark.req("ROUTE-4")
def test_a_message_without_any_valid_target_is_refused():
    """When none of the named agents can get the message, the refusal names them and says why."""
    snapshot = two_agents(agents={"old": AgentRecord(owner_node_id="n1", status=AgentStatus.INACTIVE)})
    refused = refusal(snapshot, "nobody", "old")
    assert (refused.code, refused.status, refused.field) == (Code.INVALID_TARGETS, 400, "toAgents")
    assert "'nobody' is unknown" in refused.message
    assert "'old' is inactive" in refused.message


@pytest.mark.req("ROUTE-4")
def test_a_refusal_does_not_recite_a_thousand_names():
    """The message of a refusal stays short however many bad targets there were."""
    assert len(refusal(two_agents(), *(f"ghost-{n}" for n in range(1000))).message) < 500


@pytest.mark.req("ROUTE-5")
def test_an_agent_needs_all_the_capabilities():
    """Work that needs two capabilities goes only to the agents that have both."""
    snapshot = two_agents(
        catalog={"cap.a": capability("cap.a"), "cap.b": capability("cap.b")},
        index={
            "cap.a": CapabilityIndex(eligible_agent_ids=("bob", "ann")),
            "cap.b": CapabilityIndex(eligible_agent_ids=("ann",)),
        },
    )
    assert [each.agent_id for each in route(snapshot, capabilities=("cap.a",)).recipients] == ["ann", "bob"]
    both = route(snapshot, capabilities=("cap.b", "cap.a", "cap.b"))
    assert [each.agent_id for each in both.recipients] == ["ann"]


@pytest.mark.req("ROUTE-5")
@pytest.mark.parametrize(
    "index",
    [
        {},
        {"cap.a": CapabilityIndex(eligible_agent_ids=())},
        {"cap.a": CapabilityIndex(eligible_agent_ids=("nobody", "old"))},
    ],
    ids=["not indexed", "nobody eligible", "only absent agents eligible"],
)
def test_work_that_nobody_can_do_has_no_route(index: dict[str, CapabilityIndex]):
    """A capability that no active agent has is refused with no_route."""
    snapshot = two_agents(
        agents={
            "ann": AgentRecord(owner_node_id="n1"),
            "old": AgentRecord(owner_node_id="n1", status=AgentStatus.INACTIVE),
        },
        catalog={"cap.a": capability("cap.a")},
        index=index,
    )
    refused = refusal(snapshot, capabilities=("cap.a",))
    assert (refused.code, refused.status, refused.field) == (Code.NO_ROUTE, 400, "requiredCapabilities")


@pytest.mark.req("ROUTE-5", "CAP-3")
def test_an_unpublished_capability_routes_nothing():
    """An index entry that is left over after the capability was withdrawn gives nobody any work."""
    snapshot = two_agents(index={"cap.a": CapabilityIndex(eligible_agent_ids=("ann",))})
    assert refusal(snapshot, capabilities=("cap.a",)).code is Code.NO_ROUTE


@pytest.mark.req("ROUTE-6")
def test_a_request_must_say_who_it_is_for():
    """A request without targets and without capabilities is refused."""
    refused = refusal(two_agents())
    assert (refused.code, refused.status) == (Code.MISSING_ROUTE_FIELDS, 400)


@pytest.mark.req("ROUTE-7")
@pytest.mark.parametrize(
    "record",
    [
        capability("cap.a", status=CapabilityStatus.DISABLED),
        capability("cap.a", owner="nobody"),
        capability("cap.a", owner="old"),
        capability("cap.a", executor_skill_ref=None),
    ],
    ids=["disabled", "owner unknown", "owner inactive", "no executor skill"],
)
def test_a_published_capability_can_be_unavailable(record: CapabilityRecord):
    """A capability that exists but cannot be carried out is a conflict, not a missing route."""
    snapshot = two_agents(
        agents={
            "bob": AgentRecord(owner_node_id="n2"),
            "ann": AgentRecord(owner_node_id="n1"),
            "old": AgentRecord(owner_node_id="n1", status=AgentStatus.INACTIVE),
        },
        catalog={"cap.a": record},
        index={"cap.a": CapabilityIndex(eligible_agent_ids=("bob",))},
    )
    refused = refusal(snapshot, capabilities=("cap.a",))
    assert (refused.code, refused.status) == (Code.CAPABILITY_UNAVAILABLE, 409)


@pytest.mark.req("ROUTE-7")
def test_work_waits_for_an_owner_that_is_only_asleep():
    """A capability whose owner is offline stays available; the work waits for it."""
    snapshot = two_agents(
        nodes={"n1": SILENT},
        catalog={"cap.a": capability("cap.a", status=CapabilityStatus.DEPRECATED)},
        index={"cap.a": CapabilityIndex(eligible_agent_ids=("ann",))},
    )
    (recipient,) = route(snapshot, capabilities=("cap.a",)).recipients
    assert (recipient.agent_id, recipient.decision) == ("ann", Decision.WAIT)


@pytest.mark.req("ROUTE-4", "ROUTE-7")
def test_named_agents_are_not_asked_for_capabilities():
    """Naming an agent is a way around a capability that is not available."""
    assert route(two_agents(), "ann", capabilities=("cap.none",)).recipients[0].agent_id == "ann"


@pytest.mark.req("ROUTE-8")
@pytest.mark.parametrize("to_agents", [("all",), ("zoe", "all", "nobody")])
def test_all_means_every_active_agent_but_the_sender(to_agents: tuple[str, ...]):
    """A message to "all" becomes one message for each active agent, the sender excepted."""
    snapshot = two_agents(
        agents={
            "zoe": AgentRecord(owner_node_id="n1"),
            "sender": AgentRecord(owner_node_id="n1"),
            "old": AgentRecord(owner_node_id="n1", status=AgentStatus.INACTIVE),
            "ann": AgentRecord(owner_node_id="n2"),
        }
    )
    decided = route(snapshot, *to_agents)
    assert [each.agent_id for each in decided.recipients] == ["ann", "zoe"]
    assert decided.rejected == ()


@pytest.mark.req("ROUTE-8")
def test_all_is_refused_when_nobody_else_is_there():
    """A broadcast of the only active agent has no target."""
    snapshot = two_agents(agents={"sender": AgentRecord(owner_node_id="n1")})
    assert refusal(snapshot, "all").code is Code.INVALID_TARGETS


# Few names, so that the generated rooms are full of agents, nodes and rules that refer to each other.
agent_ids = st.sampled_from(["ann", "bob", "cyd", "sender", "all", ""])
node_ids = st.sampled_from(["n1", "n2", "n3"])
capability_ids = st.sampled_from(["cap.a", "cap.b", "cap.c"])


def some(values: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(values, max_size=4).map(tuple)


heartbeats = st.none() | st.integers(NOW_MS - 2 * STALE_AFTER_MS, NOW_MS + STALE_AFTER_MS)
rooms = st.builds(
    RoomSnapshot,
    routing_policy_version=st.just("rpv_1"),
    capability_policy_version=st.just("cpv_1"),
    nodes=st.dictionaries(
        node_ids,
        st.builds(
            NodeRecord,
            capabilities=some(capability_ids),
            status=st.sampled_from(NodeStatus),
            last_heartbeat_at=heartbeats,
        ),
    ),
    agents=st.dictionaries(
        agent_ids,
        st.builds(AgentRecord, owner_node_id=st.none() | node_ids, status=st.sampled_from(AgentStatus)),
    ),
    routing=st.dictionaries(
        agent_ids,
        st.builds(
            RoutingRule,
            owner_node_id=st.none() | node_ids,
            fallback_node_ids=some(node_ids),
            requires_capabilities=some(capability_ids),
            failover=st.sampled_from(Failover),
        ),
    ),
    catalog=st.dictionaries(
        capability_ids,
        st.builds(
            CapabilityRecord,
            capability_id=capability_ids,
            owner_agent_id=agent_ids,
            status=st.sampled_from(CapabilityStatus),
            executor_skill_ref=st.none() | st.just(SKILL),
        ),
    ),
    index=st.dictionaries(capability_ids, st.builds(CapabilityIndex, eligible_agent_ids=some(agent_ids))),
)
requests = st.builds(
    RouteRequest,
    source_agent_id=agent_ids,
    to_agents=some(agent_ids),
    required_capabilities=some(capability_ids),
)


def decided_or_refused(request: RouteRequest, snapshot: RoomSnapshot) -> Route | tuple[Code, str]:
    try:
        return decide_route(request, snapshot, now_ms=NOW_MS)
    except Refusal as refused:
        return refused.code, refused.message


@pytest.mark.req("ROUTE-9")
@given(request=requests, snapshot=rooms, shuffle=st.randoms(use_true_random=False))
def test_the_order_of_the_rooms_maps_does_not_matter(request: RouteRequest, snapshot: RoomSnapshot, shuffle: Any):
    """Two gateways with the same room decide the same, in whatever order their copies were filled."""

    def shuffled(mapping: Any) -> Any:
        items = list(mapping.items())
        shuffle.shuffle(items)
        return dict(items)

    other = RoomSnapshot(
        routing_policy_version=snapshot.routing_policy_version,
        capability_policy_version=snapshot.capability_policy_version,
        nodes=shuffled(snapshot.nodes),
        agents=shuffled(snapshot.agents),
        routing=shuffled(snapshot.routing),
        catalog=shuffled(snapshot.catalog),
        index=shuffled(snapshot.index),
    )
    assert decided_or_refused(request, snapshot) == decided_or_refused(request, other)


@pytest.mark.req("ROUTE-1", "ROUTE-2", "ROUTE-3", "ROUTE-4")
@given(request=requests, snapshot=rooms)
def test_every_decision_is_sound(request: RouteRequest, snapshot: RoomSnapshot):
    """A decision is a refusal or a route; whoever is on the route is active and is there once."""
    decided = decided_or_refused(request, snapshot)
    if not isinstance(decided, Route):
        return
    names = [each.agent_id for each in decided.recipients]
    assert names
    assert len(set(names)) == len(names)
    assert all(snapshot.agents[name].status is AgentStatus.ACTIVE for name in names)
    for each in decided.recipients:
        live = each.node_id is not None and is_live(snapshot.nodes.get(each.node_id), NOW_MS)
        match each.decision:
            case Decision.OWNER:
                assert live
                assert each.node_id == each.owner_node_id
            case Decision.FALLBACK:
                assert live
                assert each.node_id != each.owner_node_id
                assert each.node_id in snapshot.routing[each.agent_id].fallback_node_ids
            case Decision.WAIT:
                assert not live
                assert each.node_id == each.owner_node_id
            case Decision.UNROUTABLE:
                assert each.node_id is None
                assert each.owner_node_id is None
