"""Engages an agent that is an HTTP endpoint: the message as a POST, the status as the outcome, the body as the reply.

    2xx                            processed; {"reply": {...}} or plain text is the reply
    408, 425, 429, 5xx, no answer  try again, not before Retry-After
    other                          failed: the endpoint does not want this message

`Idempotency-Key` is the same for every attempt, so the endpoint can tell a repeat. With a secret the request is signed
as Standard Webhooks describes it: HMAC-SHA256 over id, timestamp and body. Redirects are not followed, since a signed
message goes where the operator said and nowhere else.
"""

import asyncio
import base64
import binascii
import hmac
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Annotated, ClassVar, Final

import httpx
import msgspec
from msgspec import Meta, field

from agentpost.delivery.ports import Engagement, Result
from agentpost.edges.certificates import needs_certificates
from agentpost.edges.runtimes import answers
from agentpost.edges.runtimes.options import Bytes, Options, Timeout
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.world import Clock

__all__ = ["WebhookOptions", "WebhookRuntime", "signature"]

_TRY_AGAIN: Final = frozenset({408, 425, 429})
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what secrets begin with
_OURS: Final = frozenset(
    {
        "content-type",
        "content-length",
        "host",
        "idempotency-key",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
)

HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}\Z")]
HeaderValue = Annotated[str, Meta(pattern=r"^[ -~]{0,4096}\Z")]


class WebhookOptions(Options, frozen=True, kw_only=True, rename="camel"):
    """`secret` is `whsec_` and base64, or any text. `headers` go along as they are, an Authorization for instance."""

    SECRETS: ClassVar[frozenset[str]] = frozenset({"secret", "headers"})

    url: str
    secret: str | None = None
    headers: dict[HeaderName, HeaderValue] = field(default_factory=dict[HeaderName, HeaderValue])
    timeout_seconds: Timeout = 60
    max_response_bytes: Bytes = 1_048_576

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except (httpx.InvalidURL, ValueError):
            raise _refused("url", "must be a URL") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise _refused("url", "must begin with http:// or https:// and name a host")
        if url.port is not None and not 0 < url.port < 65_536:
            raise _refused("url", "must have a port from 1 to 65535, or none")
        if url.userinfo:
            raise _refused("url", "must not have a password in it; headers can carry one")
        if self.secret is not None:
            _key(self.secret)
        for name in self.headers:
            if name.lower() in _OURS:
                raise _refused("headers", f"must not have {name}; agentpost sets it")


class WebhookRuntime:
    is_idempotent = True

    def __init__(
        self, options: WebhookOptions, *, clock: Clock, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._options = options
        self._clock = clock
        self._key = None if options.secret is None else _key(options.secret)
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self.max_concurrent = options.max_concurrent

    async def engage(self, engagement: Engagement) -> Result:
        body = msgspec.json.encode(engagement)
        request = self._connected().stream(
            "POST", self._options.url, content=body, headers=self._headers(engagement, body)
        )
        try:
            # httpx limits each step; an endpoint that answers a byte at a time must end too.
            async with asyncio.timeout(self._options.timeout_seconds), request as response:
                return await self._result(response)
        except TimeoutError:
            return answers.retry(f"the endpoint took longer than {self._options.timeout_seconds:g} s")
        except (httpx.HTTPError, httpx.StreamError) as error:
            # Its text may have the URL in it, and a URL may have a token in it.
            return answers.retry(f"the endpoint did not answer ({type(error).__name__})")

    async def _result(self, response: httpx.Response) -> Result:
        status = response.status_code
        if status in _TRY_AGAIN or status >= 500:
            return answers.retry(f"the endpoint answered {status}", after_seconds=_retry_after_seconds(response))
        if not 200 <= status < 300:
            return answers.failed(f"the endpoint answered {status}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            # It was asked not to. A kilobyte that is packed well is a megabyte here, before it can be counted.
            return answers.failed("the endpoint answered with a content-encoding")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._options.max_response_bytes:
                return answers.failed(f"the endpoint answered with more than {self._options.max_response_bytes} bytes")
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "application/json":
            return answers.from_json(bytes(body))
        # A page that some proxy made up is nobody's answer.
        return answers.from_text(bytes(body)) if media_type == "text/plain" else answers.processed(None)

    async def ask(self, event_id: EventId) -> Result | None:
        return None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=self._options.timeout_seconds,
                follow_redirects=False,
                # Nothing of the gateway's surroundings: no proxy, no .netrc.
                trust_env=False,
                # Nor does anything of one message go along with the next.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                transport=self._transport,
                verify=needs_certificates(self._options.url),
                limits=httpx.Limits(max_connections=self._options.max_concurrent),
            )
        return self._client

    def _headers(self, engagement: Engagement, body: bytes) -> dict[str, str]:
        message_id = f"{engagement.event_id}:{engagement.to_agent_id}"
        timestamp = str(self._clock.now_ms() // 1000)
        headers = {
            **{name.lower(): value for name, value in self._options.headers.items()},
            "content-type": "application/json",
            "user-agent": "agentpost",
            "accept-encoding": "identity",
            "idempotency-key": message_id,
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
        }
        if self._key is not None:
            headers["webhook-signature"] = signature(self._key, message_id, timestamp, body)
        return headers


def signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """The value of `webhook-signature`: `v1,` and the HMAC-SHA256 of id, timestamp and body in base64."""
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(digest).decode("ascii")


def _key(secret: str) -> bytes:
    if not secret.startswith(_SECRET_PREFIX):
        key = secret.encode()
    else:
        try:
            key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error:
            raise _refused("secret", f"must be base64 after {_SECRET_PREFIX}") from None
    if len(key) < 16:
        raise _refused("secret", "must have at least 16 bytes; 24 random ones are usual")
    return key


def _retry_after_seconds(response: httpx.Response) -> float | None:
    """Retry-After where it is a number of seconds; a date is passed over, the retry policy has to do."""
    text = response.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def _refused(name: str, problem: str) -> Refusal:
    return Refusal(Code.INVALID_FIELD, f"options.{name} {problem}", field=f"options.{name}")
