"""What a gateway is told: flag > environment > `agentpost.toml` in its home > default."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct

from agentpost.auth.external.lifetimes import Lifetimes
from agentpost.auth.limits import DEFAULT_ATTEMPTS_PER_ADDRESS, DEFAULT_ATTEMPTS_PER_TOKEN
from agentpost.config_keys import DEFAULT_LISTEN, KEYS, TABLES
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.settings import LakeSettings
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.home import write_private
from agentpost.work.settings import A2aSettings, WorkSettings

__all__ = [
    "CONFIG_FILE",
    "Settings",
    "expanded",
    "home_of",
    "homes_here",
    "load_settings",
    "only_home",
    "save_settings",
]

CONFIG_FILE: Final = "agentpost.toml"
_HOMES: Final = "~/.agentpost"
_NODE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_URL: Final = re.compile(r"https?://[A-Za-z0-9._~:/\[\]-]{1,180}")
_MOST_ATTEMPTS: Final = 1_000_000_000
_LAKE: Final = "lake"
_WHERE: Final = "All settings: agentpost docs configuration."

Shape = TypeVar("Shape", DeliveryPolicy, WorkSettings, Lifetimes, A2aSettings)


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that a gateway needs to know before it starts."""

    home: Path
    node_id: str
    tier: NodeTier = NodeTier.EDGE
    listen_host: str = "127.0.0.1"
    listen_port: int = 7800
    # Where others reach a backbone gateway; without it, what it listens on.
    public_url: str | None = None
    attempts_per_address: int = DEFAULT_ATTEMPTS_PER_ADDRESS
    attempts_per_token: int = DEFAULT_ATTEMPTS_PER_TOKEN
    # Where tailscaled answers, for invites that name a node of the tailnet; without it there are none.
    tailnet_socket: Path | None = None
    # Timers, retries and retention of mail: the table [delivery] of the file.
    delivery: DeliveryPolicy = DeliveryPolicy()
    # Where the outboxes are exported to, and how: the table [lake]; without it nowhere.
    lake: LakeSettings | None = None
    # How agents are served and how long work may take: the table [work].
    work: WorkSettings = WorkSettings()
    # How long the tokens of agents outside the mesh live: the table [external].
    external: Lifetimes = Lifetimes()
    # Where A2A clients may be notified, besides public addresses: the table [a2a].
    a2a: A2aSettings = A2aSettings()
    # AUTH-7: for a lab. Said with every start or not at all: no file and no environment turns it on unnoticed.
    insecure_no_proof: bool = False


def expanded(path: Path) -> Path:
    """A path that somebody wrote, with the directory of the user that its `~` means."""
    try:
        return path.expanduser()
    except RuntimeError:
        problem = f"{path}: there is no such user, or it has no home directory"
        raise Refusal(Code.INVALID_FIELD, problem, hint="Write the path out.") from None


def home_of(node_id: str | None, *, home: Path | None = None) -> Path:
    """Where a node lives: the home that was named, or its own directory below ~/.agentpost."""
    if home is not None:
        return expanded(home)
    return only_home() if node_id is None else Path(_HOMES).expanduser() / _checked_node(node_id)


def homes_here() -> list[Path]:
    """The homes below ~/.agentpost that somebody can mean who does not say which."""
    found = sorted(path for path in Path(_HOMES).expanduser().glob("*") if path.is_dir())
    # One whose gateway never came up is not what anybody means, if there are others.
    return [path for path in found if (path / CONFIG_FILE).exists()] or found


def only_home() -> Path:
    """The one home below ~/.agentpost, for whoever did not say which."""
    parent, homes = Path(_HOMES).expanduser(), homes_here()
    if len(homes) == 1:
        return homes[0]
    if not homes:
        raise Refusal(
            Code.NOT_FOUND,
            f"there is no gateway in {parent} yet",
            hint="Start one, and name its node: `agentpost up --node NAME`. If it is elsewhere, say so with --home.",
        )
    raise Refusal(
        Code.NOT_FOUND,
        f"{parent} holds several homes: {', '.join(path.name for path in homes)}",
        hint="Say which one with --home, or in AGENTPOST_HOME.",
    )


