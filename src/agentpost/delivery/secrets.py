"""Secrets among the options of agents, encrypted where they are kept: a copy of the database gives nothing away.

The key is derived from the node's own signing key, which is a file beside the database and never in it. Bound to the
agent and the option, so that a secret cannot be put in another's place. Knows nothing of what the options are for.
"""

import base64
import json
from typing import Any, Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec.structs import replace

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.values import LocalAgent
from agentpost.world import Chance

__all__ = ["SECRET_OPTIONS", "AgentSecrets"]

# What an endpoint or a program is given to prove something with.
SECRET_OPTIONS: Final = frozenset({"secret", "env", "headers"})

_PURPOSE: Final = b"agentpost agent secrets 1"
_SEALED: Final = "sealed"
_NONCE_BYTES: Final = 12


class AgentSecrets:
    """Seals the secrets of an agent before it is kept, and opens them for its runtime."""

    def __init__(self, signing: Ed25519PrivateKey, chance: Chance) -> None:
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(signing.private_bytes_raw())
        self._cipher = AESGCM(key)
        self._chance = chance

    def seal(self, agent: LocalAgent) -> LocalAgent:
        """The agent as it is kept. What is sealed already stays as it is."""
        return self._changed(agent, self._sealed)

    def open(self, agent: LocalAgent) -> LocalAgent:
        """The agent as its runtime needs it. Refused if the secrets were sealed with the key of another node."""
        return self._changed(agent, self._opened)

    def _changed(self, agent: LocalAgent, change: Any) -> LocalAgent:
        secrets = {name: value for name, value in agent.options.items() if name in SECRET_OPTIONS}
        if not secrets:
            return agent
        changed = {name: change(agent.agent_id, name, value) for name, value in secrets.items()}
        return replace(agent, options=agent.options | changed)

    def _sealed(self, agent_id: str, name: str, value: object) -> object:
        if _is_sealed(value):
            return value
        nonce = self._chance.entropy(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, json.dumps(value).encode(), _bound_to(agent_id, name))
        return {_SEALED: base64.b64encode(sealed).decode("ascii")}

    def _opened(self, agent_id: str, name: str, value: object) -> object:
        if not _is_sealed(value):
            return value
        try:
            raw = base64.b64decode(cast(dict[str, str], value)[_SEALED], validate=True)
            return json.loads(self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _bound_to(agent_id, name)))
        except (InvalidTag, ValueError):
            raise Refusal(
                Code.CONFLICT,
                f"the {name} of {agent_id} was kept by a gateway with another key",
                field=f"options.{name}",
                hint="Add the agent again, with its secret.",
            ) from None


def _is_sealed(value: object) -> bool:
    return isinstance(value, dict) and list(cast(dict[object, object], value)) == [_SEALED]


def _bound_to(agent_id: str, name: str) -> bytes:
    return f"{agent_id}\0{name}".encode()
