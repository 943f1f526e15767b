"""Lanes: which mail of an agent is next."""

from agentpost.delivery.lanes import Lanes, Mail
from agentpost.testing import a_message


def mail(number: int, *, sender: str = "bob", due_at_ms: int = 0) -> Mail:
    return Mail(inbox_seq=number, event=a_message(number, source_agent_id=sender), due_at_ms=due_at_ms)


def lanes_of(*several: Mail, is_ordered: bool = True) -> Lanes:
    lanes = Lanes(is_ordered=is_ordered)
    for each in several:
        lanes.add(each)
    return lanes


def take_all(lanes: Lanes, now_ms: int = 0) -> list[int]:
    taken: list[int] = []
    while (found := lanes.take(now_ms)) is not None:
        taken.append(found.inbox_seq)
        lanes.done(found)
    return taken


def test_the_oldest_comes_first_whoever_sent_it() -> None:
    """Senders share the agent by the age of their mail."""
    lanes = lanes_of(mail(1), mail(2, sender="eve"), mail(3), mail(4, sender="eve"))
    assert take_all(lanes) == [1, 2, 3, 4]
    assert len(lanes) == 0
    assert lanes.next_due_at_ms() is None


def test_one_of_a_sender_is_out_at_a_time() -> None:
    """What a sender said later waits until the earlier has its end."""
    lanes = lanes_of(mail(1), mail(2), mail(3, sender="eve"))
    first, second = lanes.take(0), lanes.take(0)
    assert first is not None
    assert second is not None
    assert (first.inbox_seq, second.inbox_seq, lanes.take(0)) == (1, 3, None)
    lanes.done(first)
    assert take_all(lanes) == [2]


def test_without_an_order_everything_is_out_at_once() -> None:
    """For an agent that takes several at once nothing waits for anything."""
    lanes = lanes_of(mail(1), mail(2), mail(3), is_ordered=False)
    assert [each.inbox_seq for each in (lanes.take(0), lanes.take(0), lanes.take(0)) if each is not None] == [1, 2, 3]


def test_what_waits_is_due_at_its_time_and_holds_back_its_lane() -> None:
    """A retry stands first in its lane and is nobody's before its time."""
    lanes = lanes_of(mail(1, due_at_ms=500), mail(2), mail(3, sender="eve"))
    assert lanes.next_due_at_ms() == 0
    assert take_all(lanes, 499) == [3]
    assert lanes.next_due_at_ms() == 500
    assert take_all(lanes, 500) == [1, 2]


def test_what_is_put_back_waits_again() -> None:
    """Mail that was out comes back with a time, before what is behind it."""
    lanes = lanes_of(mail(1), mail(2))
    assert lanes.take(0) == mail(1)
    lanes.put_back(mail(1, due_at_ms=100))
    assert len(lanes) == 2
    assert lanes.take(99) is None
    assert take_all(lanes, 100) == [1, 2]


def test_mail_that_is_hurried_is_taken_once() -> None:
    """The timer that it had before means nothing any more."""
    lanes = lanes_of(mail(1, due_at_ms=100), mail(2, sender="eve", due_at_ms=200))
    event_id = mail(1).event.event_id
    assert [each.inbox_seq for each in lanes.waiting()] == [1, 2]
    assert lanes.hurry(event_id)
    assert not lanes.hurry(event_id)
    assert take_all(lanes, 0) == [1]
    assert lanes.next_due_at_ms() == 200
    assert take_all(lanes, 1_000) == [2]
