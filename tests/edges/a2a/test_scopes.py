"""Every method of A2A called with every scope: what the table does not open is refused."""

import pytest

from tests.auth.external.granting import A2A_METHODS, GRANTED
from tests.edges.a2a.conftest import Post
from tests.edges.a2a.peers import plain_http

READ = "ansible.task.read"


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("scope", GRANTED)
async def test_a_peer_calls_what_its_scopes_open_and_nothing_else(post: Post, scope: str) -> None:
    """A session needs `task.read` for every method, and `task.create` besides for those that ask for work."""
    name = "peer-with-" + scope.removeprefix("ansible.").replace(".", "-")
    for scopes in sorted({(scope,), tuple(sorted({scope, READ}))}):
        session = post.peer(f"{name}-{len(scopes)}", scopes)
        async with plain_http(session) as http:
            for method, needed in A2A_METHODS.items():
                call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
                answer = await http.post(f"{post.url}/a2a/scribe", json=call)
                assert (answer.status_code == 403) != ({needed, READ} <= set(scopes)), (method, scopes, answer.text)
