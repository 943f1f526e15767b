"""Contracts are programs of strangers: what they may cost a gateway, and that nothing of them is left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock
from agentpost.work.contracts import ContractChecker
from tests.edges.meshing import eventually
from tests.edges.running import TIMEOUT_SECONDS, ServedGateway, running_gateway, served_gateway
from tests.work.building import CAPABILITY, a_declaration, write_pair

SKILLS = Path("skills/scribe")
ORDINARY = {"type": "object", "required": ["document"], "properties": {"document": {"type": "string"}}}


def doubling_references(levels: int = 40) -> dict[str, Any]:
    """Each part refers to the next one twice: 2 to the power of `levels` steps."""
    parts: dict[str, Any] = {f"p{n}": {"allOf": [{"$ref": f"#/$defs/p{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": parts | {f"p{levels}": {"type": "object"}}, "$ref": "#/$defs/p0"}


def doubling_alternatives(levels: int = 40) -> dict[str, Any]:
    """The same with alternatives, and with a rule that makes the validator keep all of what it found."""
    parts: dict[str, Any] = {f"p{n}": {"anyOf": [{"$ref": f"#/$defs/p{n + 1}"}] * 2} for n in range(levels)}
    last = {f"p{levels}": {"properties": {"x": True}}}
    return {"$defs": parts | last, "$ref": "#/$defs/p0", "unevaluatedProperties": False}


def hidden(bomb: dict[str, Any]) -> dict[str, Any]:
    """A bomb that only goes off with one value, so that its publisher's gateway does not see it."""
    return {
        "$defs": bomb.pop("$defs"),
        "if": {"type": "object", "properties": {"word": {"const": "now"}}, "required": ["word"]},
        "then": bomb,
    }


@pytest.fixture
async def checker() -> AsyncIterator[ContractChecker]:
    made = ContractChecker(FakeClock())
    yield made
    await made.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    home = tmp_path / "home"
    with served_gateway(home, clock=FakeClock()) as served:
        served.operator.post("/ansible/agents", {"agentId": "scribe"})
        write_pair(home / SKILLS)
        yield served


def contract(**sides: Any) -> dict[str, Any]:
    return a_declaration()["contract"] | sides


def create(served: Any, **said: Any) -> Any:
    task = {"title": "Sum up", "requesterAgentId": "scribe", "requiredCapabilities": [CAPABILITY]}
    return served.operator.post("/ansible/tasks", task | {"input": said})


@pytest.mark.req("CAP-2", "CAP-5")
@pytest.mark.parametrize("bomb", [doubling_references, doubling_alternatives])
@pytest.mark.parametrize("side", ["input", "output", "failure"])
def test_a_contract_that_costs_too_much_is_not_published(
    served: ServedGateway, bomb: Callable[[], dict[str, Any]], side: str
) -> None:
    """A short schema that takes hours or all memory is refused at publish, and the gateway still serves."""
    with pytest.raises(Refusal, match="cannot be checked with") as caught:
        served.operator.post("/ansible/capabilities", a_declaration(contract=contract(**{side: bomb()})))
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, f"contract.{side}")
    served.operator.post("/ansible/capabilities", a_declaration())


@pytest.mark.req("CAP-5")
def test_a_contract_that_costs_too_much_later_does_not_stop_the_gateway(served: ServedGateway) -> None:
    """A schema that goes off with one value only: that task is refused, and all else is answered meanwhile."""
    served.operator.post("/ansible/capabilities", a_declaration(contract=contract(input=hidden(doubling_references()))))
    with ThreadPoolExecutor() as threads:
        tried = [threads.submit(create, served, word="now") for _ in range(3)]
        assert served.operator.get("/operator/status")["phase"] == "ready"
        for each in tried:
            with pytest.raises(Refusal, match="input: the contract cannot be checked with") as caught:
                each.result()
            assert caught.value.code is Code.CONTRACT_MISMATCH


@pytest.mark.req("CAP-5")
async def test_a_contract_over_its_budget_does_not_spoil_the_others(checker: ContractChecker) -> None:
    """After a child was ended, the next one checks what comes; the same contract is refused for a while."""
    with pytest.raises(Refusal, match="cannot be checked with"):
        await checker.check(doubling_references(), {}, field="input")
    await checker.check(ORDINARY, {"document": "x"}, field="input")
    with pytest.raises(Refusal, match="cannot be checked with"):
        await checker.check(doubling_references(), {}, field="input")


@pytest.mark.req("CAP-5")
async def test_a_child_that_was_killed_says_nothing_of_a_contract(checker: ContractChecker) -> None:
    """The system or a person may kill a child at any moment: the check is made again by the next one."""
    for _ in range(5):
        await checker.check(ORDINARY, {"document": "x"}, field="input")
        for pid in filter(is_checker, children_of(os.getpid())):
            os.kill(pid, signal.SIGKILL)
        await checker.check(ORDINARY, {"document": "x"}, field="input")


