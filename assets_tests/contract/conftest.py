"""One behaviour suite over every ledger database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from assets_tests.ledgers import Clock, LedgerUnderTest
from batch_assets.storage.ledger import Ledger


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[LedgerUnderTest]:
    """A planned version of 10 records in shards of 4, on a clock that the test moves."""
    clock = Clock()
    under_test = LedgerUnderTest(Ledger(ledger_url, clock=clock), clock)
    yield under_test
    under_test.ledger.close()
