"""What the pipeline found becomes incidents, once each, however long ago that was."""

import pytest

from agentpost.delivery.findings import FindingsDesk, PipelineFinding
from agentpost.testing import START_MS, FakeClock, MemoryStore

GAP = PipelineFinding(rule="gap", node="node-b", epoch="first", seq=7)


@pytest.mark.req("OBS-9")
async def test_a_finding_is_told_once_also_after_its_incident_was_forgotten() -> None:
    """A repeated run adds nothing: not while the incident is open, not when it was closed, not when it was pruned."""
    store, clock = MemoryStore(node_id="node-a", epoch="first"), FakeClock()
    desk = FindingsDesk(store=store, clock=clock)
    other = PipelineFinding(rule="fork", node="node-b", epoch="first", seq=7)
    first = await desk.take([GAP, GAP, other])
    assert (first.raised, first.known) == (2, 1)
    assert [each.kind for each in store.incidents()] == ["pipeline.gap", "pipeline.fork"]
    await store.close_incident("pipeline.gap", GAP.subject, at_ms=START_MS)
    assert (await desk.take([GAP])).raised == 0
    await store.prune_records(now_ms=0, before_ms=START_MS + 1)
    assert [each.kind for each in store.incidents(open_only=False)] == ["pipeline.fork"]
    again = await desk.take([GAP, other])
    assert (again.raised, again.known) == (0, 2)
