"""An override: a person's reason to publish although a check has failed, and what it does not reach."""

from __future__ import annotations

import pytest

from assets_tests.homes import Home
from assets_tests.publishing import judged, published, worked
from batch_assets.core.verdicts import NEVER_OVERRIDDEN
from batch_assets.errors import GateError, InputError
from batch_assets.operations.catalog import open_published
from batch_assets.operations.history import history
from batch_assets.operations.publish import publish, rollback


def test_an_override_is_recorded_with_who_why_and_what(home: Home) -> None:
    """It stands in the history, the status, and the catalog that readers open, also after a rollback to the version."""
    version = judged(home, worked(home, "Sort"), failed=["drift", "dead_letters"])
    done = publish(home.deployment, version, override="  the new season's\x1b[31m  categories ")
    assert (done.override, done.overrode) == ("the new season's [31m categories", ("dead_letters", "drift"))
    (move,) = history(home.deployment, "tiny")
    actor = home.deployment.settings.actor
    assert move["override"] == {"reason": done.override, "checks": list(done.overrode), "who": actor, "at": move["at"]}
    assert move["verdicts"]["drift"] is False
    with open_published(home.deployment) as connection:
        found = connection.execute("SELECT override, overrode, who FROM published.tiny__history").fetchall()
    assert found == [(done.override, ["dead_letters", "drift"], actor)]
    assert published(home, "Put").job_version != version.job_version
    assert home.status(version)["override"] is None
    rollback(home.deployment, "tiny")
    assert home.status(version)["override"]["reason"] == done.override


@pytest.mark.parametrize("check", NEVER_OVERRIDDEN)
def test_no_reason_overrides_what_makes_a_result_whole_and_permitted(home: Home, check: str) -> None:
    """Nothing is published, and the check is named."""
    version = judged(home, worked(home, "Sort"), failed=[check, "drift"])
    with pytest.raises(GateError, match=rf"{check}: {check} was looked at \(an override does not reach") as refused:
        publish(home.deployment, version, override="I know better")
    assert len(refused.value.reasons) == 1  # drift would have been set aside
    assert home.deployment.ledger.publications.history("tiny") == []


def test_a_check_without_a_verdict_cannot_be_overridden(home: Home) -> None:
    """There has to be something that the person could have looked at."""
    version = judged(home, worked(home, "Sort"), missing=["drift"])
    with pytest.raises(GateError, match="drift: no verdict"):
        publish(home.deployment, version, override="I know better")


def test_an_override_says_why_or_is_none(home: Home) -> None:
    """An empty reason is refused; a reason that no failed check called for is not recorded."""
    version = judged(home, worked(home, "Sort"), failed=["drift"])
    for nothing in ("", " \t\n", "\x1b"):
        with pytest.raises(InputError, match="needs a reason"):
            publish(home.deployment, version, override=nothing)
    with pytest.raises(InputError, match="longer than"):
        publish(home.deployment, version, override="x" * 1001)
    with pytest.raises(GateError, match="drift: drift was looked at"):
        publish(home.deployment, version)
    judged(home, version)
    assert publish(home.deployment, version, override="to be sure").override is None
    assert history(home.deployment, "tiny")[0]["override"] is None