def load_settings(
    *,
    home: Path | None,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] | None = None,
    insecure_no_proof: bool = False,
) -> Settings:
    """The settings of the gateway that the flags describe; a flag that was not given is missing or None."""
    environment = os.environ if environment is None else environment
    said = {key: flags.get(key) or environment.get(f"AGENTPOST_{key.upper()}") for key in (*KEYS, _LAKE)}
    path = home_of(said["node"], home=home)
    file = _read_file(path / CONFIG_FILE)
    values = {key: said[key] or file.values.get(key) for key in KEYS}
    if values["node"] is None:
        raise Refusal(
            Code.INVALID_FIELD,
            f"{path} does not say which node it is",
            field="node",
            hint="Name the node the first time: `agentpost up --node NAME`.",
        )
    host, port = _checked_listen(values["listen"] or DEFAULT_LISTEN)
    socket = values["tailnet_socket"]
    return Settings(
        home=path,
        node_id=_checked_node(values["node"]),
        tier=_checked_tier(values["tier"] or NodeTier.EDGE.value),
        listen_host=host,
        listen_port=port,
        public_url=_checked_url(values["public_url"]),
        attempts_per_address=_checked_attempts(values, "attempts_per_address", DEFAULT_ATTEMPTS_PER_ADDRESS),
        attempts_per_token=_checked_attempts(values, "attempts_per_token", DEFAULT_ATTEMPTS_PER_TOKEN),
        tailnet_socket=None if socket is None else expanded(Path(socket)),
        delivery=file.delivery,
        lake=_checked_lake(path, said[_LAKE], file.lake),
        work=file.work,
        external=file.external,
        a2a=file.a2a,
        insecure_no_proof=insecure_no_proof,
    )


def save_settings(settings: Settings) -> None:
    """Write the settings of a new home down, so that the next start needs no flags. An existing file is kept."""
    path = settings.home / CONFIG_FILE
    if path.exists():
        return
    lines = [
        f'node = "{settings.node_id}"',
        f'tier = "{settings.tier.value}"',
        f'listen = "{settings.listen_host}:{settings.listen_port}"',
    ]
    if settings.public_url is not None:
        lines.append(f'public_url = "{settings.public_url}"')
    if settings.attempts_per_address != DEFAULT_ATTEMPTS_PER_ADDRESS:
        lines.append(f"attempts_per_address = {settings.attempts_per_address}")
    if settings.attempts_per_token != DEFAULT_ATTEMPTS_PER_TOKEN:
        lines.append(f"attempts_per_token = {settings.attempts_per_token}")
    if settings.tailnet_socket is not None:
        # JSON's way to write a string is one of TOML's.
        lines.append(f"tailnet_socket = {json.dumps(str(settings.tailnet_socket))}")
    if settings.lake is not None:
        lines += ["", "[lake]", f"path = {json.dumps(settings.lake.path)}"]
    write_private(path, ("\n".join(lines) + "\n").encode())


class _File(Struct, frozen=True, kw_only=True):
    """What a file says: single values as text, and its tables. `lake` is empty if there is none."""

    values: dict[str, str] = {}
    delivery: DeliveryPolicy = DeliveryPolicy()
    lake: dict[str, Any] = {}
    work: WorkSettings = WorkSettings()
    external: Lifetimes = Lifetimes()
    a2a: A2aSettings = A2aSettings()


def _read_file(path: Path) -> _File:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return _File()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refusal(Code.MALFORMED, f"{path} is not valid TOML: {error}", hint="Correct that line.") from None
    delivery = _read_table(path, found, "delivery", DeliveryPolicy())
    lake = _read_lake(path, found.pop(_LAKE)) if _LAKE in found else {}
    work = _read_table(path, found, "work", WorkSettings())
    external = _read_table(path, found, "external", Lifetimes())
    a2a = _read_table(path, found, "a2a", A2aSettings())
    for key, value in found.items():
        if key not in KEYS:
            known = ", ".join((*KEYS, *(f"[{table}]" for table in TABLES)))
            raise Refusal(Code.INVALID_FIELD, f"{path}: {key} is not a setting", field=key, hint=f"Settings: {known}.")
        # type(), because to isinstance true and false are numbers too.
        is_number = type(KEYS[key].default) is int
        if type(value) is not (int if is_number else str):
            kind = "a whole number, without quotes" if is_number else "text, in quotes"
            raise Refusal(Code.INVALID_FIELD, f"{path}: {key} must be {kind}", field=key, hint="Correct that line.")
    values = {key: str(value) for key, value in found.items()}
    return _File(values=values, delivery=delivery, lake=lake, work=work, external=external, a2a=a2a)


