"""Secrets among the options of agents, encrypted where they are kept: a copy of the database gives nothing away.

The key is derived from the node's own signing key, which is a file beside the database and never in it. Bound to the
agent and the option, so that a secret cannot be put in another's place. Each runtime declares
which of its options are secret.
"""

import base64
import json
from collections.abc import Callable, Collection
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

__all__ = ["AgentSecrets"]

_PURPOSE: Final = b"agentpost agent secrets 1"
_SEALED: Final = "sealed"
_NONCE_BYTES: Final = 12


class AgentSecrets:
    """Seals the secrets of an agent before it is kept, and opens them for its runtime.

    `secret_options` gives the names of the secret options of a runtime, in camelCase.
    """

    def __init__(
        self, signing: Ed25519PrivateKey, chance: Chance, secret_options: Callable[[str], Collection[str]]
    ) -> None:
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(signing.private_bytes_raw())
        self._cipher = AESGCM(key)
        self._chance = chance
        self._secret_options = secret_options

    def seal(self, agent: LocalAgent) -> LocalAgent:
        """The agent as it is kept. What is sealed already stays as it is."""
        return self._changed(agent, self._secrets_of(agent), self._sealed)

    def open(self, agent: LocalAgent) -> LocalAgent:
        """The agent as its runtime needs it. Refused if the secrets were sealed with the key of another node."""
        # Also what an earlier version of the runtime declared.
        sealed = [name for name, value in agent.options.items() if _is_sealed(value)]
        return self._changed(agent, sealed, self._opened)

    def shown(self, agent: LocalAgent) -> dict[str, Any]:
        """The options without the secrets in them: what a list may show."""
        hidden = self._secrets_of(agent)
        return {name: "***" if name in hidden or _is_sealed(value) else value for name, value in agent.options.items()}

    def _secrets_of(self, agent: LocalAgent) -> list[str]:
        """The secret options that the agent has, as they are spelled there: snake_case is another spelling."""
        declared = {_letters(name) for name in self._secret_options(agent.runtime)}
        return [name for name in agent.options if _letters(name) in declared]

    def _changed(self, agent: LocalAgent, names: Collection[str], change: Any) -> LocalAgent:
        if not names:
            return agent
        changed = {name: change(agent.agent_id, name, agent.options[name]) for name in names}
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


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


def _bound_to(agent_id: str, name: str) -> bytes:
    return f"{agent_id}\0{name}".encode()
