"""An agent outside the mesh, from its own side: its key and tokens in a file, and a proof with each call (EXT-3).

The file is for its owner only. Several processes may use one: a refresh token is good once, so who refreshes holds a
lock and looks first whether another has done it. Refresh tokens are chosen here, and in the file before they are asked
for: whoever dies before the answer is written goes on with it, and no token is ever spent twice (EXT-2).
"""

import asyncio
import fcntl
import os
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from agentpost.auth.external.proofs import USE_NONCE, body_hash
from agentpost.auth.external.scopes import operations_of
from agentpost.auth.external.wire import REFRESH_PREFIX, SessionGrant
from agentpost.auth.signing import from_text, to_text
from agentpost.edges.async_operator_client import NEVER_THERE, until_answered
from agentpost.edges.operator_client import AnswerLostError, UnreachedError, answer_of, new_retry_key
from agentpost.protocol.errors import MEANINGS, Code, Refusal
from agentpost.store.home import write_private
from agentpost.world import Clock, SystemClock

__all__ = ["Credentials", "OutsideClient"]

_PATH: Final = "/ansible/agent/"
_TIMEOUT_SECONDS: Final = 20.0
_TOKEN_BYTES: Final = 32
_STALE: Final = (Code.EXPIRED_ACCESS_TOKEN, Code.INVALID_ACCESS_TOKEN)


class Credentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is in the file. Whoever has it is the agent, until the session ends."""

    url: str
    agent_id: str
    private_key: str
    access_token: str = ""
    refresh_token: str = ""
    # What the last refresh asked for, until its answer is here.
    next_refresh_token: str = ""
    granted_scopes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Credentials(url={self.url!r}, agent_id={self.agent_id!r})"


class OutsideClient:
    """Calls of one agent at the gateway that invited it. What that refuses is raised here as the same refusal."""

    def __init__(self, file: Path, *, clock: Clock | None = None) -> None:
        self._file = file
        self._clock = clock or SystemClock()
        self._credentials = _read(file)
        self._nonce: str | None = None
        self._refreshing = asyncio.Lock()
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS)

    @classmethod
    async def accept(
        cls, file: Path, *, url: str, agent_id: str, invite_token: str, clock: Clock | None = None
    ) -> "OutsideClient":
        """Exchange an invite for a session, with a new key, and keep both in a file that must not be there yet.

        A file of an exchange whose answer never came is gone on with.
        """
        key = to_text(Ed25519PrivateKey.generate().private_bytes_raw())
        new = Credentials(url=url.rstrip("/"), agent_id=agent_id, private_key=key, refresh_token=_new_refresh_token())
        is_begun = _is_begun(file, new)
        if not is_begun:
            # Written before the invite is used up: what goes wrong from here on costs no invite.
            _make(file, new)
        client = cls(file, clock=clock)
        try:
            await client._exchange(invite_token, is_begun=is_begun)
        except BaseException as error:
            await client.close()
            if _is_definite(error):
                if not is_begun:
                    await asyncio.to_thread(file.unlink)
            elif isinstance(error, Refusal):
                error.hint = f"Nobody knows whether the invite was used: say the same again, {file} goes on with it."
            raise
        return client

    @property
    def agent(self) -> str:
        return self._credentials.agent_id

    @property
    def scopes(self) -> tuple[str, ...]:
        return self._credentials.granted_scopes

    @property
    def operations(self) -> tuple[str, ...]:
        """What the scopes of the session open."""
        return operations_of(self._credentials.granted_scopes)

    # As a post of MCP: see edges/mcp/posts.
    is_local = False

    async def call(self, operation: str, args: dict[str, Any]) -> dict[str, Any]:
        """What an operation gives."""
        wait_seconds = args.get("waitSeconds")
        more_seconds = wait_seconds if isinstance(wait_seconds, int | float) else 0
        # Only here: it brings the engine, and to accept an invite needs none of it.
        from agentpost.edges.operations import OPERATIONS

        found = OPERATIONS.get(operation)
        if found is None or not found.is_keyed:
            return await self._call(operation, args, more_seconds)
        # A call whose answer was lost is repeated: with its key it is done once.
        key = args.get("idempotencyKey") or new_retry_key()
        keyed = args | {"idempotencyKey": key}
        try:
            return await until_answered(lambda: self._call(operation, keyed, more_seconds))
        except AnswerLostError as lost:
            lost.hint = f"Repeat the call with the idempotencyKey {key!r}: it is done once."
            raise

    async def _call(self, operation: str, args: dict[str, Any], more_seconds: float) -> dict[str, Any]:
        body = msgspec.json.encode({"operation": operation, "args": args})
        token = self._credentials.access_token
        try:
            return (await self._invoke(body, more_seconds))["result"]
        except Refusal as refusal:
            if refusal.code not in _STALE:
                raise
        await self._refresh(token)
        return (await self._invoke(body, more_seconds))["result"]

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> "OutsideClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _key(self) -> Ed25519PrivateKey:
        raw = from_text(self._credentials.private_key)
        if raw is None or len(raw) != 32:
            raise Refusal(Code.MALFORMED, f"the key in {self._file} is none", hint="Ask the operator for an invite.")
        return Ed25519PrivateKey.from_private_bytes(raw)

    async def _invoke(self, body: bytes, more_seconds: float) -> Any:
        token = self._credentials.access_token

        def make(url: str) -> tuple[bytes, dict[str, str]]:
            proof = self._proof(url, token, bh=body_hash(body))
            return body, {"authorization": f"DPoP {token}", "dpop": proof}

        return await self._post("invoke", make, more_seconds)

    async def _refresh(self, stale_token: str) -> None:
        async with self._refreshing, _locked(self._file):
            self._credentials = _read(self._file)
            if self._credentials.access_token != stale_token:
                return
            try:
                await self._rotate()
            except Refusal as refusal:
                if refusal.code is not Code.CONFLICT:
                    raise
                # The last refresh was done, and somebody died with its answer.
                self._keep(refresh_token=self._credentials.next_refresh_token, next_refresh_token="")
                await self._rotate()

    async def _exchange(self, invite_token: str, *, is_begun: bool) -> None:
        chosen = self._credentials.refresh_token

        def body_of(nonce: str, proof: str) -> dict[str, Any]:
            return {
                "inviteToken": invite_token,
                "agentId": self.agent,
                "nonce": nonce,
                "clientPubKey": _public(self._key),
                "clientProof": proof,
                "refreshToken": chosen,
            }

        try:
            await self._take("auth/exchange", invite_token, body_of, bh=body_hash(chosen.encode()))
        except Refusal as refusal:
            if not is_begun:
                raise
            try:
                await self._rotate()
            except Refusal:
                # The last try did not get through either.
                raise refusal from None

    async def _rotate(self) -> None:
        if not self._credentials.next_refresh_token:
            self._keep(next_refresh_token=_new_refresh_token())
        token, following = self._credentials.refresh_token, self._credentials.next_refresh_token

        def body_of(nonce: str, proof: str) -> dict[str, Any]:
            return {"refreshToken": token, "nonce": nonce, "proof": proof, "nextRefreshToken": following}

        await self._take("auth/refresh", token, body_of, bh=body_hash(following.encode()))

    async def _take(self, path: str, token: str, body_of: Callable[[str, str], dict[str, Any]], **claims: str) -> None:
        """Tokens for a token; they are in the file before anybody uses them."""

        def make(url: str) -> tuple[bytes, dict[str, str]]:
            nonce = secrets.token_urlsafe()
            return msgspec.json.encode(body_of(nonce, self._proof(url, token, jti=nonce, **claims))), {}

        granted = msgspec.convert(await self._post(path, make), SessionGrant)
        self._keep(
            access_token=granted.access_token,
            refresh_token=granted.refresh_token,
            next_refresh_token="",
            granted_scopes=granted.granted_scopes,
        )

    def _keep(self, **changed: Any) -> None:
        credentials = replace(self._credentials, **changed)
        _write(self._file, credentials)
        self._credentials = credentials

    async def _post(
        self, path: str, make: Callable[[str], tuple[bytes, dict[str, str]]], more_seconds: float = 0
    ) -> Any:
        url = f"{self._credentials.url}{_PATH}{path}"
        # A second time with the nonce that the first answer brought.
        for is_last in (False, True):
            body, headers = make(url)
            headers["content-type"] = "application/json"
            try:
                response = await self._http.post(
                    url, content=body, headers=headers, timeout=_TIMEOUT_SECONDS + more_seconds
                )
            except (httpx.TransportError, httpx.InvalidURL) as error:
                problem = f"the gateway at {self._credentials.url} does not answer: {error}"
                kind = UnreachedError if isinstance(error, NEVER_THERE) else AnswerLostError
                raise kind(Code.UNAVAILABLE, problem, hint="Check the address, and whether it runs.") from None
            self._nonce = response.headers.get("dpop-nonce", self._nonce)
            if is_last or USE_NONCE not in response.headers.get("www-authenticate", ""):
                return answer_of(response.status_code, response.content)
        return None

    def _proof(self, url: str, token: str, **more: str) -> str:
        key = self._key
        claims = {
            "jti": secrets.token_urlsafe(),
            "htm": "POST",
            "htu": url,
            "iat": self._clock.now_ms() // 1000,
            "ath": to_text(sha256(token.encode()).digest()),
            **({} if self._nonce is None else {"nonce": self._nonce}),
            **more,
        }
        return jwt.encode(claims, key, algorithm="EdDSA", headers={"typ": "dpop+jwt", "jwk": _public(key)})


def _public(key: Ed25519PrivateKey) -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "x": to_text(key.public_key().public_bytes_raw())}


def _read(file: Path) -> Credentials:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Credentials)
    except FileNotFoundError:
        problem, hint = f"there are no credentials at {file}", "Make them with `agentpost agent accept`."
    except (OSError, msgspec.MsgspecError) as error:
        problem, hint = f"{file} cannot be used: {error}", "Make another one with `agentpost agent accept`."
    raise Refusal(Code.NOT_FOUND, problem, hint=hint)


def _new_refresh_token() -> str:
    return REFRESH_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def _is_begun(file: Path, wanted: Credentials) -> bool:
    """Whether this is the file of such an exchange, of which nobody knows whether it got through."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Credentials)
    except (OSError, msgspec.MsgspecError):
        return False
    is_same = (found.url, found.agent_id) == (wanted.url, wanted.agent_id)
    return is_same and not found.access_token and bool(found.refresh_token)


def _is_definite(error: BaseException) -> bool:
    """Whether nothing can have come of a call that ended so."""
    if isinstance(error, UnreachedError):
        return True
    return isinstance(error, Refusal) and MEANINGS[error.code].status < 500


def _make(file: Path, credentials: Credentials) -> None:
    if file.exists():
        raise Refusal(
            Code.CONFLICT, f"{file} exists already", hint="Name another file, or remove it if its session is over."
        )
    _write(file, credentials)


def _write(file: Path, credentials: Credentials) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, msgspec.json.encode(credentials))
    except OSError as error:
        raise Refusal(
            Code.HOME_UNSAFE, f"{file} cannot be written: {error.strerror}", hint="Name a file that you can write."
        ) from None


@asynccontextmanager
async def _locked(file: Path) -> AsyncGenerator[None]:
    """One process at a time, by a file beside it: the file itself is replaced."""
    lock = os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
