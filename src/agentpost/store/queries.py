"""SQL by name: `sql/*.sql` holds it, `-- name: x` starts a statement, and `SQL.x` is its text."""

import re
from importlib import resources
from types import SimpleNamespace
from typing import Final

__all__ = ["SQL", "load_statements", "migrations"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements(package: str) -> SimpleNamespace:
    """The statements of a package's `sql` folder, by name."""
    statements: dict[str, str] = {}
    for file in sorted(resources.files(package).joinpath("sql").iterdir(), key=lambda f: f.name):
        parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in statements:
                raise ValueError(f"the SQL statement {name} is there twice")
            statements[name] = text.strip()
    return SimpleNamespace(**statements)


def migrations(package: str = "agentpost.store") -> list[str]:
    """The scripts that lead from an empty file to the schema of this version, in order."""
    folder = resources.files(package).joinpath("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda f: f.name)
    return [file.read_text("utf-8") for file in files]


SQL: Final = load_statements("agentpost.store")
