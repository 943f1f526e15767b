"""Tools for the mesh: its state, who coordinates, who does what, and what can be asked for."""

from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from pydantic import Field
from typing_extensions import TypedDict

from agentpost.edges.mcp.mail import lines_of
from agentpost.edges.mcp.telling import CHANGES, LOOKS, REMOVES, said, told
from agentpost.edges.operator_client import path_of
from agentpost.edges.sdk.client import Client

__all__ = ["add_mesh_tools", "agent_lines"]


class AgentLine(TypedDict):
    agent: str
    node: str | None
    status: str
    online: bool


class NodeLine(TypedDict):
    node: str
    tier: str | None
    status: str


class Status(TypedDict):
    agent: str
    node: str
    phase: str
    version: str
    nodes: list[NodeLine]
    agents: list[AgentLine]
    unread: int


def add_mesh_tools(server: MCPServer, client: Client) -> None:
    @server.tool(name="ansible_status", title="Status of the mesh", annotations=LOOKS)
    @told
    async def status() -> Status:
        """Who you are, which agents and gateways there are, who is online, and whether something waits for you."""
        gateway = await client.status()
        waiting = await lines_of(client, only_open=True)
        return Status(
            agent=client.agent,
            node=gateway["nodeId"],
            phase=gateway["phase"],
            version=gateway["version"],
            nodes=[
                NodeLine(node=each["nodeId"], tier=each.get("tier"), status=each["status"])
                for each in await client.nodes()
            ],
            agents=await agent_lines(client),
            unread=sum(not line.is_read for line in waiting),
        )

    @server.tool(name="ansible_get_coordination", title="Coordination", annotations=LOOKS)
    @told
    async def get_coordination() -> dict[str, Any]:
        """Who coordinates, how often it looks for stale work, and what its latest sweeps came to."""
        return await client.calls.get("/ansible/coordination")

    @server.tool(name="ansible_set_coordination_preference", title="Prefer a coordinator", annotations=CHANGES)
    @told
    async def set_coordination_preference(
        desired_coordinator: Annotated[str | None, Field(description="A node.")] = None,
        desired_sweep_every_seconds: int | None = None,
    ) -> dict[str, Any]:
        """Say whom this node would like to coordinate: it decides who acts while the coordinator is silent."""
        wish = {
            "desiredCoordinator": desired_coordinator,
            "desiredSweepEverySeconds": desired_sweep_every_seconds,
        }
        return await client.calls.post("/ansible/coordination/preference", said(wish))

    @server.tool(name="ansible_set_coordination", title="Set the coordinator", annotations=REMOVES)
    @told
    async def set_coordination(
        coordinator: Annotated[str | None, Field(description="A node.")] = None,
        sweep_every_seconds: int | None = None,
        confirm_last_resort: Annotated[
            bool, Field(description="To put a node in the place of another: ask your person first.")
        ] = False,
    ) -> dict[str, Any]:
        """Appoint the coordinator, or set how often it sweeps."""
        wish = {
            "coordinator": coordinator,
            "sweepEverySeconds": sweep_every_seconds,
            "confirmLastResort": confirm_last_resort,
        }
        return await client.calls.post("/ansible/coordination", said(wish))

    @server.tool(name="ansible_get_delegation_policy", title="Delegation policy", annotations=LOOKS)
    @told
    async def get_delegation_policy() -> dict[str, Any]:
        """Who does what: the table of intents, who has acknowledged it, and what needs action."""
        return await client.calls.get("/ansible/delegation")

    @server.tool(name="ansible_set_delegation_policy", title="Set the delegation policy", annotations=REMOVES)
    @told
    async def set_delegation_policy(
        intents: Annotated[list[dict[str, Any]], Field(description="The rows of the table; all of them.")],
    ) -> dict[str, Any]:
        """Set who does what. Only the coordinator's gateway may; every active agent is told."""
        return await client.calls.post("/ansible/delegation", {"by": client.agent, "intents": intents})

    @server.tool(name="ansible_ack_delegation_policy", title="Acknowledge the policy", annotations=CHANGES)
    @told
    async def ack_delegation_policy(version: str, checksum: str) -> dict[str, Any]:
        """Say that you have the delegation policy of this version and checksum."""
        acknowledged = {"agentId": client.agent, "version": version, "checksum": checksum}
        return await client.calls.post("/ansible/delegation/ack", acknowledged)

    @server.tool(name="ansible_capability_publish", title="Publish a capability", annotations=CHANGES)
    @told
    async def capability_publish(
        declaration: Annotated[dict[str, Any], Field(description="As docs/capabilities.md describes it.")],
    ) -> dict[str, Any]:
        """Offer a capability of an agent of this gateway. The version before is retired."""
        return await client.calls.post("/ansible/capabilities", declaration)

    @server.tool(name="ansible_capability_unpublish", title="Withdraw a capability", annotations=REMOVES)
    @told
    async def capability_unpublish(capability_id: str) -> dict[str, Any]:
        """Withdraw a capability: from now on no task can ask for it."""
        return await client.calls.delete(path_of("ansible", "capabilities", capability_id))

    @server.tool(name="ansible_capability_list", title="Capabilities", annotations=LOOKS)
    @told
    async def capability_list() -> list[dict[str, Any]]:
        """What agents of the mesh can be asked for by capability."""
        return await client.calls.get("/ansible/capabilities")

    # The decorators have them; without this they look unused.
    _ = (
        status,
        get_coordination,
        set_coordination_preference,
        set_coordination,
        get_delegation_policy,
        set_delegation_policy,
        ack_delegation_policy,
        capability_publish,
        capability_unpublish,
        capability_list,
    )


async def agent_lines(client: Client) -> list[AgentLine]:
    return [
        AgentLine(agent=each["agentId"], node=each.get("nodeId"), status=each["status"], online=each["isOnline"])
        for each in await client.directory()
    ]
