"""Every request body refuses the fields that it does not know: a misspelled word must not be passed over."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar

from agentpost.config import Settings
from agentpost.edges.http.operator import operator_app
from agentpost.edges.http.public import public_site
from agentpost.edges.seed_link import SeedLinks
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock, SeededChance
from tests.edges.running import served_gateway

# Gateways of other versions say these to each other: what one does not know yet is passed over.
BETWEEN_GATEWAYS = {"/ansible/auth/challenge", "/ansible/auth/exchange"}
# MBX-1: unknown fields of a mailbox message are kept. A declaration is read, and checked, by `read_declaration`.
FREE = {
    "/ansible/capabilities",
    "/ansible/mailbox",
    "/ansible/mailbox/{session:str}/enqueue",
    "/ansible/mailbox/{session:str}/{operation:str}",
}


def bodies(app: Litestar) -> Iterator[tuple[str, Any]]:
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            body = handler.parsed_fn_signature.parameters.get("data")
            if body is not None:
                yield route.path, body.raw


def structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a body consists of, those inside others included."""
    if isinstance(kind, msgspec.inspect.StructType):
        yield kind.cls
        for field in kind.fields:
            yield from structs_in(field.type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for each in kind.types:
            yield from structs_in(each)
    elif isinstance(kind, msgspec.inspect.Metadata):
        yield from structs_in(kind.type)
    else:
        for name in ("item_type", "value_type"):
            if hasattr(kind, name):
                yield from structs_in(getattr(kind, name))


async def test_every_body_knows_its_fields(tmp_path: Path) -> None:
    """Of both doors, at any depth. What is left out of this rule is named above, with the reason."""
    settings = Settings(home=tmp_path / "home", node_id="vps-jane", listen_port=0)
    gateway = Gateway(settings, clock=FakeClock(), chance=SeededChance(1))
    await gateway.start()
    try:
        found = {
            path: list(structs_in(msgspec.inspect.type_info(body)))
            for app in (operator_app(gateway, SeedLinks(gateway)), public_site(gateway))
            for path, body in bodies(app)
        }
    finally:
        await gateway.stop()
    assert len(found) > 40
    assert {path for path, structs in found.items() if not structs} == FREE
    lenient = {
        path
        for path, structs in found.items()
        if not all(each.__struct_config__.forbid_unknown_fields for each in structs)
    }
    assert lenient == BETWEEN_GATEWAYS


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/operator/invites", {"node": "mbp-jane", "ttlSecond": 1}, "ttlSecond"),
        ("/operator/invites/withdraw", {"inviteId": "inv_x", "now": True}, "now"),
        ("/operator/join", {"url": "http://127.0.0.1:1", "token": "x", "node": "y"}, "node"),
        ("/operator/revoke", {"node": "mbp-jane", "dryRun": True}, "dryRun"),
        ("/operator/lake/export", {"nwo": True}, "nwo"),
    ],
)
def test_a_misspelled_field_is_named(tmp_path: Path, path: str, body: dict[str, Any], field: str) -> None:
    """`ttlSecond` makes no invite of 15 minutes: the refusal names the field, and nothing is done."""
    with served_gateway(tmp_path / "home", clock=FakeClock()) as served:
        with pytest.raises(Refusal, match=field) as refused:
            served.operator.post(path, body)
        assert refused.value.code is Code.INVALID_FIELD
        assert served.operator.get("/operator/invites") == {"invites": []}
