"""A member that speaks for others: in another's name, with another's ACKs, out of order, or what nobody signed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.frames import Credit, Events, Subscribe
from agentpost.protocol.ids import derived_event_id
from agentpost.protocol.payloads import AckType
from agentpost.store.values import CHAIN_START
from agentpost.world import SystemClock
from tests.edges.attacked import AttackedMesh, attacked_mesh
from tests.edges.lying import Liar, LiarLink


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedMesh]:
    folder: Path = tmp_path_factory.mktemp("names")
    with attacked_mesh(folder) as attacked:
        yield attacked


@pytest.mark.req("ENV-8", "PIPE-1")
def test_an_event_in_the_name_of_another_gateway_is_refused(mesh: AttackedMesh) -> None:
    """A member's own stream with an event of another node in it: the link ends, and nothing is taken."""
    liar = mesh.liar()
    with liar.link() as link:
        link.say(liar.message("builder", source_node_id="mbp-jane", source_agent_id="architect"))
        assert link.refusal() == "foreign_source"
    mesh.expect_audited(liar, "foreign_source")
    mesh.expect_incident(liar, "foreign_source")
    mesh.expect_unharmed()


@pytest.mark.req("PIPE-1", "PIPE-9")
def test_the_outbox_of_another_that_nobody_asked_for_is_refused(mesh: AttackedMesh) -> None:
    """A member that hands over "the outbox of mbp-jane", signed by itself, was not asked for it, and is cut off."""
    liar = mesh.liar()
    with liar.link() as link:
        link.asked()
        wish = Subscribe(source="mbp-jane", after_seq=0, after_chain=CHAIN_START)
        lie = liar.message("builder", source_node_id="mbp-jane", source_agent_id="architect")
        link.send(link.batch([lie], wish=wish))
        assert link.refusal() == "foreign_source"
    mesh.expect_audited(liar, "foreign_source")
    mesh.expect_unharmed()


@pytest.mark.req("ENV-8", "ROUTE-1")
@pytest.mark.parametrize("agent", ["architect", "builder"])
def test_an_event_in_the_name_of_another_gateways_agent_reaches_nobody(mesh: AttackedMesh, agent: str) -> None:
    """Its own node, but an agent that lives elsewhere as the sender: not given to anybody, and an incident."""
    liar = mesh.liar()
    with liar.link() as link:
        link.say(liar.message("builder", source_agent_id=agent), liar.message("clerk", source_agent_id=agent))
        link.sync()
    mesh.expect_incident(liar, "forged_sender")
    mesh.expect_unharmed()


@pytest.mark.req("ENV-1", "RTY-3")
def test_an_event_under_the_id_of_another_gateway_reaches_nobody(mesh: AttackedMesh) -> None:
    """A member says something of its own under an id that mbp-jane made: what mbp-jane says under it has its place."""
    liar = mesh.liar()
    with liar.link() as link:
        squatted = derived_event_id(b"a message of architect", time_ms=SystemClock().now_ms(), node_id="mbp-jane")
        link.say(liar.message("builder", event_id=squatted))
        link.sync()
    mesh.expect_incident(liar, "forged_id")
    mesh.expect_unharmed()


@pytest.mark.req("ACK-1", "PIPE-2")
@pytest.mark.parametrize("kind", list(AckType))
def test_an_ack_in_the_name_of_another_changes_nothing(mesh: AttackedMesh, kind: AckType) -> None:
    """ACKs that say that another node, or an agent elsewhere, took a message: the sender waits for the real one."""
    mesh.third.post("/ansible/agents/architect/pause")
    sent = mesh.victim.send("architect", "wait for it", sender="builder")["eventId"]
    liar = mesh.liar()
    with liar.link() as link:
        link.say(
            liar.ack(sent, kind, by_node="mbp-jane", by_agent="architect"),
            liar.ack(sent, kind, by_node=liar.node_id, by_agent="architect"),
        )
        link.sync()
    assert mesh.victim.states(sent)[0] in ("Emitted", "Accepted")
    mesh.expect_incident(liar, "forged_ack")
    mesh.third.post("/ansible/agents/architect/resume")
    mesh.expect_unharmed()


@pytest.mark.req("ACK-1", "PIPE-2")
def test_an_ack_of_an_event_that_was_not_for_it_is_an_incident(mesh: AttackedMesh) -> None:
    """A member acknowledges, for its own agent, a message that it never got: nothing moves, and somebody is told."""
    sent = mesh.victim.send("architect", "not for mallory", sender="builder")["eventId"]
    before = mesh.victim.states(sent)
    liar = mesh.liar()
    with liar.link() as link:
        own = f"agent-of-{liar.node_id}"
        link.say(liar.ack(sent, AckType.PROCESSED, by_node=liar.node_id, by_agent=own))
        link.sync()
    assert set(mesh.victim.states(sent)) <= {*before, "Accepted"}
    mesh.expect_incident(liar, "forged_ack")
    mesh.expect_unharmed()


