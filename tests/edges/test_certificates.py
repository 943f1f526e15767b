"""Certificates are read by those who speak TLS, who then believe nobody without one."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from agentpost.edges.certificates import needs_certificates
from agentpost.edges.mailbox.carriers import HttpCarrier
from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock
from tests.edges.running import served_gateway


@pytest.mark.parametrize(
    ("url", "needs"),
    [
        ("http://127.0.0.1:7800", False),
        ("http://https", False),
        ("https://vps-jane:7800", True),
        ("HTTPS://vps-jane:7800", True),
        ("https:", True),
    ],
)
def test_who_speaks_tls_needs_certificates(url: str, needs: bool) -> None:
    """It is the scheme that counts, however it is written."""
    assert needs_certificates(url) is needs


@pytest.fixture
async def impostor(tmp_path: Path) -> AsyncIterator[int]:
    """A server with a certificate that nobody vouches for; gives its port."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    file = tmp_path / "impostor.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(secret + made.sign(key, None).public_bytes(Encoding.PEM))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_impostor_answers_whoever_does_not_look(impostor: int) -> None:
    """What the tests below refuse would work without certificates."""
    async with httpx.AsyncClient(verify=False) as http:  # noqa: S501 - this is what must not happen elsewhere
        assert (await http.get(f"https://127.0.0.1:{impostor}/")).status_code == 200


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
async def test_a_mailbox_believes_no_impostor(impostor: int, scheme: str) -> None:
    """Over HTTPS a mailbox is who its certificate says, or it is not used."""
    carrier = HttpCarrier(f"{scheme}://127.0.0.1:{impostor}")
    with pytest.raises(Refusal) as refused:
        await carrier.call("peek", {"session": "bob"})
    assert refused.value.code is Code.UNAVAILABLE
    assert "certificate" in refused.value.message.lower()
    await carrier.close()


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
async def test_a_gateway_joins_no_impostor(impostor: int, scheme: str, tmp_path: Path) -> None:
    """The invite goes to nobody whose certificate is not good."""
    with served_gateway(tmp_path / "mbp-jane", clock=FakeClock(), node_id="mbp-jane") as gateway:
        body = {"url": f"{scheme}://127.0.0.1:{impostor}", "token": "agp_" + "x" * 40}
        with pytest.raises(Refusal) as refused:
            await asyncio.to_thread(gateway.operator.post, "/operator/join", body)
    assert "certificate" in refused.value.message.lower()
