"""Review items: one for each cause, brought to the coordinator, closed once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.reviews import MAX_SAMPLES, ReviewItem, Trigger, cause_of, review_id, review_key, time_of
from agentpost.testing import START_MS, FakeClock
from agentpost.work.reviews.reporter import ROUTING_MISSES, Case
from tests.edges.running import ServedGateway, agentpost, served_gateway
from tests.work.building import CAPABILITY, a_declaration, write_pair


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    home = tmp_path / "home"
    with served_gateway(home, clock=FakeClock()) as served:
        served.operator.post("/ansible/agents", {"agentId": "scribe"})
        write_pair(home / "skills/scribe")
        served.operator.post("/ansible/capabilities", a_declaration())
        yield served


def report(served: ServedGateway, trigger: Trigger, corr_id: str, **more: str) -> str:
    case = Case(trigger=trigger, capability_id=CAPABILITY, corr_id=corr_id, **more)
    return served.run(lambda: served.gateway.commons.reporter.report(case))


def reviews(served: ServedGateway) -> list[ReviewItem]:
    return served.run(served.gateway.commons.reviews.items)


def test_the_id_of_a_review_tells_its_time_and_its_cause() -> None:
    """Two ids about one cause end alike, whoever made them and whenever; two causes do not."""
    key = review_key("task_failed", CAPABILITY, "1.0.0", "timeout")
    one, other = review_id(key, START_MS), review_id(key, START_MS + 1)
    assert cause_of(one) == cause_of(other)
    assert (time_of(one), time_of(other)) == (START_MS, START_MS + 1)
    assert cause_of(one) != cause_of(review_id(review_key("task_failed", CAPABILITY, "1.0.1", "timeout"), START_MS))


@pytest.mark.req("CAP-6")
@pytest.mark.parametrize("trigger", list(Trigger))
def test_each_trigger_raises_an_item_with_the_versions(served: ServedGateway, trigger: Trigger) -> None:
    """All four triggers end in the review queue, with the versions of the catalog and the conversations as samples."""
    times = ROUTING_MISSES if trigger is Trigger.ROUTING_MISS else 2
    for place in range(times):
        if place == times - 1 and trigger is Trigger.ROUTING_MISS:
            assert reviews(served) == []
        report(served, trigger, f"corr_{place}")
    (item,) = reviews(served)
    assert item.capability_id == CAPABILITY
    assert (item.delegation_skill_version, item.executor_skill_version) == ("1.0.0", "1.0.0")
    assert item.failure_class == trigger.value
    assert item.sample_corr_ids == tuple(f"corr_{place}" for place in range(times))
    key = f"skillReviewQueue:{item.review_id}"
    assert served.run(lambda: served.gateway.host.room.record("coordination", key)) is not None


@pytest.mark.req("CAP-6")
def test_one_cause_is_one_item_with_so_many_samples(served: ServedGateway) -> None:
    """Thirty failures of one class are one item; another class is another."""
    for place in range(30):
        report(served, Trigger.TASK_FAILED, f"corr_{place}", failure_class="timeout")
    report(served, Trigger.TASK_FAILED, "corr_x", failure_class="crash")
    found = {item.failure_class: item for item in reviews(served)}
    assert set(found) == {"timeout", "crash"}
    assert len(found["timeout"].sample_corr_ids) == MAX_SAMPLES
    shown = served.operator.get(f"/ansible/reviews/{found['timeout'].review_id}")
    assert shown["casesHere"] == 30


@pytest.mark.req("CAP-6")
def test_cases_that_come_at_once_are_all_counted(served: ServedGateway) -> None:
    """Three misses of a capability in one moment are three, and worth an item."""
    reporter = served.gateway.commons.reporter
    cases = [
        Case(trigger=Trigger.ROUTING_MISS, capability_id=CAPABILITY, corr_id=f"corr_{place}")
        for place in range(ROUTING_MISSES)
    ]

    async def report_all() -> list[str]:
        return await asyncio.gather(*map(reporter.report, cases))

    assert len(set(served.run(report_all))) == 1
    (item,) = reviews(served)
    assert sorted(item.sample_corr_ids) == [case.corr_id for case in cases]


@pytest.mark.req("CAP-6")
def test_what_was_closed_stays_closed_until_it_happens_again(served: ServedGateway) -> None:
    """Closing takes an item off the queue; the pipeline does not bring it back; a new case opens a new one."""
    first = report(served, Trigger.TASK_FAILED, "corr_1", failure_class="timeout")
    (item,) = reviews(served)
    home = ("--home", str(served.gateway.settings.home))
    assert first in agentpost("review", "list", "-o", "json", *home).stdout
    assert "corr_1" in agentpost("review", "show", first, *home).stdout
    assert agentpost("review", "close", first, *home).returncode == 0
    assert reviews(served) == []
    with pytest.raises(Refusal) as caught:
        served.operator.post(f"/ansible/reviews/{first}/close")
    assert caught.value.code is Code.NOT_FOUND
    body = {
        "reviewId": review_id(review_key("task_failed", CAPABILITY, "1.0.0", "timeout"), START_MS - 1000),
        "capabilityId": CAPABILITY,
        "delegationSkillVersion": "1.0.0",
        "executorSkillVersion": "1.0.0",
        "failureClass": "timeout",
        "sampleCorrIds": ["corr_1"],
        "createdAt": item.created_at,
    }
    assert served.operator.post("/ansible/pipeline/findings", {"reviews": [body]})["reviewsAdded"] == 0
    served.clock.advance(60_000)
    second = report(served, Trigger.TASK_FAILED, "corr_2", failure_class="timeout")
    (again,) = reviews(served)
    assert again.review_id == second != first
    assert again.sample_corr_ids == ("corr_2",)


@pytest.mark.req("CAP-6", "OBS-9")
def test_the_pipeline_and_the_gateway_make_one_item_of_one_cause(served: ServedGateway) -> None:
    """What both have found stands in the queue once, with the samples of both."""
    report(served, Trigger.TASK_FAILED, "corr_1", failure_class="timeout")
    body = {
        "reviewId": review_id(review_key("task_failed", CAPABILITY, "1.0.0", "timeout"), START_MS - 5000),
        "capabilityId": CAPABILITY,
        "delegationSkillVersion": "1.0.0",
        "executorSkillVersion": "1.0.0",
        "failureClass": "timeout",
        "sampleCorrIds": ["corr_1", "corr_9"],
        "createdAt": "2026-02-25T16:22:05.000Z",
    }
    assert served.operator.post("/ansible/pipeline/findings", {"reviews": [body]})["reviewsAdded"] == 1
    (item,) = reviews(served)
    assert item.sample_corr_ids == ("corr_1", "corr_9")
    assert served.operator.post("/ansible/pipeline/findings", {"reviews": [body]})["reviewsAdded"] == 0
