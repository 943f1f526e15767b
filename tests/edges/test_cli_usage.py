"""Words of the command line that it cannot mean: exit code 2, and what is allowed."""

import json
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from agentpost.delivery.dispatch import Resolution
from agentpost.edges.cli import agents, mail, setup, tasks
from agentpost.edges.runtimes.registry import RUNTIMES
from agentpost.edges.setup.clients import ClientName
from agentpost.work.tasks import Role
from tests.warm.client import run_warm

# Each with what has to be said of it.
MISUSED = [
    ("send hi --to b --priority urgent", "priority", "'low', 'normal', 'high'"),
    ("send hi --to b --wait abc", "wait", "90s, 15m, 2h or 7d"),
    ("send hi --to b --wait 5", "wait", "90s, 15m, 2h or 7d"),
    ("send hi --to b --ttl 0s", "ttl", "from 1s to 366d"),
    ("send hi", "to", "--to with an agent, or --capability"),
    ("send", "body", "Missing argument"),
    ("fetch --wait 1h", "wait", "from 0s to 5m"),
    ("inbox --limit 0", "limit", "greater than or equal to 1"),
    ("resolve evt_1 --how bogus", "how", "'retry', 'settle'"),
    ("task complete tsk_1 done --data [", "data", "JSON"),
    ("invite --node x --tier foo", "tier", "'backbone', 'edge'"),
    ("invite --node x --ttl 2d", "ttl", "from 1s to 24h"),
    ("up --node x --tier foo", "tier", "'backbone', 'edge'"),
    ("up --node x --listen 7801", "listen", "not an address"),
    ("agent invite --agent x --scope message.read --ttl 1h", "ttl", "from 5m to 15m"),
    ("agents add x --runtime magic", "runtime", "'command', 'webhook', 'handler', 'pull', 'mailbox'"),
    ("agents stand-ins x --failover maybe", "failover", "'wait'"),
    ("agents add x --option novalue", "option", "name=value"),
    ("agents add x --runtime mailbox --option file=~nobody-here/mail.db", None, "no such user"),
    ("status --home ~nobody-here/vps-jane", None, "no such user"),
    ("agents add x --runtime command", None, "needs a program, after --"),
    ("agents add x ./agent --runtime pull", None, "takes no program"),
    ("context --max-bytes 1", "max-bytes", "greater than or equal to 512"),
    ("task create it", "to", "--to with an agent, or --capability"),
    ("task create it --to b --deadline soon", "deadline", "90s, 15m, 2h or 7d"),
    ("task create it --to b --priority urgent", "priority", "'low', 'normal', 'high'"),
    ("task create it --to b --input {", "input", "JSON"),
    ("task claim tsk_1 --eta soon", "eta", "90s, 15m, 2h or 7d"),
    ("task update tsk_1 --progress 101", "progress", "less than or equal to 100"),
    ("task list --role boss", "role", "'requester', 'worker'"),
    ("coordination set --every 1s", "every", "from 10s to 1d"),
    ("setup emacs", "client", "'claude', 'codex', 'gemini', 'openclaw', 'all'"),
    ("setup claude --wake soon", "wake", "90s, 15m, 2h or 7d"),
    ("migrate phase never", "phase", "'dual_write'"),
    ("deadletters purge", "all", "all of them"),
    ("incidents close first", "incident_id", "integer"),
    ("audit --limit 0", "limit", "greater than or equal to 1"),
    ("mailbox receive x --wait long", "wait", "number"),
    ("agent revoke", None, "one of --session, --agent and --family"),
    ("coordination set", None, "say a node, or --every, or both"),
    ("mailbox serve", None, "--socket PATH, --http HOST:PORT, or both"),
    ("store", None, None),
    ("stroe", None, "'store'"),
    ("status --nonsense", None, "--nonsense"),
]


def run(words: str, *more: str, home: Path) -> subprocess.CompletedProcess[str]:
    return run_warm(*words.split(), *more, timeout=60, environment={"AGENTPOST_HOME": str(home), "COLUMNS": "200"})


@pytest.mark.parametrize(("words", "field", "allowed"), MISUSED)
def test_wrong_usage_is_exit_code_2_with_what_is_allowed(
    words: str, field: str | None, allowed: str | None, tmp_path: Path
) -> None:
    """Whichever option it is, and with no gateway to ask: 2, in words or as the one JSON shape of errors."""
    text = run(words, home=tmp_path)
    assert (text.returncode, "Traceback" in text.stderr) == (2, False)
    if allowed is None:
        return
    assert allowed in text.stderr
    assert "Value error" not in text.stderr
    as_json = run(words, "-o", "json", home=tmp_path)
    error = json.loads(as_json.stderr)["error"]
    assert (as_json.returncode, as_json.stdout, error.get("field")) == (2, "", field)
    assert error["code"] in ("invalid_field", "missing_route_fields")


@pytest.mark.parametrize("words", ["task show", "capability show", "review show", "deadletters show", "agents remove"])
def test_an_empty_id_is_not_all_of_them(words: str, tmp_path: Path) -> None:
    """Its path would be that of the list, whose answer is another."""
    shown = run(words, "", home=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "an id or a name is empty" in shown.stderr


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """What the machine says of it is a sentence, not a traceback."""
    file = "x" * 5000
    shown = run("agent accept --url http://127.0.0.1:9 --agent x --token x --credentials", file, home=tmp_path)
    assert (shown.returncode, "Traceback" in shown.stderr) == (2, False)
    assert f"{file}: File name too long" in shown.stderr


def test_words_that_are_repeated_for_a_quick_start_are_those_that_the_gateway_knows() -> None:
    """A command must not load the engine only to know which words an option has."""
    assert get_args(mail.Resolution) == tuple(Resolution)
    assert get_args(tasks.Role) == tuple(Role)
    assert get_args(agents.RuntimeName) == tuple(RUNTIMES)
    assert get_args(setup.Program) == (*ClientName, "all")
