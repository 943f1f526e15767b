"""What the demo says on a machine that lacks a part of it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from agentpost.demo import models


def test_a_step_that_is_left_out_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the MCP SDK the demo leaves the model out, and names the whole command that brings it."""
    monkeypatch.setattr(models, "find_spec", lambda _name: None)
    said = io.StringIO()
    assert models.show_model(tmp_path, Console(file=said, width=200)) is None
    assert "pip install 'agentpost[mcp]'" in said.getvalue()
