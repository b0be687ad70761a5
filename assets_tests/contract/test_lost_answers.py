"""After a lost answer nobody knows what happened: the caller hears StoreError and sends the same again.

Whether the first try was committed or not, the end is that of one call, and no counter moves twice. The
answer is lost in two ways: at the ledger's own failpoints, on both databases, and on the wire, by a proxy
in front of PostgreSQL that drops the connection around the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from assets_tests import invariants
from assets_tests.ledgers import LEASE_S, Clock, LedgerUnderTest, failure, result, small_version
from assets_tests.losing import AFTER, BEFORE, losing
from assets_tests.postgresql import Server
from assets_tests.proxy import Proxy, proxy_to
from assets_tests.waiting import wait_for
from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Reason
from batch_assets.core.suspects import ShardTrial
from batch_assets.core.verdicts import Verdict
from batch_assets.core.waste import Wasted
from batch_assets.errors import StoreError
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.outcomes import Put
from batch_assets.storage.publications import Publication
from batch_assets.storage.tables import metadata

# --- what can be sent twice ----------------------------------------------------------------------


@dataclass
class Scene:
    """A ledger in which something is about to be said; `held` is a lease on shard 0."""

    under: LedgerUnderTest
    held: Lease

    @property
    def ledger(self) -> Ledger:
        return self.under.ledger

    @property
    def id(self) -> str:
        return self.under.version.id


Say = Callable[[Scene], Callable[[], Any]]  # sets the scene; what it returns is said, and said again


def say_register(scene: Scene) -> Callable[[], Any]:
    version = small_version(prompt="another")
    return lambda: scene.ledger.plans.register(version, file_sha256="f")


def say_plan(scene: Scene) -> Callable[[], Any]:
    version = small_version(prompt="another")
    scene.ledger.plans.register(version, file_sha256="f")
    dead = [(0, failure("0", attempt=1, reason=Reason.EMPTY_INPUT))]
    return lambda: scene.ledger.plans.write_plan(version, dead)


def say_moved_files(scene: Scene) -> Callable[[], Any]:
    return lambda: scene.ledger.plans.move_files(scene.id, {"d": "/elsewhere"})


def say_claim(scene: Scene) -> Callable[[], Any]:
    return lambda: scene.ledger.leases.claim(scene.id, owner="w2", lease_s=LEASE_S, wanted=range(3), claim_id="c")


def say_renew(scene: Scene) -> Callable[[], Any]:
    scene.under.clock.now += 100
    return lambda: scene.ledger.leases.renew(scene.held, lease_s=LEASE_S)


def say_put(scene: Scene) -> Callable[[], Any]:
    scene.under.put(scene.held, result("0"))
    second = [result("0", payload='"late"'), result("1")]
    put = Put(lease=scene.held, results=second, failures=[failure("2", attempt=3), failure("3", attempt=1)])
    return lambda: scene.ledger.outcomes.put(put)


def say_trial(scene: Scene) -> Callable[[], Any]:
    trial = ShardTrial(groups=(("0",), ("1", "2")), running=True)
    return lambda: scene.ledger.trials.save(scene.held, trial)


def say_waste(scene: Scene) -> Callable[[], Any]:
    scene.ledger.waste.record(scene.held, {"timeout": Wasted(1, 10, 0)})
    return lambda: scene.ledger.waste.record(scene.held, {"timeout": Wasted(2, 20, 0), "preempted": Wasted(1, 5, 0)})


def say_release(scene: Scene) -> Callable[[], Any]:
    return lambda: scene.ledger.leases.release(scene.held, trouble="the engine does not start")


def say_complete(scene: Scene) -> Callable[[], Any]:
    scene.under.answer_all(scene.held)
    return lambda: scene.under.complete(scene.held)


def say_reclaim(scene: Scene) -> Callable[[], Any]:
    return lambda: scene.ledger.leases.reclaim_dead(scene.id, lambda owner: owner == "w1")


def say_requeue(scene: Scene) -> Callable[[], Any]:
    scene.ledger.leases.release(scene.held, trouble="t", recoveries_max=1)
    return lambda: scene.ledger.interventions.requeue(scene.id, [0, 1])


def say_cancel(scene: Scene) -> Callable[[], Any]:
    return lambda: scene.ledger.interventions.cancel(scene.id)


def say_retry(scene: Scene) -> Callable[[], Any]:
    scene.under.put(scene.held, *(failure("0", attempt=n) for n in (1, 2, 3)), result("1"))
    return lambda: scene.ledger.interventions.retry_dead_letters(scene.id, "invalid_output", who="me")


def say_verdicts(scene: Scene) -> Callable[[], Any]:
    verdict = Verdict(check="coverage", passed=True, blocking=True, summary="all there")
    return lambda: scene.ledger.publications.record_verdicts(scene.id, "content", {"coverage": "basis"}, [verdict])


def say_publish(scene: Scene) -> Callable[[], Any]:
    finish(scene)
    return lambda: scene.ledger.publications.move(publication(scene, None, scene.id, "first"))


def say_move(scene: Scene) -> Callable[[], Any]:
    finish(scene)
    scene.ledger.publications.move(publication(scene, None, "v0", "first"))
    return lambda: scene.ledger.publications.move(publication(scene, "v0", scene.id, "second"))


def say_retire(scene: Scene) -> Callable[[], Any]:
    finish(scene)
    return lambda: scene.ledger.interventions.retire(scene.id, forget=True)


def say_forget(scene: Scene) -> Callable[[], Any]:
    finish(scene)
    scene.ledger.interventions.retire(scene.id, forget=True)
    return lambda: scene.ledger.interventions.forget(scene.id)


def say_sweep(scene: Scene) -> Callable[[], Any]:
    finish(scene)
    scene.ledger.publications.move(publication(scene, None, scene.id, "first"))
    scene.ledger.publications.move(publication(scene, scene.id, "v2", "second"))
    return lambda: scene.ledger.retention.decide("tickets", keep=1, grace_s=0, who="me", dry_run=False)


def finish(scene: Scene) -> None:
    lease: Lease | None = scene.held
    while lease is not None:
        scene.under.answer_all(lease)
        scene.under.complete(lease)
        lease = scene.under.try_claim()


def publication(scene: Scene, before: str | None, to: str, publication_id: str) -> Publication:
    return Publication(
        publication_id=publication_id,
        job="tickets",
        kind="publish",
        from_version=before,
        to_version=to,
        who="me",
        verdicts={},
    )


# The transaction's name -> how to come to the point of saying it.
SAYINGS: dict[str, Say] = {
    "register": say_register,
    "plan": say_plan,
    "move_files": say_moved_files,
    "claim": say_claim,
    "renew": say_renew,
    "put": say_put,
    "trial": say_trial,
    "waste": say_waste,
    "release": say_release,
    "complete": say_complete,
    "reclaim": say_reclaim,
    "requeue": say_requeue,
    "cancel": say_cancel,
    "retry_dead_letters": say_retry,
    "verdicts": say_verdicts,
    "publish": say_publish,
    "publish ": say_move,  # the pointer is there already
    "retire": say_retire,
    "forget": say_forget,
    "sweep": say_sweep,
}


@pytest.fixture
def open_scene() -> Iterator[Callable[[str], Scene]]:
    """Opens scenes, and closes them at the end."""
    opened: list[Ledger] = []

    def open_(url: str) -> Scene:
        clock = Clock()
        opened.append(Ledger(url, clock=clock))
        under = LedgerUnderTest(opened[-1], clock)
        return Scene(under, under.claim())

    yield open_
    for ledger in opened:
        ledger.close()


def everything(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables, but for ids that are drawn anew."""
    with ledger.database.read() as connection:
        return {
            name: [
                tuple(value for key, value in row._mapping.items() if key != "last_put_id")
                for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for name, table in metadata.tables.items()
        }


@pytest.fixture
def other_url(ledger_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Another database of the same kind."""
    if ledger_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'other.sqlite'}"
    server: Server = request.getfixturevalue("postgresql")
    return server.new_database()


# --- lost at a failpoint -------------------------------------------------------------------------


@pytest.mark.case("C55")
@pytest.mark.parametrize("moment", [BEFORE, AFTER])
@pytest.mark.parametrize("name", SAYINGS)
def test_saying_it_again_is_saying_it_once(
    ledger_url: str, other_url: str, open_scene: Callable[[str], Scene], name: str, moment: str
) -> None:
    """Said, lost and said again leaves the same rows in every table as said once."""
    once, again = open_scene(other_url), open_scene(ledger_url)
    SAYINGS[name](once)()
    say = SAYINGS[name](again)
    before = everything(again.ledger)
    with losing(f"{name.strip()}.{moment}") as lost, pytest.raises(StoreError):
        say()
    assert lost
    assert moment == AFTER or everything(again.ledger) == before
    say()
    assert everything(again.ledger) == everything(once.ledger)
    invariants.check(again.ledger, again.id)


# --- lost on the wire ----------------------------------------------------------------------------

COMMITS = {"plan": 3}  # the tables' partitions are attached first; all others commit once


@pytest.fixture
def proxy(postgresql: Server) -> Iterator[Proxy]:
    with proxy_to(postgresql.port) as opened:
        yield opened


@pytest.mark.case("C55")
@pytest.mark.parametrize(("name", "nth"), [(name, nth + 1) for name in SAYINGS for nth in range(COMMITS.get(name, 1))])
@pytest.mark.parametrize("moment", [BEFORE, AFTER])
def test_a_connection_cut_around_the_commit(
    postgresql: Server, proxy: Proxy, open_scene: Callable[[str], Scene], name: str, nth: int, moment: str
) -> None:
    """The caller hears StoreError; saying it again, on a new connection, leaves what saying it once leaves."""
    url = postgresql.new_database()
    once = open_scene(postgresql.new_database())
    again = open_scene(url.replace(str(postgresql.port), str(proxy.port)))
    SAYINGS[name](once)()
    say = SAYINGS[name](again)
    proxy.cut(moment, nth=nth)
    with pytest.raises(StoreError, match="nothing is done twice"):
        say()
    assert proxy.cuts == [moment]
    wait_for("end of the broken transaction", lambda: not open_transactions(url))
    say()
    assert everything(again.ledger) == everything(once.ledger)
    invariants.check(again.ledger, again.id)


def open_transactions(url: str) -> list[Any]:
    """Row locks are the server's until it notices that the client is gone; a claim passes them over."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        return connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND (state <> 'idle' OR xact_start IS NOT NULL) AND backend_type = 'client backend'"
        ).fetchall()
