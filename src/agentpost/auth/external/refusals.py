"""A refusal for want of a good token or proof: the code is that of the call, `error` the word of RFC 9449 for it."""

from typing import Final

from agentpost.auth.external.proofs import USE_NONCE, Flaw
from agentpost.protocol.errors import Code, Refusal

__all__ = ["Unproven", "unproven"]

_TRY_AGAIN: Final = "Put the DPoP-Nonce of this answer into the proof as `nonce`, and send the request again."
_SIGN_ANEW: Final = "Sign a new proof for exactly this request; docs/external-agents.md shows how."


class Unproven(Refusal):
    """An edge tells the client so in the manner of its protocol: over HTTP in WWW-Authenticate."""

    def __init__(
        self, code: Code, message: str, *, error: str, hint: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(code, message, hint=hint, field=field)
        self.error = error


def unproven(code: Code, flaw: Flaw, *, field: str | None = None) -> Unproven:
    """The flaw of a proof as the refusal of the call that it came with."""
    hint = _TRY_AGAIN if flaw.error == USE_NONCE else _SIGN_ANEW
    return Unproven(code, flaw.message, error=flaw.error, hint=hint, field=field)
