"""Secrets are found before they are published."""

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.work.capabilities.secrets import refuse_secret_files, refuse_secrets
from agentpost.work.skills.bundle import BundleFile

FOUND = [
    {"contract": {"apiKey": "0123456789abcdef"}},
    {"contract": {"db_password": "hunter2"}},
    {"a": [{"clientSecret": ["s3cr3t"]}]},
    {"when": "use " + "AKIA" + "ABCDEFGHIJKLMNOP"},
    {"when": "ghp_" + "a" * 36},
    {"when": "-----BEGIN OPENSSH " + "PRIVATE KEY-----"},
    {"when": "call https://jane:hunter2@example.org/x"},
    {"when": "Authorization: Bearer abcdefghijklmnopqrstuvwxyz"},
    {"when": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"},
    {"when": "sk-" + "ant-" + "a1" * 20},
]
HARMLESS = [
    {"input": {"properties": {"password": {"type": "string"}, "token": {"type": "string"}}}},
    {"when": "Ask for the password, then read the API key from the environment."},
    {"apiKey": "<your key>", "secret": "", "password": "${PASSWORD}"},
    {"tokens": 12, "secretary": "jane", "keyboard": "dvorak", "requiredCapabilities": ["token.count"]},
    {"url": "https://example.org:8080/a@b"},
]


@pytest.mark.parametrize("value", FOUND)
def test_a_manifest_with_a_secret_is_refused_and_not_repeated(value: dict[str, object]) -> None:
    """A text that is named like a secret or has the form of one is refused, and the refusal does not show it."""
    with pytest.raises(Refusal) as caught:
        refuse_secrets(value, field="capability")
    assert caught.value.code is Code.INVALID_FIELD
    for secret in ("hunter2", "s3cr3t", "0123456789abcdef", "AKIA", "ghp_a"):
        assert secret not in caught.value.message


@pytest.mark.parametrize("value", HARMLESS)
def test_what_only_speaks_of_secrets_passes(value: dict[str, object]) -> None:
    """Schemas of secrets, placeholders and prose are no secrets."""
    refuse_secrets(value, field="capability")


@pytest.mark.parametrize("path", [".env", "conf/.env.local", "id_rsa", "keys/server.pem", "notes.txt"])
def test_a_skill_with_a_secret_in_it_is_refused(path: str) -> None:
    """Files that are made for secrets, and texts with one in them, are not sent to everybody."""
    data = b"token: " + b"ghp_" + b"b" * 36 if path == "notes.txt" else b"anything"
    with pytest.raises(Refusal):
        refuse_secret_files([BundleFile(path=path, data=data)])
    refuse_secret_files([BundleFile(path="SKILL.md", data=b"Read the token from $TOKEN. \xff\x00")])
