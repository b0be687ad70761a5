"""Histories of faults against real workers, and whether the campaign would see a bug at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import batch_assets
from assets_tests.chaos.history import DIALECTS, KINDS, draw, places
from assets_tests.postgresql import MISSING, find_binaries

ROOT = Path(__file__).parents[2]
RUNS = 30
# The bug, the fault that brings it to light, and what is said then.
BUGS = {
    "no fence": ("worker_frozen", "written at epoch"),
    "forgets what is stored": ("worker_killed", "in vain"),
    "leaves without flushing": ("notice", "in vain"),
    "charges the interrupted": ("worker_killed", "is charged attempt 1 for engine_killer"),
    "seals too early": ("worker_killed", "rows in the file"),
}


def campaign(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the campaign as people do."""
    command = [sys.executable, "-m", "assets_tests.chaos.campaign", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_thirty_histories_of_faults_end_whole(tmp_path: Path) -> None:
    """Whatever hits workers and stores: one outcome per record, and no work lost that nothing explains."""
    if os.environ.get("CI") and find_binaries() is None:
        pytest.fail(MISSING)
    done = campaign("--seed", 7, "--runs", RUNS, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{RUNS} of {RUNS} histories passed" in done.stdout


@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, tmp_path: Path) -> None:
    """A campaign that stays green with a bug in every worker sees nothing."""
    kind, told = BUGS[bug]
    for seed in range(1, 21, 4):  # whether a history meets the bug is a matter of milliseconds
        arguments = ("--seed", seed, "--runs", 4, "--ledger", "sqlite", "--kinds", kind, "--plant", bug)
        done = campaign(*arguments, TMPDIR=str(tmp_path))  # what is kept of them
        if done.returncode != 0:
            break
    assert done.returncode == 1, done.stdout + done.stderr
    assert told in done.stdout
    assert "Play it again: make chaos SEED=" in done.stdout


def test_a_seed_means_one_history() -> None:
    """Drawn again it is the same; another seed, or another database, is another history."""
    names = places(Path(batch_assets.__file__).parent)
    assert {"put.after_commit", "claim.before_commit", "seal.after_put", "engine.before_submit"} <= set(names)
    drawn = [draw(seed, dialect, names) for seed in range(50) for dialect in DIALECTS]
    assert drawn == [draw(seed, dialect, names) for seed in range(50) for dialect in DIALECTS]
    assert len({(repr(one.script), one.faults) for one in drawn}) == len(drawn)


def test_all_kinds_of_faults_come_up() -> None:
    """A few hundred seeds leave no kind of fault and no failpoint out."""
    names = places(Path(batch_assets.__file__).parent)
    drawn = [draw(seed, DIALECTS[seed % 2], names) for seed in range(600)]
    kinds = {kind for one in drawn for kind in one.kinds()}
    scripted = {"kills_engine", "kills_worker", "hangs_engine", "never_returns", "bad answer", "fail_attempts"}
    assert scripted <= kinds
    assert kinds - scripted == set(KINDS)
    armed = {fault.detail.partition("=")[0] for one in drawn for fault in one.faults if fault.kind == "failpoint"}
    assert armed == set(names)
