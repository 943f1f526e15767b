"""From an agent's runtime and options, as they are stored, to the object that engages it."""

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from agentpost.delivery.ports import Runtime
from agentpost.delivery.pull import PULL
from agentpost.edges.runtimes.command import CommandOptions, CommandRuntime
from agentpost.edges.runtimes.handler import HandlerOptions, HandlerRuntime, load_handler
from agentpost.edges.runtimes.mailbox import MailboxOptions, MailboxRuntime
from agentpost.edges.runtimes.options import Options, read_options
from agentpost.edges.runtimes.pull import PullOptions, PullRuntime
from agentpost.edges.runtimes.webhook import WebhookOptions, WebhookRuntime
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.values import LocalAgent
from agentpost.world import Clock, SystemClock

__all__ = ["RUNTIMES", "RuntimeKind", "RuntimeRegistry", "check_agent", "make_runtime"]


class RuntimeRegistry:
    """Makes the runtime of an agent from its options. Implements `delivery.ports.Runtimes`."""

    def __call__(self, agent: LocalAgent, *, clock: Clock | None = None) -> Runtime:
        """The runtime of an agent; a refusal that names the option if it cannot be made."""
        kind = RUNTIMES.get(agent.runtime)
        if kind is None:
            raise Refusal(
                Code.INVALID_FIELD,
                f"there is no runtime {agent.runtime!r:.40}",
                field="runtime",
                hint=f"Take one of {', '.join(RUNTIMES)}.",
            )
        return kind.make(agent.options, clock or SystemClock())

    def secret_options(self, runtime: str) -> Collection[str]:
        kind = RUNTIMES.get(runtime)
        return () if kind is None else kind.options.SECRETS


make_runtime: Final = RuntimeRegistry()


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


class RuntimeKind(NamedTuple):
    """A runtime: its options, which declare those that are secret, and how it is made from them."""

    options: type[Options]
    make: Callable[[dict[str, Any], Clock], Runtime]


RUNTIMES: Final[dict[str, RuntimeKind]] = {
    "command": RuntimeKind(CommandOptions, _command),
    "webhook": RuntimeKind(WebhookOptions, _webhook),
    "handler": RuntimeKind(HandlerOptions, _handler),
    PULL: RuntimeKind(PullOptions, _pull),
    "mailbox": RuntimeKind(MailboxOptions, _mailbox),
}
