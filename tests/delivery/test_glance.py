"""Lists and content that is large."""

from agentpost.delivery.glance import Glance
from agentpost.delivery.mailroom import Mailroom
from tests.delivery.dispatching import Gateway, Scripted

_LETTERS = 3 * 1024 * 1024


async def test_a_list_opens_no_more_than_an_answer_may_have(gateway: Gateway) -> None:
    """Of much large mail a list opens some, and says of the rest that it is large; what is small is always opened."""
    large = [gateway.large_message(number, body=str(number) * _LETTERS) for number in range(1, 6)]
    for _, content in large:
        await gateway.fetch_content(content)
    glance = Glance(gateway.sealer.open)
    opened = [glance.open(event) for event in (*(event for event, _ in large), gateway.message(6))]
    assert [(content.body or "")[:5] for content, _ in opened] == ["11111", "22222", "33333", "", "", "bob 6"]
    problems = [problem for _, problem in opened]
    assert problems[:3] == [None, None, None]
    assert all(problem is not None and problem.startswith("large (3,") for problem in problems[3:5])
    assert problems[5] is None


async def test_a_list_goes_on_behind_what_does_not_open(gateway: Gateway) -> None:
    """What has not come yet says so, and is no end of the list."""
    missing, _ = gateway.large_message(1)
    glance = Glance(gateway.sealer.open)
    _, problem = glance.open(missing)
    assert problem is not None
    assert "is not here yet" in problem
    assert glance.open(gateway.message(2))[0].body == "bob 2"


async def test_the_list_of_an_inbox_shows_that_mail_is_large(gateway: Gateway) -> None:
    """An inbox with much large mail is listed at once, and each message can still be read in full."""
    await gateway.hire("ada", Scripted(), kind="pull")
    large = [gateway.large_message(number, body=str(number) * _LETTERS) for number in range(1, 6)]
    for _, content in large:
        await gateway.fetch_content(content)
    await gateway.arrive(*(event for event, _ in large))
    mailroom = Mailroom(
        store=gateway.store,
        sealer=gateway.sealer,
        publisher=gateway.publisher,
        maker=gateway.maker,
        clock=gateway.clock,
        wakeups=gateway.wakeups,
    )
    lines = mailroom.inbox("ada")
    assert [line.problem is None for line in lines] == [True, True, True, False, False]
    read = await mailroom.read("ada", lines[-1].event_id)
    assert (read.content.body or "")[:5] == "55555"
