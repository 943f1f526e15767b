"""Calls made up from an OpenAPI document, and what was wrong with the answers."""

import random
from collections import Counter
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode, checks
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation

from tests.edges.external.client import CONTEXT, INVOKE, REVOKE, AgentClient
from tests.edges.openapi.world import World

# One stops the gateway, the other never ends.
LEFT_OUT = ("/operator/shutdown", "/ansible/watch")
# These say with a 503 how another gateway is, or this one.
MAY_BE_UNAVAILABLE = ("/operator/join", "/health/ready")
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TIMEOUT_SECONDS = 60
# Some take an agent away, or settle the mail.
CALLS_PER_FILLING = 20


class Signer(requests.auth.AuthBase):
    """Proves possession of a session's key on every call that takes a token."""

    def __init__(self, client: AgentClient) -> None:
        self.client = client

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        path = request.path_url
        if path in (INVOKE, CONTEXT, REVOKE):
            body = request.body or b""
            raw = body.encode() if isinstance(body, str) else body
            token = self.client.access_token
            request.headers["authorization"] = f"DPoP {token}"
            request.headers["dpop"] = self.client.proof(path, token=token, body=raw)
        return request


class Fuzzer:
    """Counts the calls by operation and status, and keeps one example of each thing that was wrong."""

    def __init__(self, world: World, *, examples: int, chance: random.Random) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        self.wrong: dict[tuple[str, int, str], str] = {}
        self._world = world
        self._examples = examples
        self._chance = chance

    def call_all(self, document: dict[str, Any], base_url: str, session: requests.Session) -> None:
        """Each operation, with input as the document wants it, and with input that breaks it."""
        for found in schemathesis.openapi.from_dict(document).get_all_operations():
            operation = found.ok()
            if operation.path in LEFT_OUT:
                continue
            self._call(operation, GenerationMode.POSITIVE, base_url, session)
            # Every text is good enough for a path.
            if operation.body or operation.query:
                self._call(operation, GenerationMode.NEGATIVE, base_url, session)

    def _call(self, operation: APIOperation, mode: GenerationMode, base_url: str, session: requests.Session) -> None:
        @seed(self._chance.getrandbits(32))
        @settings(
            max_examples=self._examples,
            database=None,
            deadline=None,
            # What a call finds depends on those before it, so there is nothing to shrink.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def call(case: schemathesis.Case) -> None:
            if self.calls.total() % CALLS_PER_FILLING == 0:
                self._world.refill()
            self._world.steer(case, is_good=mode is GenerationMode.POSITIVE)
            response = case.call(base_url=base_url, session=session, timeout=TIMEOUT_SECONDS)
            self.calls[operation.label, response.status_code] += 1
            self._check(case, response)

        call()

    def _check(self, case: schemathesis.Case, response: schemathesis.Response) -> None:
        expected = response.status_code == 503 and case.path in MAY_BE_UNAVAILABLE
        try:
            case.validate_response(response, checks=CHECKS if expected else [checks.not_a_server_error, *CHECKS])
        except FailureGroup as failures:
            for failure in failures.exceptions:
                key = (case.operation.label, response.status_code, type(failure).__name__)
                self.wrong.setdefault(key, f"{failure}\n{case.as_curl_command()}\n{response.text}")
