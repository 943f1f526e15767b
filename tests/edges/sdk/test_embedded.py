"""A gateway inside a program is the same gateway: its settings count, and its failed start says why."""

from pathlib import Path

import pytest

from agentpost import Client, Refusal
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code
from agentpost.store.home import Home
from tests.edges.sdk.test_client import two_agents


@pytest.mark.req("AUTH-7")
async def test_an_embedded_gateway_asks_the_tailnet_that_its_settings_name(tmp_path: Path) -> None:
    """With `tailnet_socket` in agentpost.toml, an invite for a machine of the tailnet is made."""
    home = tmp_path / "vps-jane"
    home.mkdir(mode=0o700)
    settings = 'node = "vps-jane"\ntier = "backbone"\nlisten = "127.0.0.1:0"\ntailnet_socket = "/run/tailscaled.sock"\n'
    (home / "agentpost.toml").write_text(settings)
    async with Client.embedded(node="vps-jane", home=home) as client:
        made = await client.calls.post("/operator/invites", {"node": "mbp-jane", "tailnet": "mbp-jane.tail1.ts.net"})
    assert made["inviteId"]


async def test_an_embedded_gateway_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Something is where the operator's socket belongs: the program hears of it at once, and of the path."""
    home = tmp_path / "vps-jane"
    home.mkdir(mode=0o700)
    Home(home).operator_socket.mkdir()
    with pytest.raises(Refusal, match=r"the operator's socket .* cannot be made") as refused:
        async with Client.embedded(node="vps-jane", home=home, listen="127.0.0.1:0"):
            pass
    assert refused.value.code is Code.HOME_UNSAFE


async def test_a_defect_at_the_start_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error reaches the program that embeds the gateway, with its traceback."""

    async def fail(self: Gateway) -> None:
        raise RuntimeError("the real cause")

    monkeypatch.setattr(Gateway, "start", fail)
    with pytest.raises(RuntimeError, match="the real cause"):
        async with Client.embedded(node="vps-jane", home=tmp_path / "vps-jane", listen="127.0.0.1:0"):
            pass


async def test_a_reply_with_a_misspelled_field_is_refused(tmp_path: Path) -> None:
    """A settlement whose reply says `bdoy` is refused: the reply would be lost without a word."""
    async with two_agents(tmp_path / "vps-jane") as (architect, builder):
        await architect.send("builder", "hi")
        (mail,) = await builder.calls.post("/ansible/agents/builder/fetch", {"waitSeconds": 10})
        path = f"/ansible/agents/builder/inbox/{mail['eventId']}/settle"
        with pytest.raises(Refusal, match="bdoy") as refused:
            await builder.calls.post(path, {"reply": {"bdoy": "hello"}})
        assert refused.value.code is Code.INVALID_FIELD
        assert (await builder.calls.post(path, {"reply": {"body": "hello"}}))["settled"]
