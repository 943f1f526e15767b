"""The page of both doors, from the OpenAPI documents that a gateway serves."""

import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from agentpost.config import Settings
from agentpost.edges.http.openapi import DOCUMENT_PATH, document_of
from agentpost.edges.http.operator import operator_app
from agentpost.edges.http.public import public_site
from agentpost.edges.reference.markdown import code, table
from agentpost.edges.reference.schemas import default_of, kind_of, limits_of
from agentpost.edges.runtimes import make_runtime
from agentpost.edges.seed_link import SeedLinks
from agentpost.gateway import Gateway
from agentpost.world import SystemChance, SystemClock

__all__ = ["DOORS", "http_page", "openapi_documents"]

Json = Mapping[str, Any]

DOORS: Final = {
    "The operator's socket": "`operator.sock` in the gateway's home, for whoever can open it: the owner of the home.",
    "The public port": "What `listen` says, for other gateways and for agents outside the mesh. Besides these calls it "
    "has the room and the links of gateways, as WebSockets (docs/joining.md), and A2A below `/a2a/` (docs/a2a.md).",
}
_HEAD: Final = f"""# HTTP

A gateway serves this page to programs, as OpenAPI 3.1, at `{DOCUMENT_PATH}/openapi.json` of each of its doors. Bodies
and answers are JSON. Refusals have one shape; `agentpost errors` explains the codes.

```
curl --unix-socket ~/.agentpost/vps-jane/operator.sock http://gateway/operator/status
```
"""


async def openapi_documents() -> tuple[Json, ...]:
    """The documents of the two doors, in the order of `DOORS`; from a gateway that lives for just that."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(home=Path(directory) / "reference", node_id="reference", listen_port=0)
        gateway = Gateway(settings, clock=SystemClock(), chance=SystemChance(), runtimes=make_runtime)
        await gateway.start()
        try:
            return document_of(operator_app(gateway, SeedLinks(gateway))), document_of(public_site(gateway))
        finally:
            await gateway.stop()


def http_page(documents: tuple[Json, ...]) -> str:
    parts = [_HEAD]
    for (door, what), document in zip(DOORS.items(), documents, strict=True):
        parts += [f"## {door}\n", f"{what}\n", *_door(document)]
    shapes: dict[str, Json] = {}
    for document in documents:
        shapes |= document["components"].get("schemas", {})
    parts.append("## Shapes\n")
    parts += [_shape(name, shapes[name]) for name in sorted(shapes)]
    return "\n".join(parts)


def _door(document: Json) -> Iterator[str]:
    calls = [(path, method, call) for path, item in document["paths"].items() for method, call in item.items()]
    calls.sort(key=lambda each: each[2]["tags"][0])
    for tag, of_tag in groupby(calls, key=lambda each: each[2]["tags"][0]):
        yield f"### {tag}\n"
        for path, method, call in of_tag:
            yield from _call(path, method, call)


def _call(path: str, method: str, call: Json) -> Iterator[str]:
    yield f"#### {method.upper()} {path}\n"
    yield f"{call['summary']}. {call.get('description', '')}".strip() + "\n"
    rows = [
        (
            code(each["name"]),
            each["in"],
            kind_of(each["schema"], is_linked=True),
            default_of(each["schema"]),
            each.get("description", ""),
        )
        for each in call.get("parameters", ())
    ]
    yield table(("parameter", "in", "type", "default", "what it is"), rows)
    if "requestBody" in call:
        yield f"Takes {_content(call['requestBody'])}.\n"
    good = [f"{status} {_content(each)}".strip() for status, each in call["responses"].items() if "$ref" not in each]
    bad = [status for status, each in call["responses"].items() if "$ref" in each]
    yield f"Answers {', '.join(good)}." + (f" Refuses with {', '.join(bad)}." if bad else "") + "\n"


def _content(part: Json) -> str:
    kinds = [kind_of(each["schema"], is_linked=True) for each in part.get("content", {}).values() if "schema" in each]
    return ", ".join(kinds)


def _shape(name: str, schema: Json) -> str:
    required = schema.get("required", ())
    rows = [
        (
            code(field),
            kind_of(each, is_linked=True),
            "has to be said" if field in required else default_of(each),
            limits_of(each),
        )
        for field, each in schema.get("properties", {}).items()
    ]
    said = [f"### {name}\n"]
    if description := schema.get("description"):
        said.append(f"{description}\n")
    if choices := schema.get("enum"):
        said.append("One of " + ", ".join(code(each) for each in choices) + ".\n")
    said.append(table(("field", "type", "default", "limits"), rows))
    return "\n".join(said)
