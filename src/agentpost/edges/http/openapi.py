"""The OpenAPI documents of both doors: what the routes say of themselves, and how every one of them can refuse.

Which statuses a call can have follows from what it is, so no route lists them; those that can say more are in a table.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec
from litestar import Litestar, Request
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from agentpost import __version__
from agentpost.edges.http.external import MCP_PATH
from agentpost.protocol.errors import MEANINGS

__all__ = ["DOCUMENT_PATH", "document_of", "openapi_config"]

Json = dict[str, Any]

DOCUMENT_PATH: Final = "/ansible/openapi"
_DESCRIPTION: Final = (
    'Every refusal is `{"error": {"code", "message", "hint", "field"?, "corrId"?}}`, and nothing has changed by it. '
    "The codes of a status are listed with it. Any call can find a gateway that has no answer: 503 `unavailable` while "
    "it starts or stops, 503 `storage_failed` and 507 `storage_full` when its disk is the matter, 500 `internal` for "
    "a defect."
)

# What a call can be told beyond what follows from its kind.
_ALSO: Final[Mapping[str, tuple[int, ...]]] = {
    "POST /ansible/messages": (410,),
    "POST /ansible/agent/invoke": (404, 410, 422),
    # What the other gateway says to the invite is passed on; perhaps it cannot be reached.
    "POST /operator/join": (401, 429, 503),
    # Without a lake there is nothing to tell.
    "GET /operator/lake": (404,),
    "GET /ansible/capability-health": (404,),
}
# Calls that bring a key, a ticket or a token along: that may be wrong, and they may be too many.
_CREDENTIALS: Final = ("/ansible/auth/", "/ansible/agent/", MCP_PATH)
_WITH_TOKEN: Final = ("/ansible/agent/invoke", "/ansible/agent/context-token", "/ansible/agent/revoke", MCP_PATH)
_SCHEME: Final = "dpop"


def openapi_config(title: str, *, is_public: bool) -> OpenAPIConfig:
    """How an application tells of itself, at `/ansible/openapi/openapi.json`."""
    scheme = SecurityScheme(
        type="http",
        scheme="DPoP",
        description="A session's access token; the header `DPoP` has the proof (RFC 9449): docs/external-agents.md.",
    )
    return OpenAPIConfig(
        title=title,
        version=__version__,
        description=_DESCRIPTION,
        path=DOCUMENT_PATH,
        components=Components(security_schemes={_SCHEME: scheme} if is_public else None),
        render_plugins=[_Document(is_public=is_public)],
    )


def document_of(app: Litestar) -> Json:
    """The document of an application that was made with `openapi_config`, as it is served."""
    config = app.openapi_config
    plugin = config.render_plugins[0] if config else None
    if not isinstance(plugin, _Document):
        raise TypeError("this application does not describe itself")
    return plugin.completed(app.openapi_schema.to_schema())


class _Document(JsonRenderPlugin):
    """Completed when somebody asks for it: a gateway that nobody asks spends no time on it."""

    def __init__(self, *, is_public: bool) -> None:
        super().__init__()
        self._is_public = is_public

    def render(self, request: Request[Any, Any, Any], openapi_schema: Json) -> bytes:
        return msgspec.json.encode(self.completed(openapi_schema))

    def completed(self, document: Json) -> Json:
        used: set[int] = set()
        for path, method, operation in _operations(document):
            statuses = self._statuses(path, method, operation)
            used.update(statuses)
            responses: Json = {
                # What the framework knows of refusals is not how ours look.
                status: response
                for status, response in operation["responses"].items()
                if not status.startswith("4")
            }
            refused = {str(status): {"$ref": f"#/components/responses/Refused{status}"} for status in statuses}
            operation["responses"] = responses | refused
            if self._is_public and path in _WITH_TOKEN:
                operation["security"] = [{_SCHEME: []}]
        components: Json = document.setdefault("components", {})
        _mend_tuples(components)
        components["responses"] = {f"Refused{status}": _refused(status) for status in sorted(used)}
        return document

    def _statuses(self, path: str, method: str, operation: Json) -> list[int]:
        is_read = method == "GET"
        has_parameters, has_body = bool(operation.get("parameters")), "requestBody" in operation
        names_something = any(each["in"] == "path" for each in operation.get("parameters", ()))
        brings_credentials = self._is_public and path.startswith(_CREDENTIALS)
        statuses: set[int] = set(_ALSO.get(f"{method} {path}", ()))
        if has_parameters or has_body:
            statuses.add(400)
        if names_something or (has_body and not brings_credentials):
            statuses.add(404)
        if has_body:
            statuses.add(413)
        if any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", ())):
            statuses.add(422)
        if not is_read:
            statuses |= {403, 409}
        if brings_credentials:
            statuses |= {401, 429}
        return sorted(statuses)


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    paths = cast("dict[str, Json]", document["paths"])
    for path, item in paths.items():
        for method, operation in item.items():
            yield path, method.upper(), operation


def _mend_tuples(part: Any) -> None:
    """The framework takes the `...` of `tuple[Id, ...]` for one more type that an item can have."""
    if isinstance(part, list):
        for each in cast("list[Any]", part):
            _mend_tuples(each)
    elif isinstance(part, dict):
        schema = cast(Json, part)
        match schema.get("items"):
            case {"oneOf": [item, ellipsis]} if ellipsis == {}:
                schema["items"] = item
            case _:
                pass
        for each in schema.values():
            _mend_tuples(each)


def _refused(status: int) -> Json:
    """How a refusal of this status looks, with the codes that it can have."""
    codes = {code.value: meaning for code, meaning in MEANINGS.items() if meaning.status == status}
    error = {
        "type": "object",
        "required": ["code", "message", "hint"],
        "properties": {
            "code": {"type": "string", "enum": list(codes)},
            "message": {"type": "string", "description": "What is wrong, in a sentence."},
            "hint": {"type": "string", "description": "What to do about it."},
            "field": {"type": "string", "description": "Where it is wrong."},
            "corrId": {"type": "string", "description": "The conversation that it is about."},
        },
    }
    schema = {"type": "object", "required": ["error"], "properties": {"error": error}}
    response: Json = {
        "description": "Refused. " + " ".join(f"`{code}`: {meaning.what}" for code, meaning in codes.items()),
        "content": {"application/json": {"schema": schema}},
    }
    if status == 429:
        seconds = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"required": True, "description": "In seconds.", "schema": seconds}}
    return response
