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

    dispatch_incoming: Annotated[
        bool, Meta(description="Whether agents are engaged when something comes; each agent can say otherwise.")
    ] = True
    # OPS-5
    inject_context_agents: Annotated[
        tuple[str, ...], Meta(description="Who gets the context block with everything that they are engaged with.")
    ] = ()
    context_bytes: Annotated[Bytes, Meta(description="How large the context block may be.")] = 8_192

    # TASK-8: when the sweep begins to ask.
    claim_sla_seconds: Annotated[
        Seconds, Meta(description="A task that nobody has claimed for so long, or whose gateway is silent.")
    ] = 300
    eta_grace_seconds: Annotated[Seconds, Meta(description="A task that is so much later than its ETA.")] = 120
    stale_after_seconds: Annotated[Seconds, Meta(description="A task of which nothing was heard for so long.")] = 3_600
    loop_sla_seconds: Annotated[Seconds, Meta(description="An end of a task that nobody has read for so long.")] = 3_600
    reassign_after_seconds: Annotated[
        Seconds, Meta(description="How long after it was asked for a task goes to the backup.")
    ] = 300
    message_budget: Annotated[
        int,
        Meta(
            ge=2, le=1_000, description="How many messages a sweep may send; what does not fit is told in one of them."
        ),
    ] = 20


class A2aSettings(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The table `[a2a]`."""

    push_networks: Annotated[
        tuple[str, ...],
        Meta(description="Networks that A2A clients may be notified in, as 10.1.0.0/16, besides public addresses."),
    ] = ()

    def __post_init__(self) -> None:
        for each in self.push_networks:
            try:
                ip_network(each)
            except ValueError:
                raise Refusal(
                    Code.INVALID_FIELD, f"push_networks: {each!r:.60} is not a network", field="pushNetworks"
                ) from None
