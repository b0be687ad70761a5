"""One behaviour suite over every ledger database. A second dialect is one more entry here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assets_tests.ledgers import Clock, LedgerUnderTest
from batch_assets.storage.ledger import Ledger


@pytest.fixture(params=["sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerUnderTest]:
    """A planned version of 10 records in shards of 4, on a clock that the test moves."""
    clock = Clock()
    url = {"sqlite": f"sqlite:///{tmp_path / 'ledger.sqlite'}"}[request.param]
    under_test = LedgerUnderTest(Ledger(url, clock=clock), clock)
    yield under_test
    under_test.ledger.close()
