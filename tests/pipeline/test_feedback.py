"""What the pipeline hands back: real gateways take it, once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agentpost.edges.cli.pipeline_report import _Door
from agentpost.pipeline.feedback import PATH, Feedback, collect, send_feedback
from agentpost.protocol.errors import Code, Refusal
from tests.edges.running import RunningGateway, running_gateway

TABLES = {
    "integrity": pa.table(
        {
            "rule": ["gap", "black_hole", "orphan_ack"],
            "node": ["vps-jane", "vps-jane", "far-away"],
            "epoch": ["e1", "e1", "e9"],
            "seq": [5, 6, 7],
            "event_id": [None, "evt_01KJHZE0MRNA9946C5W8QE1JRY", "evt_01KJHZE0MRNA9946C5W8QE1JRZ"],
            "agent_id": [None, "bob", "eve"],
            "corr_id": [None, "corr_01KJHZE0MRNA9946C5W8QE1JRY", None],
        }
    ),
    "reviews": pa.table(
        {
            "review_key": ["abcdef0123456789"],
            "trigger": ["eta_missed"],
            "capability_id": ["docs.review"],
            "delegation_skill_version": ["1.2.0"],
            "executor_skill_version": pa.array([None], pa.string()),
            "failure_class": pa.array([None], pa.string()),
            "sample_corr_ids": [["corr_01KJHZE0MRNA9946C5W8QE1JRY"]],
            "first_us": [1_772_036_530_000_000],
        }
    ),
}


def read(name: str, columns: Sequence[str]) -> pa.Table | None:
    return TABLES[name].select(list(columns)) if name in TABLES else None


@pytest.fixture
def gateway(tmp_path: Path):
    with running_gateway(tmp_path / "vps-jane") as found:
        yield found


def incidents(gateway: RunningGateway, *, only_open: bool = False) -> list[dict[str, Any]]:
    query = {"only_open": str(only_open).lower(), "limit": 500}
    return [each for each in gateway.operator.get("/ansible/incidents", query) if each["kind"].startswith("pipeline.")]


@pytest.mark.req("OBS-9")
def test_a_repeated_run_adds_nothing(gateway: RunningGateway) -> None:
    """Findings become incidents and review items enter the room's queue, once, however often they are handed back."""
    door = _Door(gateway.operator)
    (first,) = send_feedback(collect(read), [door])
    assert (first.node, first.raised, first.known, first.reviews_added) == ("vps-jane", 3, 0, 1)
    raised = incidents(gateway)
    assert {(each["kind"], each["subject"]) for each in raised} == {
        ("pipeline.gap", "vps-jane/e1/5"),
        ("pipeline.black_hole", "evt_01KJHZE0MRNA9946C5W8QE1JRY bob vps-jane/e1/6"),
        ("pipeline.orphan_ack", "evt_01KJHZE0MRNA9946C5W8QE1JRZ eve far-away/e9/7"),
    }
    (second,) = send_feedback(collect(read), [door])
    assert (second.raised, second.known, second.reviews_added, second.reviews_refused) == (0, 3, 0, None)
    assert incidents(gateway) == raised


def test_what_an_operator_closed_stays_closed(gateway: RunningGateway) -> None:
    """A finding is about history: once its incident was closed it is not raised again, a restart in between."""
    send_feedback(collect(read), [_Door(gateway.operator)])
    gateway.operator.post(f"/ansible/incidents/{incidents(gateway)[0]['id']}/close")
    gateway.end()
    with running_gateway(gateway.home) as again:
        (told,) = send_feedback(collect(read), [_Door(again.operator)])
        assert (told.raised, told.known, told.reviews_added) == (0, 3, 0)
        assert len(incidents(again, only_open=True)) == 2


def test_each_gateway_hears_of_its_own(gateway: RunningGateway, tmp_path: Path) -> None:
    """With several gateways at hand each gets the findings of its node, and the first the rest."""
    with running_gateway(tmp_path / "far-away", node="far-away", tier="edge") as other:
        told = send_feedback(collect(read), [_Door(other.operator), _Door(gateway.operator)])
        assert [(each.node, each.raised) for each in told] == [("far-away", 1), ("vps-jane", 2)]
        # An edge gateway may not write the review queue; the next one may.
        assert [each.reviews_added for each in told] == [0, 1]
        assert told[0].reviews_refused is not None
        assert [each["kind"] for each in incidents(other)] == ["pipeline.orphan_ack"]


def test_a_watermark_of_another_epoch_is_refused(gateway: RunningGateway) -> None:
    """A watermark that speaks of another life of the outbox is refused, and nothing else of the request is taken."""
    feedback = Feedback(watermarks={"vps-jane": {"epoch": "long-gone", "throughSeq": 5}})
    with pytest.raises(Refusal) as refused:
        send_feedback(feedback, [_Door(gateway.operator)])
    assert refused.value.code is Code.EPOCH_MISMATCH


@pytest.mark.parametrize(
    "body",
    [
        {"findings": [{"rule": "No Rule"}]},
        {"findings": [{"rule": "gap", "seq": -1}]},
        {"findings": [{"rule": "gap", "payload": "x"}]},
        {"reviews": [{"reviewId": "rev_1"}]},
        {"watermark": {"epoch": "e"}},
    ],
)
def test_nonsense_is_refused_by_name(gateway: RunningGateway, body: dict[str, Any]) -> None:
    """What is no finding, review or watermark is refused with a code, and nothing is raised."""
    with pytest.raises(Refusal) as refused:
        gateway.operator.post(PATH, body)
    assert refused.value.status == 400
    assert incidents(gateway) == []


def test_the_api_describes_it(gateway: RunningGateway) -> None:
    """The endpoint is in the OpenAPI document, with its fields."""
    document = gateway.operator.get("/ansible/openapi/openapi.json")
    assert PATH in document["paths"]
    assert "throughSeq" in document["components"]["schemas"]["Watermark"]["properties"]
