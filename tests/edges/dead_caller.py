"""Programs that fetch mail and are killed: each prints what it has got, as soon as it has it.

`http` moves the bytes of the answer from the connection to stdout without ever holding them: what is not printed was
not read. `agent` is an `Agent`, `outside` an agent outside the mesh.
"""

import asyncio
import os
import select
import socket
import sys
from pathlib import Path

import msgspec

from agentpost import Agent, Message
from agentpost.edges.outside import OutsideClient


def http(home: str, agent_id: str) -> None:
    body = msgspec.json.encode({"limit": 1, "waitSeconds": 60})
    head = f"POST /ansible/agents/{agent_id}/fetch HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(Path(home) / "operator.sock"))
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        _print("waiting")
        # Only when there is something: a splice that waits keeps the pipe from its reader.
        while select.select([connection], [], [])[0] and os.splice(connection.fileno(), sys.stdout.fileno(), 65536):
            pass


def agent(home: str, agent_id: str) -> None:
    worker = Agent(agent_id, home=home, concurrency=8)

    @worker.on_message
    async def answer(message: Message) -> str:  # pyright: ignore[reportUnusedFunction] - the agent calls it
        return f"heard {message.content.body}"

    _print("waiting")
    worker.run()


def outside(credentials: str, _agent_id: str) -> None:
    async def claim() -> None:
        async with OutsideClient(Path(credentials)) as post:
            _print("waiting")
            args = {"claim": True, "waitSeconds": 60}
            _print(msgspec.json.encode(await post.call("ansible_read_messages", args)).decode())

    asyncio.run(claim())


def _print(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    {"http": http, "agent": agent, "outside": outside}[sys.argv[1]](*sys.argv[2:])
