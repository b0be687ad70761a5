"""Narrowing by halves: found within the bound, whatever the window, wherever the culprits stand, whoever dies."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from batch_assets.core.outcomes import ATTEMPTS_MAX
from batch_assets.core.suspects import ShardTrial, TakenUp, Trial, accuse, acquit, take_up

WINDOWS = st.integers(1, 300).flatmap(
    lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), min_size=1, max_size=2))
)


def bound(window: int) -> int:
    """Deaths for one culprit: the first, the halvings, and one for each further attempt."""
    return math.ceil(math.log2(window)) + 3 if window > 1 else ATTEMPTS_MAX


@given(WINDOWS)
def test_culprits_are_found_within_the_bound_and_nobody_else(window: tuple[int, set[int]]) -> None:
    """Each culprit dies three times alone; an innocent record is never charged."""
    size, killers = window
    ids = tuple(map(str, range(size)))
    attempts: dict[str, int] = {}
    trial, deaths = Trial(), 0
    in_flight = ids
    while in_flight:
        if any(int(one) in killers and attempts.get(one, 0) < ATTEMPTS_MAX for one in in_flight):
            deaths += 1
            trial, culprit = accuse(trial, in_flight)
            if culprit is not None:
                attempts[culprit] = attempts.get(culprit, 0) + 1
                if attempts[culprit] < ATTEMPTS_MAX:
                    trial = Trial(groups=((culprit,), *trial.groups))
        elif trial.groups:
            trial = acquit(trial)
        else:
            break
        in_flight = trial.group
    assert attempts == dict.fromkeys(map(str, killers), ATTEMPTS_MAX)
    assert deaths <= bound(size) * len(killers)


@given(WINDOWS)
def test_the_same_when_each_death_takes_the_worker_along(window: tuple[int, set[int]]) -> None:
    """What is written down before a group runs is enough for the next worker to go on."""
    size, killers = window
    stored = ShardTrial(groups=(tuple(map(str, range(size))),), running=True, died=True)  # the first death
    settled: set[str] = set()
    attempts: dict[str, int] = {}
    deaths = 1
    while True:
        taken = take_up(stored, settled)
        groups, culprit = taken.trial.groups, taken.culprit
        if culprit is not None:
            attempts[culprit] = attempts.get(culprit, 0) + taken.attempts
            if attempts[culprit] < ATTEMPTS_MAX:
                groups = ((culprit,), *groups)
            else:
                settled.add(culprit)
        while groups and not any(int(one) in killers for one in groups[0]):
            settled |= set(groups[0])
            groups = groups[1:]
        if not groups:
            break
        stored = ShardTrial(groups=groups, running=True, died=True)
        deaths += 1
    assert attempts == dict.fromkeys(map(str, killers), ATTEMPTS_MAX)
    assert deaths <= bound(size) * len(killers)


def test_an_eviction_during_a_trial_blames_nobody() -> None:
    """With notice, or after some of the group was answered, the group is tried once more as it is."""
    group = ("a", "b", "c")
    with_notice = ShardTrial(groups=(group,), running=False)
    assert take_up(with_notice, ()) == TakenUp(trial=ShardTrial(groups=(group,)))
    answered = ShardTrial(groups=(group,), running=True, died=True)
    assert take_up(answered, {"a", "b"}) == TakenUp(trial=ShardTrial(groups=(("c",),)))


def test_a_record_whose_worker_is_only_out_of_reach_is_tried_again() -> None:
    """Nobody knows whether the worker has died: the record pays when three in a row were never heard of again."""
    lost = ShardTrial(groups=(("a",), ("b",)), running=True)
    for losses in (1, 2):
        taken = take_up(lost, ())
        assert taken == TakenUp(trial=ShardTrial(groups=(("a",), ("b",)), losses=losses))
        lost = ShardTrial(groups=taken.trial.groups, running=True, losses=losses)
    assert take_up(lost, ()) == TakenUp(trial=ShardTrial(groups=(("b",),)), culprit="a", attempts=ATTEMPTS_MAX)


def test_a_group_that_is_settled_is_forgotten() -> None:
    """The others keep their turn, and so does the suspicion of everyone."""
    left = ShardTrial(groups=(("a",), ("b", "c")), everyone=True, running=True, losses=2)
    assert take_up(left, {"a"}) == TakenUp(trial=ShardTrial(groups=(("b", "c"),), everyone=True))