@pytest.mark.req("CAP-5")
async def test_a_close_while_a_child_starts_leaves_no_process(checker: ContractChecker) -> None:
    """A check that has just begun when the gateway stops is refused, and its child ends."""
    before = set(children_of(os.getpid()))
    checking = asyncio.ensure_future(checker.check(ORDINARY, {"document": "x"}, field="input"))
    while not set(children_of(os.getpid())) - before and not checking.done():  # noqa: ASYNC110 - the system tells nobody
        await asyncio.sleep(0)
    started = set(children_of(os.getpid())) - before
    await checker.close()
    with pytest.raises(Refusal) as caught:
        await checking
    assert caught.value.code is Code.UNAVAILABLE
    assert not any(is_checker(pid) for pid in started)


@pytest.mark.req("CAP-5")
async def test_a_mismatch_says_where_and_repeats_nothing(checker: ContractChecker) -> None:
    """The refusal names the place and the rule, and not the value, which may be a secret."""
    with pytest.raises(Refusal) as caught:
        await checker.check(ORDINARY, {"document": ["hunter2"]}, field="input")
    assert caught.value.message == "input breaks the contract: /document: does not fit `properties/document/type`"


@pytest.mark.req("CAP-5")
@pytest.mark.parametrize(
    "schema",
    [{"type": "nothing"}, {"$ref": "https://example.com/x"}, {"$ref": "file:///etc/passwd"}, {"pattern": "("}, [], 7],
)
async def test_what_is_no_schema_is_refused(checker: ContractChecker, schema: Any) -> None:
    """A schema that is none, or that refers to something outside itself, is refused in plain words."""
    with pytest.raises(Refusal, match="the contract is not a JSON Schema"):
        await checker.check_schema(schema)


@pytest.mark.req("CAP-5")
async def test_a_large_value_gets_a_budget_of_its_size(checker: ContractChecker) -> None:
    """What a task may carry can be checked: 40 million characters, and a million numbers."""
    await checker.check({"type": "string"}, "x" * 40_000_000, field="output")
    await checker.check({"items": {"type": "integer"}}, [1] * 1_000_000, field="output")


@pytest.mark.req("CAP-5")
async def test_a_closed_checker_leaves_no_process(checker: ContractChecker) -> None:
    """Closing ends the children, and a check that comes later is refused."""
    await checker.check(ORDINARY, {"document": "x"}, field="input")
    before = children_of(os.getpid())
    await checker.close()
    with pytest.raises(Refusal) as caught:
        await checker.check(ORDINARY, {"document": "x"}, field="input")
    assert caught.value.code is Code.UNAVAILABLE
    assert not any(is_checker(pid) for pid in before)


@pytest.mark.req("CAP-5")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("word", ["later", "now"])
def test_a_gateway_leaves_no_checker_behind(tmp_path: Path, how: signal.Signals, word: str) -> None:
    """Whether the gateway is stopped or killed, while a contract is checked or not: its children end."""
    home = tmp_path / "home"
    with running_gateway(home) as gateway, ThreadPoolExecutor() as threads:
        gateway.operator.post("/ansible/agents", {"agentId": "scribe"})
        write_pair(home / SKILLS)
        declared = a_declaration(contract=contract(input=hidden(doubling_references())))
        gateway.operator.post("/ansible/capabilities", declared)
        found = [pid for pid in children_of(gateway.process.pid) if is_checker(pid)]
        assert found
        trying = threads.submit(create, gateway, word=word)
        gateway.end(how)
        # It may have been answered, or refused, or cut off.
        trying.exception()
    eventually(lambda: not any(is_checker(pid) for pid in found))


@pytest.mark.waits
@pytest.mark.req("CAP-5", "OPS-3")
def test_the_output_of_the_last_turn_is_still_checked(tmp_path: Path) -> None:
    """A gateway that stops waits for the turn that is running: its output is checked, and the task completed."""
    home, started, go = tmp_path / "vps-jane", tmp_path / "started", tmp_path / "go"
    program = (
        "import pathlib, time\n"
        f"pathlib.Path({str(started)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)\n"
        """print('{"reply": {"resultSummary": "done", "output": {"summary": "x"}}}')"""
    )
    options = {"argv": [sys.executable, "-I", "-S", "-c", program], "output": "json"}
    with running_gateway(home) as gateway:
        gateway.operator.post("/ansible/agents", {"agentId": "ada"})
        gateway.operator.post("/ansible/agents", {"agentId": "scribe", "runtime": "command", "options": options})
        write_pair(home / SKILLS)
        gateway.operator.post("/ansible/capabilities", a_declaration())
        task = {"title": "Sum up", "requesterAgentId": "ada", "requiredCapabilities": [CAPABILITY]}
        task_id = gateway.operator.post("/ansible/tasks", task | {"input": {"document": "x"}})["taskId"]
        eventually(started.exists)
        gateway.process.send_signal(signal.SIGTERM)
        eventually(lambda: not (home / "operator.sock").exists())
        go.touch()
        assert gateway.process.wait(TIMEOUT_SECONDS) == 0
    with running_gateway(home) as gateway:
        eventually(lambda: gateway.operator.get(f"/ansible/tasks/{task_id}")["task"]["state"] == "completed")


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def is_checker(pid: int) -> bool:
    try:
        return b"contract_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
