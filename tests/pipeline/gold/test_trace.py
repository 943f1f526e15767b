"""A trace is in the order of cause and effect, whatever the clocks say."""

import random

import pytest

from agentpost.pipeline.trace import causally_ordered
from tests.pipeline.gold.building import HOUR, SECOND, START_US, Story


@pytest.mark.req("OBS-10")
def test_an_effect_comes_after_its_cause_even_if_its_clock_is_behind() -> None:
    """The gateway that answers is an hour behind: its ACK and reply still follow the message, and their ACK follows."""
    story = Story()
    message = story.send(1, at_us=START_US)
    accepted = story.ack(1, "accepted", at_us=START_US - HOUR)
    reply = story.reply(1, at_us=START_US - HOUR + SECOND)
    heard = story.add("a", "ack", ref_event_id=reply["event_id"], ack_type="accepted", at_us=START_US + 2 * SECOND)
    rows = list(story.rows)
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        assert causally_ordered(rows) == [message, accepted, reply, heard]


@pytest.mark.req("OBS-10")
def test_a_resend_stands_where_its_outbox_has_it() -> None:
    """A resend keeps the time of the first send; its seq tells that it came later."""
    story = Story()
    first = story.send(1, at_us=START_US)
    other = story.send(2, at_us=START_US + 5 * SECOND)
    again = story.send(1, attempt=2, at_us=START_US)
    assert causally_ordered([again, other, first]) == [first, other, again]


def test_a_circle_of_references_is_shown_all_the_same() -> None:
    """Two events that each refer to the other cannot be ordered by cause; neither is lost."""
    story = Story()
    one = story.add("a", "reply", event_id="evt_one", ref_event_id="evt_two")
    two = story.add("b", "reply", event_id="evt_two", ref_event_id="evt_one")
    assert causally_ordered([two, one]) == [one, two]
