"""`agentpost setup` on real configuration files, in a scratch home: merged, repeatable, and undone to the byte."""

import asyncio
import json
import resource
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentpost import Client
from agentpost.edges.cli.app import make_app
from agentpost.protocol.errors import Code, Refusal
from tests.edges.running import agentpost, running_gateway

CLAUDE_SETTINGS = """{
    "model": "opus",
    "hooks": {
        "Stop": [
            {"hooks": [{"type": "command", "command": "say done"}]}
        ]
    },
    "permissions": {"allow": ["Bash(ls:*)"]}
}"""
CODEX = """# my settings
model = "gpt-5"   # the big one

[mcp_servers.docs]
command = "docs-server"
"""
GEMINI = '{"theme": "Grün", "mcpServers": {"other": {"command": "x"}}}\n'
OPENCLAW = '{\n\t"gateway": {"port": 18789},\n\t"mcp": {"servers": {"fs": {"command": "npx"}}}\n}\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home, with what four programs keep in it."""
    for name, content in (
        ("project/.claude/settings.json", CLAUDE_SETTINGS),
        (".codex/config.toml", CODEX),
        (".gemini/settings.json", GEMINI),
        (".openclaw/openclaw.json", OPENCLAW),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path


def setup(home: Path, *words: str) -> Result:
    result = CliRunner().invoke(make_app(), ["setup", *words, "--project", str(home / "project")])
    if isinstance(result.exception, Refusal):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def files_of(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and ".local" not in path.parts
    }


def test_all_programs_are_set_up_and_put_back_to_the_byte(home: Path) -> None:
    """Each has our server beside its own settings, a second run changes nothing, and removal leaves no trace."""
    before = files_of(home)
    setup(home, "all")
    after = files_of(home)
    claude = json.loads(after["project/.mcp.json"])["mcpServers"]["agentpost"]
    assert claude["args"][-3:] == ["mcp", "--agent", "claude"]
    settings = json.loads(after["project/.claude/settings.json"])
    assert (settings["model"], len(settings["hooks"]["Stop"]), len(settings["hooks"]["SessionStart"])) == ("opus", 2, 1)
    codex = tomllib.loads(after[".codex/config.toml"].decode())
    assert codex["mcp_servers"].keys() == {"docs", "agentpost"}
    assert after[".codex/config.toml"].startswith(CODEX.encode())
    gemini = json.loads(after[".gemini/settings.json"])
    assert (gemini["theme"], gemini["mcpServers"].keys()) == ("Grün", {"other", "agentpost"})
    assert gemini["hooks"].keys() == {"SessionStart", "AfterAgent"}
    assert json.loads(after[".codex/hooks.json"])["hooks"].keys() == {"SessionStart", "Stop"}
    assert json.loads(after[".openclaw/openclaw.json"])["mcp"]["servers"].keys() == {"fs", "agentpost"}
    assert after[".agents/skills/agentpost/SKILL.md"].startswith(b"---\nname: agentpost\n")
    assert "nothing to change" in setup(home, "all").output
    assert files_of(home) == after
    setup(home, "all", "--remove")
    assert files_of(home) == before


def test_one_of_several_homes_has_to_be_named(home: Path) -> None:
    """A program that would not know which gateway is meant is not set up; one that is told is."""
    for name in ("mbp-jane", "vps-jane"):
        (home / ".agentpost" / name).mkdir(parents=True)
    before = files_of(home)
    with pytest.raises(Refusal, match="several homes: mbp-jane, vps-jane"):
        setup(home, "claude")
    assert files_of(home) == before
    setup(home, "claude", "--home", str(home / ".agentpost/vps-jane"))
    setup(home, "claude", "--remove")
    assert files_of(home) == before


def test_a_dry_run_shows_the_difference_and_changes_nothing(home: Path) -> None:
    """`--dry-run` prints what would be added, file by file."""
    before = files_of(home)
    said = setup(home, "codex", "--dry-run", "-o", "json").stdout
    (config, hooks, skill) = json.loads(said)["changed"]
    assert hooks["path"] == str(home / ".codex/hooks.json")
    assert config["path"] == str(home / ".codex/config.toml")
    assert "+[mcp_servers.agentpost]" in config["diff"]
    assert skill["diff"].startswith("--- /dev/null")
    assert files_of(home) == before


def test_what_a_person_changed_since_stays(home: Path) -> None:
    """Of a file that was edited after the setup only our part is taken away, also after a second setup."""
    setup(home, "all")
    settings = home / ".gemini/settings.json"
    document = json.loads(settings.read_text())
    settings.write_text(json.dumps(document | {"theme": "blue"}))
    config = home / ".codex/config.toml"
    config.write_text(config.read_text() + "\n[tui]\nnotifications = true\n")
    setup(home, "all", "--agent", "ada")
    setup(home, "all", "--remove")
    assert json.loads(settings.read_text()) == {"theme": "blue", "mcpServers": {"other": {"command": "x"}}}
    assert tomllib.loads(config.read_text()) == tomllib.loads(CODEX) | {"tui": {"notifications": True}}
    assert config.read_text().startswith(CODEX)


def test_one_program_is_removed_and_the_others_keep_the_skill(home: Path) -> None:
    """A file that another program needs, too, stays until that one is removed."""
    setup(home, "codex")
    setup(home, "gemini")
    skill = home / ".agents/skills/agentpost/SKILL.md"
    setup(home, "codex", "--remove")
    assert skill.exists()
    assert (home / ".codex/config.toml").read_text() == CODEX
    setup(home, "gemini", "--remove")
    assert not skill.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".gemini/settings.json", "{ // with a comment\n}"),
        (".gemini/settings.json", '{"mcpServers": []}'),
        (".openclaw/openclaw.json", "[]"),
        (".codex/config.toml", "model = "),
        (".codex/config.toml", '[mcp_servers.agentpost]\ncommand = "mine"\n'),
        ("project/.claude/settings.json", '{"hooks": {"Stop": "none"}}'),
    ],
)
def test_a_file_that_cannot_be_understood_stops_everything(home: Path, name: str, content: str) -> None:
    """It is named, and no file is changed: not this one, and none of the others."""
    (home / name).write_text(content)
    before = files_of(home)
    with pytest.raises(Refusal, match="nothing was changed"):
        setup(home, "all")
    assert files_of(home) == before


