"""How agents are served here and how long work may take: the table [work] of the configuration, and [a2a]. Pure."""

from ipaddress import ip_network
from typing import Annotated

from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["A2aSettings", "WorkSettings"]

Seconds = Annotated[int, Meta(ge=1, le=31_536_000)]
Bytes = Annotated[int, Meta(ge=512, le=1_048_576)]


class WorkSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """The defaults suit a mesh that runs by itself: every agent is engaged when something comes for it (OPS-3).

    With `dispatch_incoming` off nobody is engaged, unless the agent itself says so: an operator, or a coordinator's
    loop, reads the inboxes and answers (OPS-2).
    """

    dispatch_incoming: bool = True
    # OPS-5: who gets the context block with everything that they are engaged with, and how large it may be.
    inject_context_agents: tuple[str, ...] = ()
    context_bytes: Bytes = 8_192

    # TASK-8: when the sweep begins to ask.
    claim_sla_seconds: Seconds = 300
    eta_grace_seconds: Seconds = 120
    stale_after_seconds: Seconds = 3_600
    loop_sla_seconds: Seconds = 3_600
    # How long after it was asked a task goes to the backup.
    reassign_after_seconds: Seconds = 300
    # How many messages a sweep of this gateway may send; what does not fit is told in one of them.
    message_budget: Annotated[int, Meta(ge=2, le=1_000)] = 20


class A2aSettings(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The table `[a2a]`: networks that A2A clients may be notified in, as 10.1.0.0/16, besides public addresses."""

    push_networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for each in self.push_networks:
            try:
                ip_network(each)
            except ValueError:
                raise Refusal(
                    Code.INVALID_FIELD, f"push_networks: {each!r:.60} is not a network", field="pushNetworks"
                ) from None
