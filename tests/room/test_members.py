"""Who is a member: the same statements give the same members, in whatever order they come."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.protocol.snapshot import NodeTier
from agentpost.room.members import Member, Root, Statement, fold_members

ROOT = Root("root", "key of root")
NODES = ("root", "one", "two", "three", "four")


class Said:
    """Statements as their authors would make them, with names in the place of signatures."""

    def __init__(self) -> None:
        self.all: list[Statement] = []
        self._keys: dict[str, str] = {}

    def say(
        self, by: str, act: str, node_id: str, *, seen: Iterable[Statement] | None = None, **more: Any
    ) -> Statement:
        """What `by` says, having seen these statements, or all."""
        known = fold_members(self.all if seen is None else list(seen), ROOT, signed)
        named = {name: tuple(heads) for name, heads in known.next_statement(by, node_id).items()}
        sig = f"{len(self.all):02} {by} {act} {node_id} with {more.pop('signed_with', f'key of {by}')}"
        statement = Statement(
            by=by,
            node_id=node_id,
            is_admission=act == "admit",
            public_key=more.pop("public_key", f"key of {node_id}") if act == "admit" else "",
            tier=more.pop("tier", NodeTier.BACKBONE),
            at_ms=len(self.all),
            after=more.pop("after", named.get("after", ())),
            prev=more.pop("prev", named.get("prev", ())),
            through=more.pop("through", named.get("through", ())),
            sig=sig,
        )
        self.all.append(statement)
        return statement

    def members(self) -> dict[str, str]:
        """Each node's key, or `revoked`."""
        found = fold_members(self.all, ROOT, signed).nodes
        return {name: "revoked" if each.is_revoked else each.public_key for name, each in sorted(found.items())}


def signed(statement: Statement, public_key: str) -> bool:
    return statement.sig.endswith(f"with {public_key}")


def members_of(statements: list[Statement]) -> dict[str, Member]:
    return dict(sorted(fold_members(statements, ROOT, signed).nodes.items()))


@pytest.mark.req("ROOM-5")
def test_a_chain_of_admissions_leads_to_the_root() -> None:
    """Whom the root admitted may admit others; an edge node may not, nor a node that nobody admitted."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("one", "admit", "two", tier=NodeTier.EDGE)
    said.say("two", "admit", "three")
    said.say("four", "admit", "three")
    assert said.members() == {"one": "key of one", "root": "key of root", "two": "key of two"}


@pytest.mark.req("ROOM-6")
def test_a_later_statement_takes_the_place_of_those_that_it_names() -> None:
    """A revocation, then an admission, and so on: whoever says it, and whatever the clocks say."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("root", "admit", "two", tier=NodeTier.EDGE)
    said.say("one", "revoke", "two")
    assert said.members()["two"] == "revoked"
    said.say("root", "admit", "two", tier=NodeTier.EDGE)
    assert said.members()["two"] == "key of two"


@pytest.mark.req("ROOM-6")
def test_of_two_that_did_not_know_of_each_other_the_revocation_counts() -> None:
    """Two seeds speak of the same node at the same time."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("root", "admit", "two", tier=NodeTier.EDGE)
    before = list(said.all)
    said.say("one", "admit", "two", seen=before, tier=NodeTier.EDGE)
    said.say("root", "revoke", "two", seen=before)
    assert said.members()["two"] == "revoked"


@pytest.mark.req("ROOM-6")
def test_what_a_revoked_seed_said_before_stays_and_nothing_is_slipped_in() -> None:
    """A node that it admitted stays; with its old key it lets nobody in, not even in the name of the past."""
    said = Said()
    said.say("root", "admit", "one")
    admission = said.say("one", "admit", "two", tier=NodeTier.EDGE)
    said.say("root", "revoke", "one")
    said.say("one", "admit", "three", prev=(admission.sig,))
    said.say("one", "admit", "four", prev=())
    assert said.members() == {"one": "revoked", "root": "key of root", "two": "key of two"}


@pytest.mark.req("ROOM-6")
def test_of_two_seeds_that_revoke_each_other_the_senior_one_stays() -> None:
    """Also where the junior one was first, and the other has seen that."""
    for seen_by_root in (1, 2):
        said = Said()
        said.say("root", "admit", "one")
        before = list(said.all)
        said.say("one", "revoke", "root")
        said.say("root", "revoke", "one", seen=[*before, *said.all[1:seen_by_root]])
        assert said.members() == {"one": "revoked", "root": "key of root"}
        assert said.members() == said.members()


@pytest.mark.req("ROOM-5", "ROOM-6")
def test_a_junior_seed_may_revoke_the_root_and_stands_itself() -> None:
    """The machine of the founding seed is stolen: the mesh goes on with the other seed."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("root", "admit", "two", tier=NodeTier.EDGE)
    said.say("one", "revoke", "root")
    said.say("one", "admit", "three", tier=NodeTier.EDGE)
    expected = {"one": "key of one", "root": "revoked", "three": "key of three", "two": "key of two"}
    assert said.members() == expected
    said.say("root", "admit", "four")
    assert said.members() == expected