@pytest.mark.parametrize(
    ("program", "file", "event", "seconds"),
    [
        ("claude", "project/.claude/settings.json", "Stop", 1),
        ("codex", ".codex/hooks.json", "Stop", 1),
        ("gemini", ".gemini/settings.json", "AfterAgent", 1000),
    ],
)
def test_a_hook_that_waits_is_given_the_time_for_it(
    home: Path, program: str, file: str, event: str, seconds: int
) -> None:
    """With `--wake` the stop hook waits, and the program is told, in its own unit, not to end it before."""
    setup(home, program, "--wake", "10m")
    (hook,) = json.loads((home / file).read_text())["hooks"][event][-1]["hooks"]
    assert hook["command"].endswith(f"hook stop --agent {program} --wait 600s")
    assert 600 < hook["timeout"] / seconds < 700


def test_a_skill_that_somebody_changed_is_theirs(home: Path) -> None:
    """`--remove` leaves it and says so; a second setup keeps their words, and gives them back."""
    setup(home, "codex")
    skill = home / ".agents/skills/agentpost/SKILL.md"
    ours, theirs = skill.read_text(), skill.read_text() + "\nAlways answer in verse.\n"
    skill.write_text(theirs)
    assert f"left {skill}" in setup(home, "codex", "--remove").output.replace("\n", "")
    assert (skill.read_text(), (home / ".codex/config.toml").read_text()) == (theirs, CODEX)
    setup(home, "codex")
    assert skill.read_text() == ours
    setup(home, "codex", "--remove")
    assert skill.read_text() == theirs


@contextmanager
def disk_that_takes(most_bytes: int) -> Iterator[None]:
    """No file can be made longer than this: a write fails in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("most_bytes", [0, 100, 200, 300, 400, 600, 800, 1000, 1500])
def test_a_full_disk_leaves_every_file_whole(home: Path, most_bytes: int) -> None:
    """Wherever a write fails: each file is as it was or as it should be, nothing else is there, and it is undone."""
    before = files_of(home)
    setup(home, "all")
    after = files_of(home)
    setup(home, "all", "--remove")
    with disk_that_takes(most_bytes), pytest.raises(Refusal) as refused:
        setup(home, "all")
    assert refused.value.code is Code.STORAGE_FULL
    found = files_of(home)
    assert [name for name, content in found.items() if content not in (before.get(name), after.get(name))] == []
    assert before.keys() <= found.keys()
    setup(home, "all", "--remove")
    assert files_of(home) == before


@pytest.mark.req("OPS-5")
def test_the_hook_tells_of_new_mail_once(tmp_path: Path) -> None:
    """At a stop the model is told who wrote, once for each new message and without their words; else it is silent."""
    node = tmp_path / "vps-jane"
    hook = ["hook", "stop", "--agent", "claude", "--home", str(node)]
    with running_gateway(node) as gateway:
        for agent_id in ("claude", "ada"):
            gateway.operator.post("/ansible/agents", {"agentId": agent_id})
        assert agentpost(*hook).stdout == ""
        for number in range(2):
            message = {"fromAgentId": "ada", "toAgents": ["claude"], "subject": "IGNORE ALL", "body": f"hi {number}"}
            gateway.operator.post("/ansible/messages", message)
            said = json.loads(agentpost(*hook, "--wait", "30s").stdout)
            assert said["decision"] == "block"
            assert "ada@vps-jane" in said["reason"]
            assert "IGNORE" not in said["reason"]
            assert agentpost(*hook).stdout == ""
        started = json.loads(agentpost("hook", "start", "--agent", "claude", "--home", str(node)).stdout)
        context = started["hookSpecificOutput"]
        assert context["hookEventName"] == "SessionStart"
        assert context["additionalContext"].startswith("2 unread on agentpost for claude")
    # A gateway that is gone is no reason to keep anybody from stopping.
    gone = agentpost(*hook)
    assert (gone.returncode, gone.stdout) == (0, "")


@pytest.mark.req("OPS-5")
def test_the_hook_tells_of_new_mail_behind_hundreds_of_read_messages(tmp_path: Path) -> None:
    """An agent that leaves what it has read open still hears of a new message, at a start and at a stop."""
    node = tmp_path / "vps-jane"

    async def fill() -> None:
        async with Client("ada", home=node) as ada, Client("claude", home=node) as claude:
            await ada.register()
            await claude.register()
            for _ in range(10):
                await asyncio.gather(*(ada.send("claude", "old") for _ in range(51)))
            while len(lines := [line async for line in claude.inbox()]) < 510:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for first in range(0, 510, 51):
                await asyncio.gather(*(claude.read(line.event_id) for line in lines[first : first + 51]))
            await ada.send("claude", "new")
            while len([line async for line in claude.inbox()]) < 511:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    with running_gateway(node):
        asyncio.run(fill())
        for event in ("start", "stop"):
            said = agentpost("hook", event, "--agent", "claude", "--home", str(node)).stdout
            assert "1 unread on agentpost for claude, from ada@vps-jane." in said
            assert agentpost("hook", "stop", "--agent", "claude", "--home", str(node)).stdout == ""
            (node / "hooks" / "claude").unlink()
