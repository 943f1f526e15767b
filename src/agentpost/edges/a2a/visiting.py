"""One call of a peer, from the door to the handler: who calls, which agent is called, and how long it may wait."""

import asyncio

from msgspec import Struct

from agentpost.auth.external.admission import Admitted
from agentpost.edges.a2a.exposing import Exposed
from agentpost.protocol.errors import Code, Refusal

__all__ = ["VISIT", "Visit"]

# Where the door leaves it for the handler, in the scope of the request.
VISIT = "agentpost.visit"


class Visit(Struct, kw_only=True):
    """`ended` is set when the session ends. What came of the call is written into the last two, for the audit."""

    admitted: Admitted
    exposed: Exposed
    ended: asyncio.Event
    corr_id: str | None = None
    refusal: Refusal | None = None

    @property
    def peer_id(self) -> str:
        return self.admitted.session.agent_id

    @property
    def agent_id(self) -> str:
        return self.exposed.agent_id

    def expect_own_token(self) -> None:
        """Refuse a token for a context: what it allows ends with it in a few minutes, notifications do not (EXT-6)."""
        if self.admitted.claims.context_id is not None:
            raise Refusal(
                Code.SCOPE_DENIED, "push notifications need the access token of the session, not one for a context"
            )
