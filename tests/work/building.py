"""Skills on a disk, and what a publisher declares."""

from pathlib import Path
from typing import Any

CAPABILITY = "docs.summarize"


def write_skill(directory: Path, name: str, version: str = "1.0.0", **files: str) -> Path:
    """A skill with a SKILL.md and more files; `_` in their names stands for a dot."""
    folder = directory / name
    folder.mkdir(parents=True, exist_ok=True)
    head = f"---\nname: {name}\ndescription: What {name} is for.\nversion: {version}\n---\n\n# {name}\n"
    (folder / "SKILL.md").write_text(head)
    for file, text in files.items():
        (folder / file.replace("_", ".")).write_text(text)
    return folder


def write_pair(directory: Path, version: str = "1.0.0") -> None:
    """The two skills that `a_declaration` names."""
    write_skill(directory, "ask-summary", version, guide_md="When to ask for a summary.\n")
    write_skill(directory, "do-summary", version)


def a_declaration(owner: str = "scribe", version: str = "1.0.0", **changed: Any) -> dict[str, Any]:
    return {
        "capabilityId": CAPABILITY,
        "name": "Summaries of documents",
        "version": version,
        "ownerAgentId": owner,
        "delegationSkillRef": {"name": "ask-summary", "version": version},
        "executorSkillRef": {"name": "do-summary", "version": version},
        "defaultEtaSeconds": 300,
        "contract": {
            "delegation": {
                "when": "A document is longer than a page.",
                "requiredCapabilities": [CAPABILITY],
                "expectedResponse": "Five sentences.",
                "escalation": "Ask the operator.",
            },
            "executor": {"acceptWithinSeconds": 60, "maxEtaSeconds": 900, "progressEverySeconds": 120},
            "input": {"type": "object", "required": ["document"], "properties": {"document": {"type": "string"}}},
            "output": {"type": "object", "required": ["summary"], "properties": {"summary": {"type": "string"}}},
        },
    } | changed
