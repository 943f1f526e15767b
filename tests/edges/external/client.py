"""A client of the agent endpoints, written from RFC 9449 and docs/external-agents.md. Shares no code with them."""

import base64
import hashlib
import json
import secrets
import ssl
import time
from collections.abc import Callable
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

PATIENCE_SECONDS = 60
INVOKE = "/ansible/agent/invoke"
EXCHANGE = "/ansible/agent/auth/exchange"
REFRESH = "/ansible/agent/auth/refresh"
CONTEXT = "/ansible/agent/context-token"
REVOKE = "/ansible/agent/revoke"

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

Key = Ed25519PrivateKey | EllipticCurvePrivateKey


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sha(text: str | bytes) -> str:
    return b64(hashlib.sha256(text.encode() if isinstance(text, str) else text).digest())


def new_key(kind: str = "EdDSA") -> Key:
    return Ed25519PrivateKey.generate() if kind == "EdDSA" else generate_private_key(SECP256R1())


def jwk_of(key: Key) -> dict[str, str]:
    if isinstance(key, Ed25519PrivateKey):
        return {"kty": "OKP", "crv": "Ed25519", "x": b64(key.public_key().public_bytes_raw())}
    numbers = key.public_key().public_numbers()
    return {"kty": "EC", "crv": "P-256", "x": b64(numbers.x.to_bytes(32)), "y": b64(numbers.y.to_bytes(32))}


def signed(header: dict[str, Any], claims: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    text = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"
    return f"{text}.{b64(sign(text.encode()))}"


def signer(key: Key) -> Callable[[bytes], bytes]:
    if isinstance(key, Ed25519PrivateKey):
        return key.sign

    def sign(message: bytes) -> bytes:
        r, s = decode_dss_signature(key.sign(message, ECDSA(SHA256())))
        return r.to_bytes(32) + s.to_bytes(32)

    return sign


class AgentClient:
    """One agent with its key. `secrets` is everything that it had or made and that nobody else may see."""

    def __init__(self, url: str, *, key: Key | None = None, now: Callable[[], float] = time.time) -> None:
        self.url = url
        self.key = key or new_key()
        self.now = now
        self.nonce: str | None = None
        self.access_token = ""
        self.refresh_token = ""
        self.session: dict[str, Any] = {}
        self.secrets: set[str] = set()
        # Without TLS there are no certificates to load, which would take longer than all the rest.
        transport = httpx.HTTPTransport(verify=NO_TLS, limits=httpx.Limits(max_keepalive_connections=0))
        self._http = httpx.Client(timeout=PATIENCE_SECONDS, transport=transport)

    def proof(
        self,
        path: str,
        *,
        token: str | None = None,
        body: bytes | None = None,
        key: Key | None = None,
        header: dict[str, Any] | None = None,
        drop: tuple[str, ...] = (),
        **claims: Any,
    ) -> str:
        """A proof with nothing wrong with it, except for what is changed."""
        key = key or self.key
        made: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": "POST",
            "htu": self.url + path,
            "iat": int(self.now()),
        }
        made |= {} if token is None else {"ath": sha(token)}
        made |= {} if body is None else {"bh": sha(body)}
        made |= {} if self.nonce is None else {"nonce": self.nonce}
        made |= claims
        alg = "EdDSA" if isinstance(key, Ed25519PrivateKey) else "ES256"
        full = {"typ": "dpop+jwt", "alg": alg, "jwk": jwk_of(key)} | (header or {})
        text = signed(full, {name: value for name, value in made.items() if name not in drop}, signer(key))
        self.secrets.add(text)
        return text

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        given = {"content-type": "application/json", **(headers or {})}
        answer = self._http.post(self.url + path, content=body, headers=given, **more)
        self.nonce = answer.headers.get("dpop-nonce", self.nonce)
        return answer

    def exchange(self, invite_token: str, agent_id: str = "codex", **changed: Any) -> httpx.Response:
        nonce = changed.pop("nonce", secrets.token_urlsafe(16))
        proof_changes = changed.pop("proof", {})
        headers = changed.pop("headers", {})
        body = {
            "inviteToken": invite_token,
            "agentId": agent_id,
            "nonce": nonce,
            "clientPubKey": jwk_of(self.key),
            "clientProof": self.proof(EXCHANGE, **{"token": invite_token, "jti": nonce, **proof_changes}),
        }
        return self._take(self.post(EXCHANGE, json.dumps(body | changed).encode(), headers))

    def refresh(self, refresh_token: str | None = None, **changed: Any) -> httpx.Response:
        token = refresh_token or self.refresh_token
        nonce = changed.pop("nonce", secrets.token_urlsafe(16))
        proof_changes = changed.pop("proof", {})
        body = {
            "refreshToken": token,
            "nonce": nonce,
            "proof": self.proof(REFRESH, **{"token": token, "jti": nonce, **proof_changes}),
        }
        return self._take(self.post(REFRESH, json.dumps(body | changed).encode()))

    def call(
        self,
        path: str,
        body: dict[str, Any],
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        **changed: Any,
    ) -> httpx.Response:
        """A call with the access token, or another one; what is changed is changed in the proof."""
        raw, token = json.dumps(body).encode(), token or self.access_token
        proof = self.proof(path, **{"token": token, "body": raw, **changed})
        return self.post(path, raw, {"authorization": f"DPoP {token}", "dpop": proof, **(headers or {})})

    def invoke(
        self, operation: str, args: dict[str, Any] | None = None, context_id: str | None = None, **more: Any
    ) -> httpx.Response:
        body = {"operation": operation, "args": args or {}} | ({} if context_id is None else {"contextId": context_id})
        return self.call(INVOKE, body, **more)

    def ask(self, operation: str, **args: Any) -> dict[str, Any]:
        """What an operation gives; it has to work, at most after one more try with a fresh nonce."""
        answer = self.invoke(operation, args)
        if answer.status_code == 401 and "use_dpop_nonce" in answer.headers["www-authenticate"]:
            answer = self.invoke(operation, args)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def _take(self, answer: httpx.Response) -> httpx.Response:
        if answer.status_code == 200:
            self.session = answer.json()
            self.access_token, self.refresh_token = self.session["accessToken"], self.session["refreshToken"]
            self.secrets |= {self.access_token, self.refresh_token}
        return answer


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, whose body has the one shape that all errors have."""
    error = answer.json()["error"]
    assert {"code", "message", "hint"} <= error.keys() <= {"code", "message", "hint", "field", "corrId"}
    assert error["message"]
    assert error["hint"]
    return answer.status_code, error["code"]
