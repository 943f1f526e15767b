"""The card of an agent: what it can do, where it is called, and what a caller has to have."""

from typing import Final

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from a2a.utils.constants import PROTOCOL_VERSION_1_0, TransportProtocol

from agentpost import __version__
from agentpost.auth.external.scopes import TASK_CREATE, TASK_READ
from agentpost.edges.a2a.exposing import Exposed
from agentpost.protocol.snapshot import CapabilityRecord

__all__ = ["INPUT_MODES", "agent_card"]

INPUT_MODES: Final = ("text/plain", "application/json")
_SCHEME: Final = "dpop"
_HOW: Final = (
    "The operator of the gateway invites the caller; the invite is exchanged at {base}/ansible/agent/auth/exchange for "
    "an access token, which is bound to a key of the caller. Every request carries the token (Authorization: DPoP …) "
    "and a proof of the key (header DPoP, RFC 9449, with the hash of the body as `bh` and the last answer's nonce)."
)


def agent_card(
    exposed: Exposed, skills: list[CapabilityRecord], *, base_url: str, path: str, node_id: str
) -> AgentCard:
    """`base_url` is how the gateway is reached from outside, `path` the agent's place on it."""
    url = f"{base_url}{path}"
    scheme = HTTPAuthSecurityScheme(scheme="DPoP", bearer_format="JWT", description=_HOW.format(base=base_url))
    return AgentCard(
        name=exposed.agent_id,
        description=exposed.description or f"The agent {exposed.agent_id}, through the gateway {node_id}.",
        version=__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding.value, protocol_version=PROTOCOL_VERSION_1_0)
            for binding in (TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON)
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        security_schemes={_SCHEME: SecurityScheme(http_auth_security_scheme=scheme)},
        security_requirements=[SecurityRequirement(schemes={_SCHEME: StringList(list=[TASK_CREATE, TASK_READ])})],
        default_input_modes=INPUT_MODES,
        default_output_modes=INPUT_MODES,
        skills=[_skill(each) for each in skills] or [_any_work()],
    )


def _skill(capability: CapabilityRecord) -> AgentSkill:
    name = capability.name or capability.capability_id
    version = f", version {capability.version}" if capability.version else ""
    return AgentSkill(
        id=capability.capability_id,
        name=name,
        description=f"{name}{version}. Name it as metadata.skillId of a message; its input is the data of one part.",
        tags=[capability.capability_id],
    )


def _any_work() -> AgentSkill:
    return AgentSkill(
        id="tasks",
        name="Tasks",
        description="Takes a task in words, says how it goes, and answers with the result.",
        tags=["tasks"],
    )
