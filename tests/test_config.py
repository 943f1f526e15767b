"""What the file in a home may say of mail."""

from pathlib import Path

import pytest

from agentpost.config import CONFIG_FILE, Settings, load_settings
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.protocol.errors import Code, Refusal


def settings_of(home: Path, text: str) -> Settings:
    (home / CONFIG_FILE).write_text('node = "vps-jane"\n' + text)
    return load_settings(home=home, flags={}, environment={})


@pytest.mark.req("RTY-1", "ACK-4")
def test_the_defaults_of_the_spec_hold_where_nothing_is_said(tmp_path: Path) -> None:
    """Without a table, and with one that says only some of it, the rest is as by default."""
    assert settings_of(tmp_path, "").delivery == DeliveryPolicy()
    said = settings_of(
        tmp_path, "[delivery]\naccepted_ack_timeout_seconds = 7\n[delivery.resend]\nmax_attempts = 3\n"
    ).delivery
    assert said.accepted_ack_timeout_seconds == 7
    assert (said.resend.max_attempts, said.resend.base_seconds) == (3, DeliveryPolicy().resend.base_seconds)
    assert said.processed_sla_grace_seconds == 120


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[delivery]\nsurprise = 1\n", "delivery.surprise"),
        ("[delivery.resend]\nsurprise = 1\n", "delivery.resend.surprise"),
        ("[delivery]\nretention_events = -1\n", "retentionEvents"),
        ('[delivery]\nretention_events = "many"\n', "retentionEvents"),
        ("[delivery]\npayload_grace_seconds = 59\n", "payloadGraceSeconds"),
        ("[delivery.resend]\nfactor = 0.5\n", "factor"),
        ("delivery = 3\n", "table"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    """The refusal says which line of the file is wrong, and the gateway does not start with half of it."""
    with pytest.raises(Refusal) as refused:
        settings_of(tmp_path, text)
    assert refused.value.code is Code.INVALID_FIELD
    assert named in refused.value.message
    assert CONFIG_FILE in refused.value.message


@pytest.mark.req("EXT-2")
def test_the_lifetimes_of_tokens_can_be_set_within_their_bounds(tmp_path: Path) -> None:
    """What is not said is as by default; minutes for access and days for refreshing are not left."""
    said = settings_of(tmp_path, "[external]\naccess_seconds = 300\n").external
    assert (said.access_seconds, said.refresh_seconds) == (300, 3 * 86_400)
    for text in ("access_seconds = 3600", "refresh_seconds = 60", "refresh_grace_seconds = 61", "surprise = 1"):
        with pytest.raises(Refusal) as refused:
            settings_of(tmp_path, f"[external]\n{text}\n")
        assert refused.value.code is Code.INVALID_FIELD
        assert "external" in str(refused.value.field)


def test_networks_for_notifications_come_from_the_file(tmp_path: Path) -> None:
    """The table [a2a] names networks; what is none is refused with the name of the setting."""
    said = settings_of(tmp_path, '[a2a]\npush_networks = ["10.1.0.0/16", "::1/128"]\n').a2a
    assert said.push_networks == ("10.1.0.0/16", "::1/128")
    assert settings_of(tmp_path, "").a2a.push_networks == ()
    for text in ('push_networks = ["10.1.0.0/99"]', 'push_networks = ["localhost"]', "push_networks = 7", "push = []"):
        with pytest.raises(Refusal) as refused:
            settings_of(tmp_path, f"[a2a]\n{text}\n")
        assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, "a2a"), text