@pytest.mark.req("PIPE-2", "ACK-3")
def test_a_reply_in_the_name_of_another_reaches_nobody(mesh: AttackedMesh) -> None:
    """A reply "of architect" from another gateway neither closes the delivery nor gets to the agent that asked."""
    mesh.victim.add_agent("asker")
    sent = mesh.victim.send("architect", "what do you say?", sender="asker")["eventId"]
    liar = mesh.liar()
    with liar.link() as link:
        link.say(liar.reply("asker", sent, source_agent_id="architect"))
        link.sync()
    assert mesh.victim.states(sent)[0] in ("Emitted", "Accepted")
    assert mesh.victim.get("/ansible/agents/asker/inbox") == []
    mesh.expect_incident(liar, "forged_ack")
    mesh.expect_unharmed()


@pytest.mark.req("ROUTE-1")
def test_events_for_agents_that_it_cannot_reach_are_given_to_nobody(mesh: AttackedMesh) -> None:
    """For an agent elsewhere, for one that nobody has, for one that another gateway is to engage: no inbox has them."""
    liar = mesh.liar()
    with liar.link() as link:
        engaged_elsewhere = liar.head_of()["trace"]
        link.say(
            liar.message("architect"),
            liar.message("nobody"),
            liar.message("builder", trace=replace(engaged_elsewhere, engaged_by={"builder": "mbp-jane"})),
        )
        link.sync()
    mesh.expect_unharmed()


@pytest.mark.req("RTY-3", "CUR-1")
def test_a_replayed_batch_is_taken_once(mesh: AttackedMesh) -> None:
    """The same frame a hundred times, and the same events in new frames: the agent has had the message once."""
    liar = mesh.liar()
    with liar.link() as link:
        real = liar.message("builder", "said once")
        frame = link.say(real)
        link.send(*[frame] * 100)
        link.sync()
        link.say(real)
        link.say(real)
        link.sync()
    mesh.honest.append(real.event_id)
    mesh.expect_unharmed()


LIES = {
    # A victim that mirrors has the whole outbox before it, where the numbers are a matter of the chain.
    "a jump of the numbers inside a batch": ("conflict", {"first_seq": 1_000}),
    "an event before the cursor": ("conflict", {"first_seq": 0}),
    "the head of another end": ("conflict", {}),
    "a stream for somebody else": ("conflict", {"reader": "mbp-jane"}),
    "the signature of another": ("node_proof_invalid", {}),
}


@pytest.mark.req("PIPE-9", "CUR-1", "ENV-2")
@pytest.mark.parametrize("lie", list(LIES))
def test_a_batch_that_does_not_fit_is_refused_and_moves_no_cursor(mesh: AttackedMesh, lie: str) -> None:
    """Numbers that jump, heads of another end, another reader's stream, another's signature: refused."""
    code, how = LIES[lie]
    liar = mesh.liar()
    with liar.link() as link:
        frame = link.batch([liar.message("builder")], **how)
        if lie == "the head of another end":
            other = link.batch([liar.message("builder"), liar.message("builder")])
            frame = replace(frame, head=other.head, signature=other.signature)
        if lie == "the signature of another":
            frame = link.batch([liar.message("builder")], signer=mesh.liar().identity)
        link.send(frame)
        assert link.refusal() == code
    mesh.expect_audited(liar, code)
    with liar.link() as link:
        assert _position(link, liar) in (None, 0)
    mesh.expect_unharmed()


def _position(link: LiarLink, liar: Liar) -> int | None:
    """Where the victim goes on reading, should it ask at all: who lied about its outbox is not asked for a while."""
    link.sync()
    wish = link.wishes.get((liar.node_id, False)) or link.wishes.get((liar.node_id, True))
    return None if wish is None else wish.after_seq


@pytest.mark.req("CUR-3", "CUR-6")
def test_a_batch_from_further_on_waits_for_what_is_missing(mesh: AttackedMesh) -> None:
    """A batch after a hole is not taken: the victim asks for what is missing, and takes nothing until it comes."""
    liar = mesh.liar()
    with liar.link() as link:
        wish = link.asked()
        ahead = Subscribe(
            source=liar.node_id, epoch=liar.epoch, after_seq=1_000_000, after_chain=bytes(32), whole=wish.whole
        )
        link.send(link.batch([liar.message("builder")], wish=ahead))
        again = link.expect(Subscribe)
        assert again.after_seq == wish.after_seq
    mesh.expect_unharmed()


@pytest.mark.req("CUR-1", "PIPE-7")
def test_credit_beyond_what_was_sent_gives_nothing_away(mesh: AttackedMesh) -> None:
    """A reader that claims to have read to the end of time gets its own stream, and nothing else."""
    liar = mesh.liar()
    victim = mesh.victim.node
    with liar.link() as link:
        link.asked()
        link.send(
            Subscribe(source=victim, after_seq=0, after_chain=CHAIN_START),
            Credit(source=victim, through_seq=2**62, bytes=2**62),
            Subscribe(source="mbp-jane", after_seq=0, after_chain=CHAIN_START),
            Credit(source="mbp-jane", through_seq=2**62, bytes=2**62),
        )
        link.sync()
        assert not [each for each in link.seen if isinstance(each, Events) and each.events]
    mesh.expect_unharmed()
