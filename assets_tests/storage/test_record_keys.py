"""Record ids as keys: whatever the text, one id has one key, and comes back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets_tests import invariants
from assets_tests.ledgers import Clock, LedgerUnderTest, failure, result, small_version
from batch_assets.core.suspects import ShardTrial
from batch_assets.storage import outcomes
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.record_keys import KEY_BYTES_MAX, key_columns, record_id_of, record_key, storable

ODD = "\x00\x01\x02\x03"
IDS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=ODD + "ab", max_size=12),
    st.builds(lambda piece, times: piece * times, st.text(min_size=1, max_size=4), st.integers(1, 2000)),
)

HOSTILE = [
    "", " ", "17", " 17", "17 ", "\x00", "\x00\x00", "\x01", "\x01\x01", "\x01\x02", "\x01\x03", "\x02", "\x03",
    "a\x00b", "a\x01b", "a\x01\x01b", "\n", "'; DROP TABLE outcomes; --", "%s %(x)s :x ?", "\\", "Ü", "u\u0308", "𝄞",
    "\u202e", "\ud7ff", "\ufffe", "x" * KEY_BYTES_MAX, "x" * (KEY_BYTES_MAX + 1), "x" * KEY_BYTES_MAX + "\x00",
    "é" * (KEY_BYTES_MAX // 2), "é" * (KEY_BYTES_MAX // 2) + "x", "y" * 10_000, "y" * 9_999 + "z", "𝄞" * 10_000,
    "\x00" * 5_000, "\x01" * 5_000,
]  # fmt: skip


def there_and_back(record_id: str) -> str:
    return record_id_of(SimpleNamespace(**key_columns(record_id)))


@given(IDS)
@settings(deadline=None, print_blob=True)
def test_an_id_comes_back_as_it_was(record_id: str) -> None:
    """From its columns the id is read back, to the last character."""
    assert there_and_back(record_id) == record_id


@given(IDS, IDS)
@settings(deadline=None, print_blob=True)
def test_different_ids_have_different_keys(one: str, other: str) -> None:
    """The mapping is one-to-one, so a key can stand for its id in a primary key."""
    assert (record_key(one) == record_key(other)) == (one == other)


@given(IDS)
@settings(deadline=None, print_blob=True)
def test_a_key_fits_every_database(record_id: str) -> None:
    """No NUL, and short enough for an index; an id too long for that is kept beside its key."""
    columns = key_columns(record_id)
    key = str(columns["record_id"])
    assert "\x00" not in key
    assert "\x00" not in (columns["long_record_id"] or "")
    assert len(key.encode()) <= KEY_BYTES_MAX
    # The digest of a long id has a spelling that no short id has.
    assert key.startswith("\x01\x03") == (columns["long_record_id"] is not None)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\x00\x01", codec="utf-8"), max_size=40), max_size=8))
@settings(deadline=None, print_blob=True)
def test_usual_ids_are_their_own_keys(ids: list[str]) -> None:
    """So that they sort as they are, and people can look them up."""
    assert [record_key(one) for one in ids] == ids


def test_hostile_ids_are_different_records() -> None:
    """None of the ids that the next test stores is taken for another."""
    assert len({record_key(one) for one in HOSTILE}) == len(HOSTILE)
    assert [there_and_back(one) for one in HOSTILE] == HOSTILE


@pytest.fixture
def hostile(ledger_url: str) -> Iterator[LedgerUnderTest]:
    """A version whose records have the hostile ids, all in one shard."""
    clock = Clock()
    version = small_version(records=3 * len(HOSTILE), shard_size=3 * len(HOSTILE))
    under = LedgerUnderTest(Ledger(ledger_url, clock=clock), clock, version)
    yield under
    under.ledger.close()


def test_hostile_ids_are_stored_and_listed(hostile: LedgerUnderTest) -> None:
    """Results, failed attempts and settled records come back under exactly their ids; a second one is a discard."""
    lease, store = hostile.claim(), hostile.ledger.outcomes
    assert hostile.put(lease, *map(result, HOSTILE)).stored == len(HOSTILE)
    assert hostile.put(lease, *map(result, HOSTILE)).discarded == len(HOSTILE)
    hostile.put(lease, *(failure("f" + one, attempt=2) for one in HOSTILE))
    assert store.settled_ids(hostile.version.id, 0) == set(HOSTILE)
    assert store.failed_attempts(hostile.version.id, 0) == {"f" + one: 2 for one in HOSTILE}
    assert sorted(one.record_id for one in store.results_of_shard(hostile.version.id, 0)) == sorted(HOSTILE)
    invariants.check(hostile.ledger, hostile.version.id)


@pytest.mark.parametrize("batch", [1, 3, 5000])
def test_hostile_ids_as_dead_letters(hostile: LedgerUnderTest, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dead letter is listed once, in batches of any size, and can be put back."""
    monkeypatch.setattr(outcomes, "_LIST_BATCH", batch)
    lease, store = hostile.claim(), hostile.ledger.outcomes
    hostile.put(lease, *(failure(one, attempt=3) for one in HOSTILE))
    letters = list(store.dead_letters(hostile.version.id))
    assert sorted(one.record_id for one in letters) == sorted(HOSTILE)
    done = hostile.ledger.interventions.retry_dead_letters(hostile.version.id, "invalid_output", who="me")
    assert done.records == len(HOSTILE)
    assert store.settled_ids(hostile.version.id, 0) == set()
    assert store.failed_attempts(hostile.version.id, 0) == {}


def test_hostile_ids_on_trial(hostile: LedgerUnderTest) -> None:
    """Suspects are remembered under exactly their ids."""
    lease = hostile.claim()
    trial = ShardTrial(groups=(tuple(HOSTILE[:5]), tuple(HOSTILE[5:])), running=True)
    hostile.ledger.trials.save(lease, trial)
    assert hostile.ledger.trials.of(lease) == trial


@given(st.text(alphabet=st.characters()))
@settings(deadline=None, print_blob=True)
def test_texts_for_people_can_always_be_stored(text: str) -> None:
    """Error texts may hold NUL and halves of characters: these are spelled out, the rest stays."""
    stored = storable(text)
    assert "\x00" not in stored
    stored.encode()
    if "\x00" not in text and not any("\ud800" <= one <= "\udfff" for one in text):
        assert stored == text
