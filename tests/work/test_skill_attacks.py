"""Skills of a gateway that was taken over, over the wire: nothing is written but into the place of that skill."""

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agentpost.work.capabilities import desk
from agentpost.work.skills.bundle import Bundle, BundleFile
from agentpost.world import SystemClock
from tests.edges.meshing import eventually, invite
from tests.edges.running import running_gateway, served_gateway
from tests.work.building import a_declaration, write_skill

SLIPPED = "slipped"


def archive(version: str, *entries: tuple[str, bytes, str]) -> bytes:
    """A skill with a good SKILL.md, and then entries of a name, a type and what a link points to."""
    out = io.BytesIO()
    good = f"---\nname: {version}\ndescription: x\nversion: 1.0.0\n---\n".encode()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, kind, link in (("SKILL.md", tarfile.REGTYPE, ""), *entries):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, link
            data = good if name == "SKILL.md" else SLIPPED.encode()
            entry.size = len(data) if kind == tarfile.REGTYPE else 0
            made.addfile(entry, io.BytesIO(data) if kind == tarfile.REGTYPE else None)
    return out.getvalue()


def attacks(outside: Path) -> dict[str, bytes]:
    """By the name of the skill: what leads out of its folder, in each way that archives know."""
    file, symlink, hardlink = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
    entries: dict[str, list[tuple[str, bytes, str]]] = {
        "up": [(f"../../../../{SLIPPED}", file, "")],
        "inside-up": [(f"a/../../../../{SLIPPED}", file, "")],
        "absolute": [(str(outside / SLIPPED), file, "")],
        "backslash": [(f"..\\..\\{SLIPPED}", file, "")],
        "through-a-link": [("link", symlink, str(outside)), (f"link/{SLIPPED}", file, "")],
        "over-a-link": [("link", symlink, str(outside / SLIPPED)), ("link", file, "")],
        "hard-link": [("link", hardlink, "/etc/hostname")],
        "own-place": [(".agentpost/up/publisher", file, ""), ("../up/SKILL.md", file, "")],
        "device": [("device", tarfile.CHRTYPE, "")],
        "pipe": [("pipe", tarfile.FIFOTYPE, "")],
        "twice": [("SKILL.md", file, "")],
        "checksum": [],
        # The only one that is what it should be.
        "honest": [("guide.md", file, "")],
    }
    return {name: archive(name, *each) for name, each in entries.items()}


@pytest.mark.req("CAP-4", "PIPE-1")
def test_a_skill_that_leads_out_of_its_folder_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway of the owner checks nothing any more and distributes these archives: each installation fails,
    nothing is written outside, and an honest skill of another gateway is still there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    raws = attacks(outside)

    def pack(folder: Path) -> Bundle:
        raw = raws[folder.name]
        told = b"another archive" if folder.name == "checksum" else raw
        return Bundle(raw=raw, sha256=hashlib.sha256(told).hexdigest())

    def unpack(raw: bytes, *, sha256: str) -> list[BundleFile]:
        return []

    monkeypatch.setattr(desk, "pack", pack)
    monkeypatch.setattr(desk, "unpack", unpack)
    clock: Any = SystemClock()
    with (
        served_gateway(tmp_path / "evil", clock=clock, node_id="evil-jane") as evil,
        running_gateway(tmp_path / "mbp-jane", node="mbp-jane", tier="edge") as victim,
    ):
        victim.operator.post("/operator/join", {"url": evil.url, "token": invite(evil, "mbp-jane")})
        victim.operator.post("/ansible/agents", {"agentId": "architect"})
        evil.operator.post("/ansible/agents", {"agentId": "scribe"})
        skills = tmp_path / "evil/skills/scribe"
        write_skill(skills, "do-summary")
        own = write_skill(victim.home / "skills/architect", "own-skill")
        eventually(lambda: any(each["agentId"] == "architect" for each in evil.operator.get("/ansible/directory")))
        for name in raws:
            write_skill(skills, name)
            skill = {"name": name, "version": "1.0.0"}
            declared = a_declaration(capabilityId=f"docs.{name}", delegationSkillRef=skill)
            declared["contract"]["delegation"]["requiredCapabilities"] = [f"docs.{name}"]
            evil.operator.post("/ansible/capabilities", declared)

        def states() -> dict[str, str]:
            found = {name: evil.operator.get(f"/ansible/capabilities/docs.{name}")["installations"] for name in raws}
            return {
                name: each["state"] for name, all_ in found.items() for each in all_ if each["agentId"] == "architect"
            }

        expected = dict.fromkeys(raws, "failed") | {"honest": "installed"}
        eventually(lambda: states() == expected)
        assert (own / "SKILL.md").read_text().startswith("---\nname: own-skill")
        assert "Traceback" not in victim.log
    assert list(outside.iterdir()) == []
    written = [path.relative_to(victim.home / "skills") for path in (victim.home / "skills").rglob("*")]
    others = {path.as_posix() for path in written if "honest" not in path.parts and path.name != "publisher"}
    own_place = {f"architect/.agentpost{rest}" for rest in ("", *(f"/{name}" for name in raws))}
    assert others <= {"architect", "architect/own-skill", "architect/own-skill/SKILL.md", *own_place}
    assert (victim.home / "skills/architect/honest/guide.md").read_text() == SLIPPED
    assert not list(tmp_path.rglob(f"*{SLIPPED}*"))
