"""Who is a member of the mesh: a function of the statements in the room and of the mesh's root key, and of nothing
else.

A statement is a backbone member's signed word about another node: that it is admitted, with this key and this tier, or
that it is revoked. Statements are never altered. Each one names the earlier statements about the same node that it
takes the place of (`after`), and the latest ones of its own author (`prev`). So the order in which they arrive does
not matter: every replica that has the same statements comes to the same members.

What counts is found from the root on: the root's statements count, and those of each backbone member that statements
that count have admitted. Of several about one node, those that another one names in `after` are settled; of the rest a
revocation goes before an admission, and the more senior author (nearer to the root, then by name) before the other.

A revocation of a backbone member, and an admission that gives it another key, limit its earlier statements: those that
they name in `through`, and what these build on, stay; nothing can be slipped in behind them. Of two that revoke each
other the more senior one wins. A limit that would take from its author the statements that it stands on is void.

Pure: knows no room, no clock and no library that checks signatures.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from agentpost.protocol.snapshot import NodeTier

__all__ = ["Member", "Members", "Root", "Statement", "fold_members", "statement_key"]

_MOST_NAMED: Final = 12
_STATEMENT: Final = "member"


class Root(NamedTuple):
    """The node that began the mesh, and the key that it had then. A gateway that joined no mesh is its own root."""

    node_id: str
    public_key: str
    tier: NodeTier = NodeTier.BACKBONE


class Statement(NamedTuple):
    """What `by` says of `node_id`. Keys and signatures are base64url, as they stand in the record."""

    by: str
    node_id: str
    is_admission: bool
    public_key: str
    tier: NodeTier
    at_ms: int
    after: tuple[str, ...]
    prev: tuple[str, ...]
    through: tuple[str, ...]
    sig: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Statement":
        """The statement in a record whose form is known to be good."""
        return cls(
            by=record["signedBy"],
            node_id=record["nodeId"],
            is_admission=record["act"] == "admit",
            public_key=record.get("publicKey", ""),
            tier=NodeTier(record.get("tier", NodeTier.EDGE.value)),
            at_ms=record["at"],
            after=tuple(record.get("after", ())),
            prev=tuple(record.get("prev", ())),
            through=tuple(record.get("through", ())),
            sig=record["sig"],
        )


class Member(NamedTuple):
    """A node that statements speak of. Only the records that are signed with `public_key` are its own."""

    node_id: str
    public_key: str
    tier: NodeTier
    is_revoked: bool
    said_by: str
    said_at_ms: int
    former_keys: tuple[str, ...] = ()


# Whether the author of a statement signed it with this key.
IsSigned = Callable[[Statement, str], bool]


class Members:
    """Who is a member, and which statements count."""

    def __init__(self, nodes: Mapping[str, Member], counted: Mapping[str, Statement]) -> None:
        self.nodes = nodes
        # By signature.
        self.counted = counted

    def next_statement(self, by: str, node_id: str) -> dict[str, list[str]]:
        """What a new statement of `by` about a node has to name, so that it takes the place of those that count now."""
        about = [each for each in self.counted.values() if each.node_id == node_id]
        named = {"after": _heads(about, "after"), "prev": _heads(self._of(by), "prev")}
        through = _heads(self._of(node_id), "prev")
        return {name: heads for name, heads in {**named, "through": through}.items() if heads}

    def _of(self, author: str) -> list[Statement]:
        return [each for each in self.counted.values() if each.by == author]


def statement_key(by: str, reference: str) -> str:
    """The key of `coordination` under which a statement stands."""
    return f"{_STATEMENT}:{by}:{reference}"


def fold_members(statements: Iterable[Statement], root: Root, is_signed: IsSigned) -> Members:
    """The members, from all statements in any order."""
    fold = _Fold(sorted(set(statements), key=lambda each: each.sig), root, is_signed)
    while (limit := fold.next_limit()) is not None:
        fold.limit(limit)
    return fold.result()


class _Limit(NamedTuple):
    """What limits an author, and which of its statements stay."""

    said: Statement
    stays: frozenset[str]
    is_by_senior: bool


class _Found(NamedTuple):
    """What follows from a set of limits: what counts, each node's keys, and how far each author is from the root."""

    counted: dict[str, Statement]
    about: dict[str, list[Statement]]
    keys: dict[str, set[str]]
    ranks: dict[str, int]


