"""The manifest of a capability: what its publisher declares (CAP-1), with the contract of its skill pair (CAP-7). Pure.

It is signed as text by the gateway of the owner, and the room's catalog names it by its checksum (`contractSchemaRef`).
So a gateway that gets one from anybody knows whether it is the one that was published.
"""

import hashlib
from typing import Annotated, Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.plain import check_plain
from agentpost.protocol.snapshot import CapabilityStatus
from agentpost.room.records import sign_bytes, verify_bytes

__all__ = [
    "MAX_MANIFEST_BYTES",
    "Contract",
    "Declaration",
    "DelegationSide",
    "ExecutorSide",
    "Manifest",
    "SignedManifest",
    "SkillName",
    "open_manifest",
    "read_declaration",
    "sign_manifest",
]

MAX_MANIFEST_BYTES: Final = 256 * 1024
_SIGNED_AS: Final = b"agentpost capability manifest\n"

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}\Z")]
SkillId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
Version = Annotated[str, Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Sentences = Annotated[str, Meta(max_length=4000)]
Seconds = Annotated[int, Meta(ge=1, le=31_536_000)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
JsonSchema = dict[str, Any]


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The base of what is declared: an unknown field is a mistake of its author."""


class SkillName(Part, frozen=True, kw_only=True):
    name: SkillId
    version: Version


class DelegationSide(Part, frozen=True, kw_only=True):
    """What those who delegate have to know."""

    when: Annotated[str, Meta(min_length=1, max_length=4000)]
    required_capabilities: Annotated[tuple[Id, ...], Meta(max_length=32)] = ()
    expected_response: Sentences = ""
    escalation: Sentences = ""


class ExecutorSide(Part, frozen=True, kw_only=True):
    """What the one who carries it out promises. `progress_every_seconds` is its cadence; a missed one is chased."""

    accept_within_seconds: Seconds | None = None
    max_eta_seconds: Seconds | None = None
    progress_every_seconds: Seconds | None = None
    failure_classes: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class Contract(Part, frozen=True, kw_only=True):
    """Both sides, and the JSON Schemas of what goes in, what comes out, and what a failure says (CAP-5)."""

    delegation: DelegationSide
    executor: ExecutorSide
    input: JsonSchema | None = None
    output: JsonSchema | None = None
    failure: JsonSchema | None = None


class Declaration(Part, frozen=True, kw_only=True):
    """What a publisher says. Everything else that CAP-1 asks for, the gateway knows."""

    capability_id: Id
    name: Name
    version: Version
    owner_agent_id: Id
    delegation_skill_ref: SkillName
    executor_skill_ref: SkillName
    default_eta_seconds: Annotated[int, Meta(ge=30, le=86_400)]
    status: CapabilityStatus = CapabilityStatus.ACTIVE
    published_by_agent_id: Id | None = None
    contract: Contract


class Manifest(Part, frozen=True, kw_only=True):
    """A declaration that was checked, with where and when, and the checksum of the skill that the others get."""

    declaration: Declaration
    owner_node_id: Id
    published_at: str
    published_by_agent_id: Id
    bundle_sha256: Sha256


class SignedManifest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The text that was signed, and by whom. Passed on as it is: whoever encodes it anew breaks the signature."""

    text: Annotated[str, Meta(max_length=MAX_MANIFEST_BYTES)]
    signed_by: Id
    sig: str

    @property
    def ref(self) -> str:
        """How the room's catalog names it."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()


def read_declaration(value: object) -> Declaration:
    """The declaration that these plain values make; a refusal that names the field if they make none."""
    try:
        check_plain(value, field="")
        declared = msgspec.convert(value, Declaration)
    except msgspec.ValidationError as problem:
        raise Refusal(
            Code.INVALID_FIELD,
            f"the capability cannot be published: {problem}",
            field="capability",
            hint="docs/capabilities.md has an example with every field.",
        ) from None
    if len(msgspec.json.encode(declared)) > MAX_MANIFEST_BYTES // 2:
        raise Refusal(Code.TOO_LARGE, f"a manifest has at most {MAX_MANIFEST_BYTES // 2} bytes", field="contract")
    return declared


def sign_manifest(manifest: Manifest, signing: Ed25519PrivateKey) -> SignedManifest:
    text = msgspec.json.encode(manifest, order="sorted").decode()
    sig = sign_bytes(signing, _SIGNED_AS + text.encode())
    return SignedManifest(text=text, signed_by=manifest.owner_node_id, sig=sig)


def open_manifest(signed: SignedManifest, public_key: bytes | None) -> Manifest:
    """The manifest, if its signer's key says so; refused if not, and for a manifest of somebody else's capability."""
    if public_key is None or not verify_bytes(public_key, signed.sig, _SIGNED_AS + signed.text.encode()):
        raise Refusal(Code.FOREIGN_SOURCE, f"{signed.signed_by} did not sign this manifest", field="manifest")
    try:
        manifest = msgspec.json.decode(signed.text, type=Manifest)
    except (msgspec.DecodeError, RecursionError):
        raise Refusal(Code.MALFORMED, "the manifest is none that this version knows", field="manifest") from None
    if manifest.owner_node_id != signed.signed_by:
        raise Refusal(Code.FOREIGN_SOURCE, f"{signed.signed_by} signed for another gateway", field="manifest")
    return manifest