@pytest.mark.req("ROOM-6")
def test_nobody_saws_off_the_branch_it_sits_on() -> None:
    """A revocation that leaves its own author without an admission is void."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("one", "revoke", "root", through=())
    assert said.members() == {"one": "key of one", "root": "key of root"}


@pytest.mark.req("ROOM-5", "AUTH-7")
def test_a_replaced_key_says_nothing_new() -> None:
    """The seed has a new key; what it said with the old one stays, and whoever has that one says no more."""
    said = Said()
    said.say("root", "admit", "one")
    first = said.say("root", "admit", "two", tier=NodeTier.EDGE)
    said.say("one", "admit", "root", public_key="new key of root")
    said.say("root", "admit", "three", signed_with="new key of root", tier=NodeTier.EDGE)
    said.say("root", "admit", "four", prev=(first.sig,), tier=NodeTier.EDGE)
    assert said.members() == {
        "one": "key of one",
        "root": "new key of root",
        "three": "key of three",
        "two": "key of two",
    }


@pytest.mark.req("ROOM-6")
def test_a_backbone_member_that_becomes_an_edge_node_admits_nobody_any_more() -> None:
    """What it said before stays."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("one", "admit", "two", tier=NodeTier.EDGE)
    said.say("root", "admit", "one", tier=NodeTier.EDGE)
    said.say("one", "admit", "three", tier=NodeTier.EDGE)
    assert said.members() == {"one": "key of one", "root": "key of root", "two": "key of two"}
    assert members_of(said.all)["one"].tier is NodeTier.EDGE


def test_a_node_says_nothing_of_itself() -> None:
    """Neither that it is a member, nor that it is none."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("one", "revoke", "one")
    said.say("two", "admit", "two")
    assert said.members() == {"one": "key of one", "root": "key of root"}


acts = st.tuples(
    st.sampled_from(NODES),
    st.sampled_from(["admit", "admit", "admit", "revoke"]),
    st.sampled_from(NODES),
    st.sampled_from(list(NodeTier)),
    st.sampled_from(["", "", "new "]),
    st.sampled_from(["", "", "new "]),
    st.integers(0, 9),
    st.sampled_from([None, None, None, "nothing", "all"]),
)


@pytest.mark.req("ROOM-3", "ROOM-5", "ROOM-6")
@given(made=st.lists(acts, max_size=14), chance=st.randoms(use_true_random=False))
def test_any_order_of_the_same_statements_gives_the_same_members(
    made: list[tuple[Any, ...]], chance: random.Random
) -> None:
    """Honest and hostile statements, made by nodes that had seen more or less of each other."""
    said = Said()
    for by, act, node_id, tier, subject_key, own_key, unseen, lie in made:
        more: dict[str, Any] = {"tier": tier, "signed_with": f"{own_key}key of {by}"}
        if act == "admit":
            more["public_key"] = f"{subject_key}key of {node_id}"
        if lie is not None:
            named = tuple(each.sig for each in said.all[-12:]) if lie == "all" else ()
            more |= {"after": named, "prev": named, "through": named}
        said.say(by, act, node_id, seen=said.all[: max(len(said.all) - unseen, 0)], **more)
    expected = members_of(said.all)
    for _ in range(5):
        shuffled = list(said.all) + chance.sample(said.all, len(said.all) // 2)
        chance.shuffle(shuffled)
        assert members_of(shuffled) == expected
    assert ROOT.node_id in expected


def test_every_order_of_a_quarrel_gives_the_same_members() -> None:
    """All 720 orders of two seeds that admit, revoke and replace each other."""
    said = Said()
    said.say("root", "admit", "one")
    said.say("root", "admit", "two")
    before = list(said.all)
    said.say("one", "revoke", "two", seen=before)
    said.say("two", "revoke", "one", seen=before)
    said.say("two", "admit", "root", seen=before, public_key="new key of root")
    said.say("root", "admit", "three", signed_with="new key of root")
    assert len({str(members_of(list(order))) for order in itertools.permutations(said.all)}) == 1