class _Fold:
    def __init__(self, statements: list[Statement], root: Root, is_signed: IsSigned) -> None:
        self._statements = [each for each in statements if each.by != each.node_id]
        self._root = root
        self._is_signed = is_signed
        self._by_sig = {each.sig: each for each in self._statements}
        self._limits: dict[str, _Limit] = {}
        self._void: set[str] = set()
        self._found = self._find()

    def next_limit(self) -> Statement | None:
        """The statement of the most senior author that limits another author whom none limits yet."""
        found, needed = self._found, list[Statement]()
        for node_id in found.ranks.keys() - self._limits.keys():
            settled = self._settled(found, node_id)
            if settled is not None and _limits_author(settled, found.keys[node_id]):
                needed.append(settled)
        return min(needed, key=lambda each: _seniority(found, each), default=None)

    def limit(self, limit: Statement) -> None:
        """Let a statement limit the author that it is about. It is void if its own author would not stand any more."""
        ranks = self._found.ranks
        is_by_senior = (ranks[limit.by], limit.by) < (ranks[limit.node_id], limit.node_id)
        self._limits[limit.node_id] = _Limit(limit, self._built_on(limit.node_id, limit.through), is_by_senior)
        found = self._find()
        if limit.sig not in found.counted:
            del self._limits[limit.node_id]
            self._void.add(limit.sig)
            found = self._find()
        self._found = found

    def result(self) -> Members:
        found, root = self._found, self._root
        nodes = {root.node_id: Member(root.node_id, root.public_key, root.tier, False, root.node_id, 0)}
        for node_id in found.about:
            settled = self._settled(found, node_id)
            if settled is not None:
                nodes[node_id] = self._member(found, settled)
        return Members(nodes, found.counted)

    def _member(self, found: _Found, settled: Statement) -> Member:
        node_id, keys = settled.node_id, found.keys.get(settled.node_id, set[str]())
        tier, key = settled.tier, settled.public_key
        if not settled.is_admission:
            # What it was before: for those who look at the list.
            tier = NodeTier.BACKBONE if node_id in found.ranks else NodeTier.EDGE
            key = min(keys, default="")
        former = tuple(sorted(keys - {key}))
        return Member(node_id, key, tier, not settled.is_admission, settled.by, settled.at_ms, former)

    def _find(self) -> _Found:
        root = self._root
        keys: dict[str, set[str]] = {root.node_id: {root.public_key}}
        counted: dict[str, Statement] = {}
        authors = {root.node_id} if root.tier is NodeTier.BACKBONE else set[str]()
        left = [each for each in self._statements if each.sig not in self._void]
        while True:
            waiting: list[Statement] = []
            for each in left:
                if each.by not in authors or not self._counts(each, keys[each.by]):
                    waiting.append(each)
                    continue
                counted[each.sig] = each
                if each.is_admission:
                    keys.setdefault(each.node_id, set()).add(each.public_key)
                    if each.tier is NodeTier.BACKBONE:
                        authors.add(each.node_id)
            if len(waiting) == len(left):
                break
            left = waiting
        about: dict[str, list[Statement]] = {}
        for each in counted.values():
            about.setdefault(each.node_id, []).append(each)
        return _Found(counted, about, keys, _ranks(counted.values(), authors, root))

    def _counts(self, statement: Statement, keys: set[str]) -> bool:
        limit = self._limits.get(statement.by)
        if limit is not None:
            said = limit.said
            if said.is_admission and said.tier is NodeTier.BACKBONE and self._is_signed(statement, said.public_key):
                return True
            # Of two that limit each other, the junior one says nothing of the senior one any more.
            if statement.sig not in limit.stays or (limit.is_by_senior and statement.node_id == said.by):
                return False
        return any(self._is_signed(statement, key) for key in keys)

    def _settled(self, found: _Found, node_id: str) -> Statement | None:
        """The statement about a node that goes before all others."""
        if node_id in self._limits:
            return self._limits[node_id].said
        about = found.about.get(node_id, [])
        named = {sig for each in about for sig in each.after}
        unsettled = [each for each in about if each.sig not in named]
        return min(unsettled, key=lambda each: (each.is_admission, _seniority(found, each)), default=None)

    def _built_on(self, author: str, heads: Iterable[str]) -> frozenset[str]:
        """These statements of the author, and all that they name as earlier ones."""
        stays: set[str] = set()
        waiting = list(heads)
        while waiting:
            each = self._by_sig.get(waiting.pop())
            if each is not None and each.by == author and each.sig not in stays:
                stays.add(each.sig)
                waiting.extend(each.prev)
        return frozenset(stays)


def _limits_author(settled: Statement, keys: set[str]) -> bool:
    return not settled.is_admission or settled.tier is not NodeTier.BACKBONE or keys != {settled.public_key}


def _seniority(found: _Found, statement: Statement) -> tuple[int, str, str]:
    return found.ranks[statement.by], statement.by, statement.sig


def _ranks(counted: Iterable[Statement], authors: set[str], root: Root) -> dict[str, int]:
    """How far each author is from the root."""
    admitted: dict[str, set[str]] = {}
    for each in counted:
        if each.is_admission and each.tier is NodeTier.BACKBONE:
            admitted.setdefault(each.by, set()).add(each.node_id)
    ranks: dict[str, int] = {}
    nearest = {root.node_id} & authors
    while nearest:
        ranks |= dict.fromkeys(nearest, len(set(ranks.values())))
        nearest = {node_id for by in nearest for node_id in admitted.get(by, ())} - ranks.keys()
    return ranks


def _heads(statements: list[Statement], names: str) -> list[str]:
    """The signatures that no other one of these names."""
    named = {sig for each in statements for sig in getattr(each, names)}
    return sorted(each.sig for each in statements if each.sig not in named)[:_MOST_NAMED]
