"""Joining, as the edges call it: every step of the handshake, rate-limited, and written to the audit log.

A step that cannot be written down does not happen: the caller gets the store's refusal instead of a grant.
"""

from agentpost.auth import audit
from agentpost.auth.challenge import Challenges
from agentpost.auth.exchange import Exchange
from agentpost.auth.guard import ReplayGuard
from agentpost.auth.invites import DEFAULT_TTL_SECONDS, Invites, NewInvite, hash_token
from agentpost.auth.limits import Limits, RateLimited, address_key, token_key
from agentpost.auth.redemption import Redemption
from agentpost.auth.signing import check_node_id
from agentpost.auth.tickets import DEFAULT_LIFE_SECONDS, Claims, Tickets
from agentpost.auth.wire import CONTROL_ROOM, Challenge, Entry, ExchangeRequest, Find, FindRoot, Grant, Whois
from agentpost.protocol.errors import MEANINGS, Code, Refusal
from agentpost.protocol.ids import InviteId
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry
from agentpost.world import Chance, Clock, IdMaker

__all__ = ["Joining"]

_OPERATOR = "operator"


class Joining:
    """One per gateway. `address` is where a request comes from, as far as the edge knows.

    `find` says who is known here; without it, those are the nodes that joined here. `find_root` gives the anchor of the
    mesh; without it, that is this node. `whois` asks the tailnet,
    where there is one.
    """

    def __init__(
        self,
        store: Store,
        identity: Identity,
        clock: Clock,
        chance: Chance,
        *,
        find: Find | None = None,
        find_root: FindRoot | None = None,
        whois: Whois | None = None,
        require_proof: bool = True,
        ticket_seconds: int = DEFAULT_LIFE_SECONDS,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._whois = whois
        self._find: Find = store.known_node if find is None else find
        self._limits = Limits(clock) if limits is None else limits
        ids, guard = IdMaker(clock, chance), ReplayGuard(store)
        self._invites = Invites(store, clock=clock, chance=chance, ids=ids)
        self._challenges = Challenges(store.node_id, identity, clock=clock, chance=chance)
        self._tickets = Tickets(store.node_id, identity, clock=clock, chance=chance, life_seconds=ticket_seconds)
        self._redemption = Redemption(store, guard, clock=clock, find=self._find)
        self._exchange = Exchange(
            store,
            identity,
            clock=clock,
            ids=ids,
            challenges=self._challenges,
            tickets=self._tickets,
            guard=guard,
            find=self._find,
            find_root=find_root or (lambda: (store.node_id, identity.signing_public)),
            require_proof=require_proof,
            whois=whois,
        )

    async def invite(
        self,
        *,
        tier: NodeTier,
        expected_node_id: str,
        created_by: str = _OPERATOR,
        ttl_seconds: int = DEFAULT_TTL_SECONDS,
        public_key: str | None = None,
        tailnet_name: str | None = None,
        replace_key: bool = False,
    ) -> NewInvite:
        """Make an invite. The token is in the answer, and nowhere else.

        With `replace_key` the node may come with another key than the one it has, which counts no more from now on.
        """
        if tailnet_name is not None and self._whois is None:
            raise Refusal(
                Code.INVALID_FIELD,
                "this gateway does not ask a tailnet",
                field="tailnet",
                hint="Start it with --tailnet-socket, or set tailnet_socket in its agentpost.toml.",
            )
        # All that can be wrong with it comes first: a key that was taken does not come back.
        self._invites.check(
            expected_node_id=expected_node_id, ttl_seconds=ttl_seconds, public_key=public_key, tailnet_name=tailnet_name
        )
        if replace_key:
            await self._take_key(expected_node_id, by=created_by)
        made = await self._invites.make(
            tier=tier,
            expected_node_id=expected_node_id,
            created_by=created_by,
            ttl_seconds=ttl_seconds,
            public_key=public_key,
            tailnet_name=tailnet_name,
        )
        await self._record(audit.invited(made, created_by=created_by, at_ms=self._clock.now_ms()))
        return made

    def challenge(self, node_id: str, *, address: str) -> Challenge:
        """What the node has to sign. It decides nothing and tells nothing of the node, so nothing is recorded."""
        self._limits.attempt([address_key(address, "challenge")])
        return self._challenges.make(node_id)

    async def exchange(self, request: ExchangeRequest, *, address: str, port: int = 0) -> Grant:
        """A ticket for an invite, or for the proof of a known node."""
        keys = [address_key(address, "exchange")]
        if request.invite_token is not None:
            keys.append(token_key(hash_token(request.invite_token)))
        try:
            self._limits.attempt(keys)
            granted = await self._exchange.exchange(request, address=address, port=port)
        except Refusal as refusal:
            entry = audit.grant_refused(refusal, node_id=request.node_id, address=address, at_ms=self._clock.now_ms())
            await self._refused(refusal, keys, entry)
            raise
        await self._record(
            audit.granted(
                granted.grant,
                node_id=request.node_id,
                invite_id=granted.invite_id,
                address=address,
                at_ms=self._clock.now_ms(),
            )
        )
        return granted.grant

    async def redeem(self, ticket: str, *, room: str = CONTROL_ROOM, address: str) -> Entry:
        """Use a ticket for a connection to the room. Once this returns, register the connection before you await."""
        keys = [address_key(address, "redeem")]
        claims: Claims | None = None
        try:
            self._limits.attempt(keys)
            claims = self._tickets.read(ticket)
            entry = await self._redemption.redeem(claims, room=room)
            await self._record(audit.redeemed(entry, room=room, address=address, at_ms=self._clock.now_ms()))
            # ROOM-6: a revocation that came in between found no connection to cut.
            self._redemption.check_welcome(claims)
        except Refusal as refusal:
            refused = audit.redeem_refused(refusal, claims, address=address, at_ms=self._clock.now_ms())
            await self._refused(refusal, keys, refused)
            raise
        return entry

    async def withdraw(self, invite_id: str, *, by: str = _OPERATOR) -> None:
        """Take back an invite that was made here and is not used up; also a ticket that was given for it is void."""
        at_ms = self._clock.now_ms()
        invite = self._store.invite(InviteId(invite_id))
        if invite is None:
            raise Refusal(
                Code.NOT_FOUND, "no such invite was made here", hint="`agentpost invites` shows which gateway made it."
            )
        if await self._store.withdraw_invite(invite.invite_id, at_ms=at_ms):
            await self._record(audit.withdrawn(invite, by=by, at_ms=at_ms))
        elif (self._store.invite(invite.invite_id) or invite).consumed_at_ms is not None:
            raise Refusal(
                Code.TOKEN_ALREADY_USED,
                f"{invite.expected_node_id} has joined with this invite already",
                hint=f"Throw it out with `agentpost revoke {invite.expected_node_id}`.",
            )

    async def revoke(self, node_id: str, *, by: str = _OPERATOR) -> None:
        """Take room, tickets and open invites from a node. Its connections are for the caller to cut."""
        check_node_id(node_id)
        if node_id == self._store.node_id:
            raise Refusal(
                Code.INVALID_FIELD,
                "a node does not revoke itself",
                field="node",
                hint="Stop it with `agentpost down`; another backbone gateway can throw it out.",
            )
        at_ms = self._clock.now_ms()
        node = self._find(node_id)
        if await self._store.revoke_node(node_id, at_ms=at_ms) or (node is not None and node.revoked_at_ms is None):
            await self._record(audit.revoked(node_id, by=by, at_ms=at_ms))
        elif node is None:
            raise _unknown(node_id)

    async def _take_key(self, node_id: str, *, by: str) -> None:
        """Let the key of a node count no more, so that the next invite may pin another."""
        node = self._find(check_node_id(node_id, field="expectedNodeId"))
        if node is None:
            raise _unknown(node_id)
        at_ms = self._clock.now_ms()
        if self._store.known_node(node_id) is None:
            await self._store.pin_node(node)
        await self._store.revoke_node(node_id, at_ms=at_ms)
        await self._record(audit.key_taken(node_id, by=by, at_ms=at_ms))

    async def _refused(self, refusal: Refusal, keys: list[str], entry: AuditEntry) -> None:
        if isinstance(refusal, RateLimited):
            # One line for a row of them: the log is kept for ever, and this is what an attacker makes most of.
            if refusal.newly:
                await self._record(entry)
        elif MEANINGS[refusal.code].status < 500:
            self._limits.failed(keys)
            await self._record(entry)

    async def _record(self, entry: AuditEntry) -> None:
        await self._store.record_audit([entry])


def _unknown(node_id: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"no node {node_id} is known here", hint="Check the node id.")
