"""The OpenAPI documents of both doors, and a fuzzer that holds the gateway to them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

from agentpost.auth.external.scopes import SCOPES
from agentpost.edges.http.openapi import DOCUMENT_PATH
from agentpost.edges.runtimes import make_runtime
from agentpost.protocol.errors import MEANINGS, Code, Refusal
from agentpost.store.home import Home
from agentpost.testing import FakeClock
from tests.edges.external.conftest import PLENTY, Door
from tests.edges.openapi.fuzzing import Fuzzer, Signer
from tests.edges.openapi.unix import BASE_URL, new_session, unix_session
from tests.edges.openapi.world import World
from tests.edges.running import ServedGateway, served_gateway

DOCUMENT = f"{DOCUMENT_PATH}/openapi.json"
# Of the fuzzer, not of ours.
pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def a_gateway(home: Path) -> Iterator[ServedGateway]:
    limits = {"attempts_per_address": PLENTY, "attempts_per_token": PLENTY}
    with served_gateway(home, clock=FakeClock(), runtimes=make_runtime, **limits) as served:
        yield served


def documents(served: ServedGateway) -> tuple[dict[str, Any], dict[str, Any]]:
    return httpx.get(served.url + DOCUMENT, timeout=60).json(), served.operator.get(DOCUMENT)


def fuzz(directory: Path, *, examples: int, chance: random.Random) -> Fuzzer:
    """Both doors of a gateway, called over their sockets."""
    home = directory / "vps-jane"
    with a_gateway(home) as served:
        public, operators = documents(served)
        world = World(served, directory, chance)
        fuzzer = Fuzzer(world, examples=examples, chance=chance)
        fuzzer.call_all(public, served.url, _signing(served))
        fuzzer.call_all(operators, BASE_URL, unix_session(Home(home).operator_socket))
    return fuzzer


def _signing(served: ServedGateway) -> requests.Session:
    """Calls as an agent outside that may do everything that such an agent may."""
    signer = Signer(Door(served).agent("worker", scopes=SCOPES))
    session = new_session()
    session.auth = signer

    def take_nonce(response: requests.Response, *_: Any, **__: Any) -> None:
        signer.client.nonce = response.headers.get("dpop-nonce", signer.client.nonce)

    session.hooks["response"].append(take_nonce)
    return session


def report(fuzzer: Fuzzer) -> str:
    return "\n\n".join(f"{key}\n{text[:2000]}" for key, text in fuzzer.wrong.items())


def test_the_gateway_keeps_to_its_openapi_documents(tmp_path: Path) -> None:
    """To calls that were made up, good and bad, there is no 5xx, and no answer that the documents do not describe."""
    fuzzer = fuzz(tmp_path, examples=2, chance=random.Random(1))
    assert not fuzzer.wrong, report(fuzzer)
    assert fuzzer.calls.total() > 200
    assert {status for _, status in fuzzer.calls} >= {200, 400, 404}


@pytest.mark.long
def test_the_gateway_keeps_to_them_for_5000_calls(tmp_path: Path) -> None:
    """The same with 5,000 calls, which are others each time."""
    chance_seed = random.SystemRandom().getrandbits(32)
    fuzzer = fuzz(tmp_path, examples=45, chance=random.Random(chance_seed))
    assert not fuzzer.wrong, f"with the seed {chance_seed}:\n{report(fuzzer)}"
    assert fuzzer.calls.total() >= 5000


def test_every_call_says_what_it_is_and_how_it_refuses(tmp_path: Path) -> None:
    """Each operation has a summary, a subject and its statuses; each refusal lists all codes that have its status."""
    with a_gateway(tmp_path / "vps-jane") as served:
        for document in documents(served):
            for path, item in document["paths"].items():
                for method, operation in item.items():
                    assert operation["summary"], f"{method} {path}"
                    assert operation["tags"], f"{method} {path}"
                    if operation.get("parameters") or "requestBody" in operation:
                        assert operation["responses"]["400"] == {"$ref": "#/components/responses/Refused400"}
            for name, response in document["components"]["responses"].items():
                error = response["content"]["application/json"]["schema"]["properties"]["error"]
                listed = {code.value for code, meaning in MEANINGS.items() if name == f"Refused{meaning.status}"}
                assert set(error["properties"]["code"]["enum"]) == listed


def test_to_join_nobody_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """A URL that is none is the caller's mistake; one where nobody answers is a gateway that cannot be reached."""
    with a_gateway(tmp_path / "vps-jane") as served:
        for url in ("", "vps-jane:7800", "ftp://vps-jane", "http://", "http://a\nb"):
            with pytest.raises(Refusal) as caught:
                served.operator.post("/operator/join", {"url": url, "token": "agp_x"})
            assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "url"), url
        with pytest.raises(Refusal) as caught:
            served.operator.post("/operator/join", {"url": "http://127.0.0.1:9", "token": "agp_x"})
        assert caught.value.code is Code.UNAVAILABLE
        assert "cannot be reached" in caught.value.message
