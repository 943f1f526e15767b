"""Skills: found by name and version, bundled the same way everywhere, and installed without harm."""

import contextlib
import io
import os
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.protocol.errors import Code, Refusal
from agentpost.work.skills.bundle import MAX_FILE_BYTES, MAX_FILES, pack, unpack
from agentpost.work.skills.folder import list_skills, resolve_skill
from agentpost.work.skills.frontmatter import SKILL_NAME, read_head
from agentpost.work.skills.install import install_skill, remove_skill
from tests.work.building import write_skill


def refusal_of(what: object) -> Refusal:
    assert callable(what)
    with pytest.raises(Refusal) as caught:
        what()
    return caught.value


@pytest.mark.parametrize(
    "head",
    [
        "name: a-skill\ndescription: Does it.\nversion: 1.2.0",
        "name: \"a-skill\"\ndescription: >\n  Does\n  it.\nversion: '1.2.0'",
        "name: a-skill # the name\nlicense: MIT\ndescription: Does it.\nmetadata:\n  author: jane\n  version: 1.2.0",
    ],
)
def test_the_head_of_a_skill_is_read_as_people_write_it(head: str) -> None:
    """Name, description and version are found with quotes, folded lines, comments, or below metadata."""
    found = read_head(f"---\n{head}\n---\nThe rest.\nname: another\n", where="SKILL.md")
    assert (found.name, found.description, found.version) == ("a-skill", "Does it.", "1.2.0")


@pytest.mark.parametrize(
    "text",
    ["", "name: x", "---\nname: x\n", "---\nname: ../x\ndescription: d\nversion: 1\n---\n", "---\nname: x\n---\n"],
)
def test_a_head_that_says_too_little_is_refused(text: str) -> None:
    """A SKILL.md without a valid name, description and version is no skill."""
    assert refusal_of(lambda: read_head(text, where="SKILL.md")).code is Code.INVALID_FIELD


@given(st.text(max_size=300))
def test_no_head_makes_the_reader_stumble(text: str) -> None:
    """Whatever stands in a SKILL.md, the answer is a head or a refusal."""
    for whole in (text, f"---\n{text}\n---\n"):
        with contextlib.suppress(Refusal):
            assert SKILL_NAME.fullmatch(read_head(whole, where="SKILL.md").name)


@pytest.mark.req("CAP-2")
def test_a_skill_resolves_by_name_and_version(tmp_path: Path) -> None:
    """A skill is found where it is, in the version that it says, and under its own name only."""
    write_skill(tmp_path, "one", "2.0.0")
    write_skill(tmp_path, "two").rename(tmp_path / "three")
    (tmp_path / "empty").mkdir()
    assert resolve_skill(tmp_path, "one", "2.0.0").head.version == "2.0.0"
    for name, version in (("one", "1.0.0"), ("two", None), ("three", None), ("empty", None)):
        assert refusal_of(lambda n=name, v=version: resolve_skill(tmp_path, n, v)).code is Code.CAPABILITY_UNAVAILABLE
    assert refusal_of(lambda: resolve_skill(tmp_path, "../one")).code is Code.INVALID_FIELD
    assert [skill.head.name for skill in list_skills(tmp_path)] == ["one"]


def test_the_same_folder_gives_the_same_bundle(tmp_path: Path) -> None:
    """Times, owners and the order on the disk are not in a bundle; contents and names are."""
    first = write_skill(tmp_path / "a", "skill", b_txt="2", a_txt="1")
    second = write_skill(tmp_path / "b", "skill", a_txt="1", b_txt="2")
    os.utime(second / "a.txt", (1, 1))
    (second / "__pycache__").mkdir()
    (second / "__pycache__" / "x.pyc").write_text("left behind")
    assert pack(first) == pack(second)
    (second / "a.txt").write_text("3")
    assert pack(first).sha256 != pack(second).sha256


@pytest.mark.req("CAP-4")
def test_a_bundle_is_installed_in_one_step_and_replaced_by_the_next(tmp_path: Path) -> None:
    """The installed skill has the announced version and checksum, and a new version takes its place."""
    target = tmp_path / "skills"
    for version in ("1.0.0", "1.1.0", "1.0.0"):
        folder = write_skill(tmp_path / version, "skill", version, run_sh="#!/bin/sh\n")
        (folder / "run.sh").chmod(0o755)
        bundle = pack(folder)
        done = install_skill(
            target, bundle.raw, sha256=bundle.sha256, name="skill", version=version, publisher="lab-jane"
        )
        assert done.head.version == version
        assert pack(done.path) == bundle
        assert os.access(target / "skill" / "run.sh", os.X_OK)
        assert {each.name for each in (target / ".agentpost" / "skill").iterdir()} == {bundle.sha256, "publisher"}
    assert remove_skill(target, "skill") is True
    assert remove_skill(target, "skill") is False
    assert list_skills(target) == []


def test_a_name_is_free_again_once_the_skill_is_removed(tmp_path: Path) -> None:
    """Another gateway's skill of the same name is refused for as long as there is one, and not after that."""
    target, bundle = tmp_path / "skills", pack(write_skill(tmp_path, "skill"))

    def install(publisher: str) -> Path:
        made = install_skill(
            target, bundle.raw, sha256=bundle.sha256, name="skill", version="1.0.0", publisher=publisher
        )
        return made.path

    install("lab-jane")
    assert refusal_of(lambda: install("vps-jane")).code is Code.CONFLICT
    assert install("lab-jane").is_dir()
    (target / "skill").unlink()
    assert install("vps-jane").is_dir()
    assert refusal_of(lambda: install("lab-jane")).code is Code.CONFLICT
    remove_skill(target, "skill")
    assert install("lab-jane").is_dir()


