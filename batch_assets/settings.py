"""Every setting of a deployment, once. What belongs to one job is in its spec instead.

Each can be set by an environment variable: the field's name in capitals behind `BATCH_ASSETS_`.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_models() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "batch_assets" / "models"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user that has no name
        return "unknown"


class Settings(BaseSettings):
    """Where the state lives, and how this deployment runs work."""

    model_config = SettingsConfigDict(env_prefix="BATCH_ASSETS_", frozen=True)

    home: Path = Field(Path(".batch_assets"), description="ledger, results, warehouse, Dagster's own storage")
    ledger: SecretStr | None = Field(
        None, description="address of the ledger database; a SQLite file in the home when left out"
    )
    objects: str | None = Field(
        None,
        description="a folder or s3://bucket/prefix for pinned and sealed files; `objects` in the home when left out",
    )
    jobs: Path | None = Field(None, description="a directory of further job folders, beside the packaged ones")
    models: Path = Field(default_factory=_default_models, description="model directories; shared by all homes")
    executor: Literal["in_process", "multiprocess"] = Field(
        "multiprocess", description="how Dagster runs the steps of one version on this machine"
    )
    actor: str = Field(default_factory=_user, description="who is named in the history")

    ui: str | None = Field(
        None,
        description="address of Dagster's webserver, told of new versions; that of `batch-assets ui` when left out",
    )

    @property
    def ledger_url(self) -> str:
        if self.ledger is not None:
            return self.ledger.get_secret_value()
        return f"sqlite:///{self.root / 'ledger.sqlite'}"

    @property
    def root(self) -> Path:
        """The home as an absolute path, so that it means the same in every process."""
        return self.home.expanduser().absolute()

    @property
    def objects_address(self) -> str:
        """Where the object store is: an absolute path, or an address with a scheme."""
        if self.objects is None:
            return str(self.root / "objects")
        return self.objects if "://" in self.objects else str(Path(self.objects).expanduser().absolute())

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse.duckdb"

    @property
    def dagster_home(self) -> Path:
        return self.root / "dagster"
