"""The other pure decisions: shards, suspects, verdicts, history, statistics."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_assets.core.history import standing_versions
from batch_assets.core.outcomes import Failure, Reason
from batch_assets.core.shards import contiguous, partition_key, shard_of_partition, shard_of_row, shard_range
from batch_assets.core.statistics import population_stability_index, wilson_interval
from batch_assets.core.suspects import Trial, accuse, acquit
from batch_assets.core.verdicts import Verdict, refusals


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_shards_partition_the_rows(records: int, size: int) -> None:
    """Every row is in exactly one shard, the one that shard_of_row names."""
    count = -(-records // size)
    rows = [row for shard in range(count) for row in shard_range(shard, shard_size=size, records=records)]
    assert rows == list(range(records))
    assert shard_of_row(records - 1, shard_size=size) == count - 1


def test_partition_keys_sort_like_numbers() -> None:
    """Zero padding keeps the order, and a key leads back to its shard."""
    keys = [partition_key(shard) for shard in (0, 9, 10, 99_999, 100_000)]
    assert keys == sorted(keys)
    assert [shard_of_partition(key) for key in keys] == [0, 9, 10, 99_999, 100_000]


@given(st.sets(st.integers(0, 300)))
def test_contiguous_ranges_hold_the_same_shards(shards: set[int]) -> None:
    """The ranges are disjoint and hold exactly the shards."""
    ranges = list(contiguous(sorted(shards)))
    assert [shard for first, last in ranges for shard in range(first, last + 1)] == sorted(shards)


@given(st.integers(1, 200), st.sets(st.integers(0, 199), min_size=1, max_size=3))
def test_the_narrowing_finds_every_culprit_and_no_one_else(window: int, guilty: set[int]) -> None:
    """Engine killers are found within log2(window) + 1 deaths each, and nobody else is charged."""
    culprits = {str(one) for one in guilty if one < window}
    everyone = tuple(str(one) for one in range(window))
    trial, charged, deaths = Trial(), set(), 0
    group = everyone
    while True:
        if set(group) & culprits - charged:
            deaths += 1
            trial, culprit = accuse(trial, group)
            charged |= {culprit} if culprit else set()
        else:
            trial = acquit(trial)
        if not trial.groups:
            break
        group = trial.group
    assert charged == culprits
    assert deaths <= len(culprits) * (math.ceil(math.log2(window)) + 1) if culprits else deaths == 0


def test_three_attempts_or_a_permanent_reason_end_a_record() -> None:
    """The third failure is final; a reason that trying again cannot help is final at once."""

    def failure(attempt: int, reason: Reason) -> Failure:
        return Failure(record_id="r", attempt=attempt, reason=reason, error="e")

    assert not failure(2, Reason.INVALID_OUTPUT).is_final
    assert failure(3, Reason.INVALID_OUTPUT).is_final
    assert failure(1, Reason.INPUT_TOO_LONG).is_final


def verdict(check: str, *, passed: bool, blocking: bool = True) -> Verdict:
    return Verdict(check=check, passed=passed, blocking=blocking, summary=f"{check} said so")


def test_a_missing_verdict_refuses_like_a_failed_one() -> None:
    """Silence is not consent; a warning that does not block is no reason."""
    found = refusals([verdict("a", passed=False), verdict("b", passed=False, blocking=False)], ["a", "b", "c"])
    assert found == ("c: no verdict on its present content by the present gate", "a: a said so")
    assert refusals([verdict("a", passed=True)], ["a"]) == ()


@pytest.mark.parametrize(
    ("moves", "standing"),
    [
        ("p1", ["1"]),
        ("p1 p2 p3", ["1", "2", "3"]),
        ("p1 p2 p3 r2", ["1", "2"]),  # a second rollback goes to 1, not forth to 3
        ("p1 p2 r1 p3", ["1", "3"]),
        ("p1 p2 r1 p2", ["1", "2"]),
        ("p1 p2 r1 r2", ["1", "2"]),  # forth again, by name
    ],
)
def test_rollback_steps_back_through_what_stands(moves: str, standing: list[str]) -> None:
    """What a rollback took away is not what the next one goes to."""
    kinds = {"p": "publish", "r": "rollback"}
    assert standing_versions((kinds[move[0]], move[1:]) for move in moves.split()) == standing


def test_the_stability_index_is_zero_for_equal_shares_and_grows_with_shifts() -> None:
    """Ten times the rows in the same shares is no drift; a category that appears is."""
    assert population_stability_index({"a": 10, "b": 30}, {"a": 100, "b": 300}) == pytest.approx(0)
    small = population_stability_index({"a": 50, "b": 50}, {"a": 55, "b": 45})
    large = population_stability_index({"a": 50, "b": 50}, {"a": 90, "b": 10})
    assert 0 < small < 0.1 < 0.25 < large
    assert population_stability_index({"a": 100}, {"a": 50, "new": 50}) > 1


def test_the_wilson_interval_matches_published_values() -> None:
    """8 of 10 gives 0.490 to 0.943 (Newcombe 1998, method 3)."""
    low, high = wilson_interval(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    assert wilson_interval(0, 0) == (0.0, 1.0)
