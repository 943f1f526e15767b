"""`mailbox serve`: a mailbox file for other programs, over a Unix socket, HTTP and WebSocket."""

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from agentpost.edges.cli.output import Format, FormatOption, print_json_line, say
from agentpost.edges.open_files import raise_open_files
from agentpost.logs import make_logs_safe
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.sweeping import keep_swept
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import write_private
from agentpost.tasks import TaskOwner
from agentpost.world import SystemChance

__all__ = ["DEFAULT_FILE", "serve"]

DEFAULT_FILE: Final = Path("~/.agentpost/mailbox.db").expanduser()


def serve(
    file: Annotated[Path, typer.Option("--file", help="The mailbox file.")] = DEFAULT_FILE,
    socket: Annotated[
        Path | None, typer.Option("--socket", help="Serve line-delimited JSON-RPC on this Unix socket.")
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", help="Serve HTTP and WebSocket on HOST:PORT, with a token.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Serve a mailbox file to other programs, until Ctrl-C. With JSON, one line says where, once it can be used."""
    if socket is None and http is None:
        raise typer.BadParameter("say where to serve it: --socket PATH, --http HOST:PORT, or both")
    uvloop.run(_serve(file, socket, http, output))


async def _serve(file: Path, socket: Path | None, http: str | None, output: Format) -> None:
    from agentpost.edges.mailbox.serving import serve_http
    from agentpost.edges.mailbox.unix import serve_unix

    raise_open_files()
    make_logs_safe(of_all=True)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)

    def on_failure(_: Refusal) -> None:
        loop.call_soon_threadsafe(stopping.set)

    async with AsyncExitStack() as stack:
        mailbox = await stack.enter_async_context(FileMailbox.open(file, on_failure=on_failure))
        tasks = TaskOwner("mailbox")
        stack.push_async_callback(tasks.close)
        tasks.spawn(keep_swept(mailbox), name="sweeper")
        served = {"file": str(file)}
        if socket is not None:
            await stack.enter_async_context(serve_unix(mailbox, socket))
            served["socket"] = f"unix:{socket}"
        if http is not None:
            host, port = _host_and_port(http)
            token_file, token = _token_of(file)
            url = await stack.enter_async_context(serve_http(mailbox, host=host, port=port, token=token))
            served |= {"http": url, "tokenFile": str(token_file)}
        _tell_where(served, output)
        await stopping.wait()
        # Who waits for a message would hold up the end.
        mailbox.release()
    if mailbox.failure is not None:
        raise mailbox.failure


def _tell_where(served: dict[str, str], output: Format) -> None:
    if output is Format.JSON:
        print_json_line(served)
        return
    for name, place in served.items():
        say(f"{name}: {place}")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise Refusal(Code.INVALID_FIELD, f"{address} is not HOST:PORT", hint="For example 127.0.0.1:8700.")
    return host.strip("[]"), int(port)


def _token_of(file: Path) -> tuple[Path, str]:
    """The token of a mailbox file, kept beside it for its owner alone."""
    path = file.with_name(file.name + ".token")
    if not path.exists():
        write_private(path, SystemChance().entropy(32).hex().encode() + b"\n")
    return path, path.read_text().strip()