def test_a_skill_that_somebody_made_by_hand_is_not_touched(tmp_path: Path) -> None:
    """A folder that agentpost did not install stays as it is, and the installation is refused."""
    bundle = pack(write_skill(tmp_path / "theirs", "skill", "2.0.0"))
    mine = write_skill(tmp_path / "skills", "skill", "0.1.0")
    refusal = refusal_of(
        lambda: install_skill(
            tmp_path / "skills", bundle.raw, sha256=bundle.sha256, name="skill", version="2.0.0", publisher="lab-jane"
        )
    )
    assert refusal.code is Code.CONFLICT
    assert "0.1.0" in (mine / "SKILL.md").read_text()


@pytest.mark.parametrize(("name", "version"), [("other", "1.0.0"), ("skill", "9.9.9")])
def test_a_bundle_of_something_else_is_refused(tmp_path: Path, name: str, version: str) -> None:
    """What is announced as one skill and holds another, or another version, is not installed."""
    bundle = pack(write_skill(tmp_path, "skill"))
    target = tmp_path / "skills"
    refusal = refusal_of(
        lambda: install_skill(
            target, bundle.raw, sha256=bundle.sha256, name=name, version=version, publisher="lab-jane"
        )
    )
    assert refusal.code is Code.INVALID_FIELD
    assert not target.exists()


def an_archive(*entries: tarfile.TarInfo, data: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for entry in entries:
            entry.size = len(data) if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(data) if entry.isreg() else None)
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.linkname = link
    return made


def a_chain_of_names() -> bytes:
    """Headers that each say how the next is called: Python reads each of them within the one before."""
    said = b"12 path=abc\n"
    header = entry("name", tarfile.XHDTYPE)
    header.size = len(said)
    return (header.tobuf(tarfile.USTAR_FORMAT) + said.ljust(512, b"\0")) * 3000


def a_map_that_goes_on() -> bytes:
    """A sparse file whose map is continued in a block that is not there."""
    header = bytearray(entry("holes", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize(
    "raw",
    [
        an_archive(entry("../out")),
        an_archive(entry("/etc/passwd")),
        an_archive(entry("a/../../out")),
        an_archive(entry("a//b")),
        an_archive(entry("./a")),
        an_archive(entry("c:\\windows")),
        an_archive(entry("link", tarfile.SYMTYPE, "/etc")),
        an_archive(entry("link", tarfile.LNKTYPE, "SKILL.md")),
        an_archive(entry("device", tarfile.CHRTYPE)),
        an_archive(entry("pipe", tarfile.FIFOTYPE)),
        an_archive(entry("folder", tarfile.DIRTYPE)),
        an_archive(entry("same"), entry("same")),
        an_archive(entry("Same"), entry("sAME")),
        an_archive(entry("a"), entry("a/b")),
        an_archive(entry("x" * 201)),
        an_archive(entry("a/" * 8 + "b")),
        an_archive(entry("bell\x07")),
        b"",
        b"no archive at all" * 100,
        a_chain_of_names(),
        a_map_that_goes_on(),
    ],
)
def test_an_archive_that_could_do_harm_is_refused(raw: bytes) -> None:
    """Paths that lead out, links, devices, doubles and what is no archive are refused before anything is written."""
    assert refusal_of(lambda: unpack(raw, sha256=sha256(raw).hexdigest())).code is Code.INVALID_FIELD


def test_an_archive_beyond_the_caps_is_refused() -> None:
    """Too many files, and files that are too large, are refused."""
    many = an_archive(*(entry(f"f{place}") for place in range(MAX_FILES + 1)))
    large = an_archive(entry("large"), data=bytes(MAX_FILE_BYTES + 1))
    for raw in (many, large):
        assert refusal_of(lambda r=raw: unpack(r, sha256=sha256(r).hexdigest())).code is Code.TOO_LARGE


def test_a_bundle_with_another_checksum_is_refused(tmp_path: Path) -> None:
    """One changed byte is noticed."""
    bundle = pack(write_skill(tmp_path, "skill"))
    changed = bundle.raw.replace(b"# skill", b"# skull")
    assert "checksum" in refusal_of(lambda: unpack(changed, sha256=bundle.sha256)).message


def test_a_folder_with_a_link_is_not_bundled(tmp_path: Path) -> None:
    """A link in a skill is refused rather than followed: it could lead to anything on the owner's disk."""
    folder = write_skill(tmp_path, "skill")
    (folder / "secrets").symlink_to("/etc/passwd")
    assert refusal_of(lambda: pack(folder)).code is Code.INVALID_FIELD


@given(st.binary(max_size=2000))
def test_no_bytes_make_unpacking_stumble(raw: bytes) -> None:
    """Whatever somebody sends, the answer is files or a refusal."""
    with contextlib.suppress(Refusal):
        assert all(".." not in file.path.split("/") for file in unpack(raw, sha256=sha256(raw).hexdigest()))
