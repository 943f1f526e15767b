"""Every command of the quick starts is run as it stands there, and shows what the page says."""

import pytest

from tests.quickstarts.machines import machines
from tests.quickstarts.pages import steps_of

pytestmark = pytest.mark.waits


def test_the_mesh_of_the_quick_start_comes_up() -> None:
    """A unit for systemd, invites, joins, a message, one for a laptop that sleeps: as the page has it."""
    steps = steps_of("quickstart-mesh.md", machine="")
    assert {step.machine for step in steps} == {"vps-jane", "mbp-jane", "lab-jane"}
    with machines(url="https://post.example.org", seed="vps-jane") as playing:
        for step in steps:
            playing.run(step)


def test_the_models_of_the_quick_start_are_set_up() -> None:
    """Both programs are told of the post, mail and a task go back and forth, and in the end nothing is left."""
    with machines() as playing:
        project = playing.home("mbp-jane") / "project"
        before = sorted(project.rglob("*"))
        for step in steps_of("quickstart-models.md", machine="mbp-jane"):
            playing.run(step)
            if "setup codex --agent" in step.script:
                assert (project / ".mcp.json").exists()
                assert (playing.home("mbp-jane") / ".codex/config.toml").exists()
        assert [path for path in sorted(project.rglob("*")) if path.is_file()] == before
