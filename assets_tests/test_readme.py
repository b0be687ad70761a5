"""The README stays true: its links lead somewhere, its tests exist, its commands are real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from batch_assets.cli.main import app
from batch_assets.core.prompt import parse_prompt
from batch_assets.core.spec import JobSpec

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_to_files(link: str) -> None:
    """Every relative link names a file of the repository."""
    assert (ROOT / link).exists()


@pytest.mark.parametrize(("test", "path"), re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", README))
def test_each_promise_names_a_test_that_exists(test: str, path: str) -> None:
    """The test behind a promise is in the file that the README links to."""
    assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_command_that_is_shown_exists() -> None:
    """`make` targets and `batch-assets` commands in the README are real, and none is left out of it."""
    for target in re.findall(r"(?:`|\$ )make (\w+)", README):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    commands = {command.name for command in app.registered_commands}
    shown = set(re.findall(r"batch-assets ([a-z-]+)", README)) - {"main"}
    assert shown == commands


def test_the_example_job_is_valid() -> None:
    """The spec and the prompt that the README shows are accepted as they stand."""
    spec, prompt = (re.search(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("yaml", "markdown"))
    assert spec is not None
    assert prompt is not None
    job = JobSpec.model_validate(yaml.safe_load(spec.group(1))["attributes"])
    assert set(parse_prompt(prompt.group(1)).columns) == set(job.snapshot.text)
