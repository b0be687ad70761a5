"""Our errors as Dagster's: what a person must mend is not retried, and reads as one paragraph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from batch_assets.errors import BatchAssetsError, StoreError


@contextmanager
def as_dagster_failures() -> Iterator[None]:
    """Let a StoreError through, so that the step's retry policy sees it; anything else of ours ends the step."""
    try:
        yield
    except StoreError:
        raise
    except BatchAssetsError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None
