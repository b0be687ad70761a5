"""A deployment for the length of a step, closed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from batch_assets.operations.deployment import Deployment
from batch_assets.settings import Settings


@contextmanager
def opened(settings: Settings) -> Iterator[Deployment]:
    """Steps run in processes of their own, so each opens the ledger for itself."""
    deployment = Deployment(settings)
    try:
        yield deployment
    finally:
        deployment.ledger.close()
