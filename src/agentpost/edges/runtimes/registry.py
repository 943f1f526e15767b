"""From an agent's runtime and options, as they are stored, to the object that engages it."""

from collections.abc import Callable
from typing import Any, Final

from agentpost.delivery.ports import Runtime
from agentpost.delivery.pull import PULL
from agentpost.edges.runtimes.command import CommandOptions, CommandRuntime
from agentpost.edges.runtimes.handler import HandlerOptions, HandlerRuntime, load_handler
from agentpost.edges.runtimes.mailbox import MailboxOptions, MailboxRuntime
from agentpost.edges.runtimes.options import read_options
from agentpost.edges.runtimes.pull import PullOptions, PullRuntime
from agentpost.edges.runtimes.webhook import WebhookOptions, WebhookRuntime
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.values import LocalAgent
from agentpost.world import Clock, SystemClock

__all__ = ["RUNTIMES", "check_agent", "make_runtime"]


def make_runtime(agent: LocalAgent, *, clock: Clock | None = None) -> Runtime:
    """The runtime of an agent; a refusal that names the option if it cannot be made."""
    maker = RUNTIMES.get(agent.runtime)
    if maker is None:
        raise Refusal(
            Code.INVALID_FIELD,
            f"there is no runtime {agent.runtime!r:.40}",
            field="runtime",
            hint=f"Take one of {', '.join(RUNTIMES)}.",
        )
    return maker(agent.options, clock or SystemClock())


def check_agent(agent: LocalAgent) -> None:
    """Refuse an agent that could never be engaged. Starts nothing, connects nowhere."""
    make_runtime(agent)


def _command(options: dict[str, Any], _clock: Clock) -> Runtime:
    return CommandRuntime(read_options(CommandOptions, options))


def _webhook(options: dict[str, Any], clock: Clock) -> Runtime:
    return WebhookRuntime(read_options(WebhookOptions, options), clock=clock)


def _handler(options: dict[str, Any], _clock: Clock) -> Runtime:
    read = read_options(HandlerOptions, options)
    return HandlerRuntime(
        load_handler(read.function),
        max_concurrent=read.max_concurrent,
        is_idempotent=read.idempotent,
        timeout_seconds=read.timeout_seconds,
    )


def _pull(options: dict[str, Any], _clock: Clock) -> Runtime:
    read_options(PullOptions, options)
    return PullRuntime()


def _mailbox(options: dict[str, Any], clock: Clock) -> Runtime:
    return MailboxRuntime(read_options(MailboxOptions, options), clock=clock)


RUNTIMES: Final[dict[str, Callable[[dict[str, Any], Clock], Runtime]]] = {
    "command": _command,
    "webhook": _webhook,
    "handler": _handler,
    PULL: _pull,
    "mailbox": _mailbox,
}