def _read_table(path: Path, found: dict[str, Any], name: str, default: Shape) -> Shape:
    """What the table of this name describes; what it leaves out is as by default."""
    values: dict[str, Any] = msgspec.to_builtins(default)
    try:
        return msgspec.convert(_overlaid(values, found.pop(name, {}), name), type(default))
    except (Refusal, msgspec.ValidationError) as error:
        raise Refusal(Code.INVALID_FIELD, f"{path}: {error}", field=name, hint=f"Correct that line. {_WHERE}") from None


def _read_lake(path: Path, table: object) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(LakeSettings(path="?")) | {"path": ""}
    try:
        return msgspec.to_builtins(msgspec.convert(_overlaid(values, table, _LAKE), LakeSettings))
    except (Refusal, msgspec.ValidationError) as error:
        raise Refusal(
            Code.INVALID_FIELD, f"{path}: {error}", field=_LAKE, hint=f"Correct that line. {_WHERE}"
        ) from None


def _checked_lake(home: Path, said: str | None, table: dict[str, Any]) -> LakeSettings | None:
    """The lake that was named, with what the table says of it otherwise. A path in the file starts at the home."""
    if said is None and not table:
        return None
    where = table["path"] if said is None else said
    if "://" not in where:
        where = str((home if said is None else Path.cwd()) / expanded(Path(where)))
    return msgspec.convert(table | {"path": where}, LakeSettings)


def _overlaid(values: dict[str, Any], table: object, name: str) -> dict[str, Any]:
    """`values` with what the table says instead. Names are snake_case in the file, as everywhere in it."""
    if not isinstance(table, dict):
        raise Refusal(Code.INVALID_FIELD, f"[{name}] must be a table")
    for key, value in cast(dict[str, Any], table).items():
        first, *rest = key.split("_")
        field = first + "".join(part.capitalize() for part in rest)
        if field not in values:
            raise Refusal(Code.INVALID_FIELD, f"{name}.{key} is not a setting")
        inner = values[field]
        values[field] = (
            _overlaid(cast(dict[str, Any], inner), value, f"{name}.{key}") if isinstance(inner, dict) else value
        )
    return values


def _checked_node(node_id: str) -> str:
    if not _NODE_ID.fullmatch(node_id):
        raise Refusal(
            Code.INVALID_FIELD,
            f"{node_id!r:.80} cannot be a node id",
            field="node",
            hint="Use up to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit.",
        )
    return node_id


def _checked_tier(tier: str) -> NodeTier:
    try:
        return NodeTier(tier)
    except ValueError:
        raise Refusal(
            Code.INVALID_FIELD, f"{tier!r:.80} is not a tier", field="tier", hint="Use backbone or edge."
        ) from None


def _checked_listen(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise Refusal(
            Code.INVALID_FIELD,
            f"{listen!r:.80} is not an address",
            field="listen",
            hint="Use host:port, as 127.0.0.1:7801.",
        )
    return host.strip("[]"), int(port)


def _checked_url(url: str | None) -> str | None:
    if url is not None and not _URL.fullmatch(url):
        raise Refusal(
            Code.INVALID_FIELD,
            f"{url!r:.80} is not a URL",
            field="public_url",
            hint="Use what others reach this gateway by, as https://vps-jane.example or http://vps-jane:7801.",
        )
    return None if url is None else url.rstrip("/")


def _checked_attempts(values: Mapping[str, str | None], key: str, default: int) -> int:
    text = values[key]
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_ATTEMPTS))
    if not is_number or not 1 <= int(text) <= _MOST_ATTEMPTS:
        raise Refusal(
            Code.INVALID_FIELD,
            f"{text!r:.80} is not a number of attempts",
            field=key,
            hint=f"Use a whole number from 1 to {_MOST_ATTEMPTS}; without it there are {default}.",
        )
    return int(text)
