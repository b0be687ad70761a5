"""The ledger: one database, and the things that are kept in it."""

from __future__ import annotations

from collections.abc import Callable

from batch_assets.storage.database import Database
from batch_assets.storage.file_sets import FileSets
from batch_assets.storage.interventions import Interventions
from batch_assets.storage.leases import Leases
from batch_assets.storage.outcomes import Outcomes
from batch_assets.storage.plans import Plans
from batch_assets.storage.progress import ProgressReader
from batch_assets.storage.publications import Publications
from batch_assets.storage.retention import Retention
from batch_assets.storage.trials import Trials
from batch_assets.storage.waste import WasteBook


class Ledger:
    """Everything in motion, and the pointers. The settled results are in sealed files."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        self.database = Database(url, clock=clock)
        self.plans = Plans(self.database)
        self.leases = Leases(self.database)
        self.outcomes = Outcomes(self.database)
        self.trials = Trials(self.database)
        self.waste = WasteBook(self.database)
        self.interventions = Interventions(self.database)
        self.progress = ProgressReader(self.database)
        self.publications = Publications(self.database)
        self.file_sets = FileSets(self.database)
        self.retention = Retention(self.database)

    def close(self) -> None:
        """Close all connections; the ledger must not be used afterwards."""
        self.database.close()
