"""What `agentpost.toml` can say, and what each key means. The reference page is made from this."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from agentpost.auth.external.lifetimes import Lifetimes
from agentpost.auth.limits import DEFAULT_ATTEMPTS_PER_ADDRESS, DEFAULT_ATTEMPTS_PER_TOKEN
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.settings import LakeSettings
from agentpost.protocol.snapshot import NodeTier
from agentpost.work.settings import A2aSettings, WorkSettings

__all__ = ["DEFAULT_LISTEN", "KEYS", "TABLES", "Key", "Table"]

DEFAULT_LISTEN: Final = "127.0.0.1:7800"


class Key(NamedTuple):
    """A single value. One whose default is a number is a number."""

    what: str
    default: str | int | None = None


class Table(NamedTuple):
    """A table. Its keys are the fields of `shape`, which say themselves what they mean."""

    what: str
    shape: type[Struct]
    page: str


KEYS: Final[Mapping[str, Key]] = {
    "node": Key("The id of this node: up to 64 letters, digits, dots, dashes and underscores."),
    "tier": Key("`backbone` for a machine that is always on and lets others in, or `edge`.", NodeTier.EDGE.value),
    "listen": Key("host:port of the public port; port 0 takes a free one.", DEFAULT_LISTEN),
    "public_url": Key("Where others reach a backbone gateway; without it, at what it listens on."),
    "tailnet_socket": Key("Where tailscaled answers, for invites that name a machine of the tailnet."),
    "attempts_per_address": Key("Attempts to join that one address may make at once.", DEFAULT_ATTEMPTS_PER_ADDRESS),
    "attempts_per_token": Key("The same for the token of one invite, from wherever.", DEFAULT_ATTEMPTS_PER_TOKEN),
}
TABLES: Final[Mapping[str, Table]] = {
    "a2a": Table("Whom agents that speak A2A may have notified.", A2aSettings, "a2a.md"),
    "delivery": Table("Timers, retries and retention of mail.", DeliveryPolicy, "delivery.md"),
    "external": Table("How long the tokens of agents outside the mesh live.", Lifetimes, "external-agents.md"),
    "lake": Table(
        "Where the outboxes are exported to; `--lake` and `AGENTPOST_LAKE` name a path as well.",
        LakeSettings,
        "lake.md",
    ),
    "work": Table("How agents are served, and how long work may take.", WorkSettings, "tasks.md"),
}
