"""What the end of a delivery means for its sender."""

import pytest

from agentpost.protocol.delivery import TAKEN, Delivery, has_failed
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.testing import an_event_id


@pytest.mark.parametrize(
    ("state", "reason", "failed"),
    [
        (DeliveryState.PROCESSED, None, False),
        (DeliveryState.PROCESSED, TAKEN, False),
        (DeliveryState.PROCESSED, "expired", True),
        (DeliveryState.REPLIED, None, False),
        (DeliveryState.DEAD_LETTER, "max_attempts", True),
        (DeliveryState.ACCEPTED, None, False),
        (DeliveryState.INCIDENT, "sla_missed", False),
    ],
)
def test_what_has_failed(state: DeliveryState, reason: str | None, failed: bool) -> None:
    """What was given up, here or there. What somebody else took, or what may still come to an end, has not failed."""
    delivery = Delivery(event_id=an_event_id("one"), to_agent_id="bob", state=state, reason=reason)
    assert has_failed(delivery) is failed
