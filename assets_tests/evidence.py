"""Evidence made by DuckDB instead of by workers: millions of rows in seconds, faults planted with SQL.

The tables are Parquet files as the sealer writes them, and the views are those of `gather_evidence`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from assets_tests.ledgers import small_version
from batch_assets.core.output_schema import load_output_model
from batch_assets.core.spec import GateSpec
from batch_assets.core.sql_text import parquet_rows
from batch_assets.validation.evidence import Evidence, SealedShard
from batch_assets.validation.tally import UNEVEN

PACKAGED = Path(__file__).parent.parent / "batch_assets" / "defs" / "support_tickets"
MODEL = load_output_model((PACKAGED / "output_schema.py").read_text(), where="output_schema.py")
CATEGORIES = ("billing", "technical", "account", "shipping", "feedback")

# One row of each table as a function of its number `n`; what a test plants replaces an expression.
SNAPSHOT = {
    "__row": "n",
    "id": "printf('R-%08d', n)",
    "body": "'This is ticket ' || n || ' about order ' || (n * 7919 % 100003) || '.'",
    "record_class": "CASE WHEN n % 5 = 0 THEN 'internal' ELSE 'public' END",
    "acl": "'team-' || n % 3",
}
RESULTS = {
    "id": SNAPSHOT["id"],
    "category": f"{list(CATEGORIES)}[1 + (hash(n) % 100 // 20)::INT]",
    "summary": "'Ticket ' || n || ' asks ' || repeat('x', (hash(n + 1) % 80)::INT)",
    "entities": "['order ' || (n * 7919 % 100003), 'ticket ' || n]",
    "acl": SNAPSHOT["acl"],
    "_job_version": "$version",
    "_shard": "(n // $shard_size)::INT",
    "_attempt": "1::SMALLINT",
    "_finish_reason": "'stop'",
    "_engine": "CASE WHEN n % 2 = 0 THEN 'scripted 1 (cpu)' ELSE 'scripted 2 (cpu)' END",
    "_stored_at": "TIMESTAMPTZ '2026-01-01 00:00:00Z'",
    "_record_class": SNAPSHOT["record_class"],
}


@dataclass
class Case:
    """A version of `records` rows in files under `folder`."""

    folder: Path
    records: int
    shards: int = 1
    gate: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shard_size = -(-self.records // self.shards)
        version = small_version(records=self.records, shard_size=self.shard_size)
        roles = {"record_class": "record_class", "access_labels": ("acl",)}
        self.version = version.model_copy(update={"snapshot": version.snapshot.model_copy(update=roles)})
        self.connection = duckdb.connect()
        self.connection.execute("SET threads = 2; SET memory_limit = '1GB'; SET TimeZone = 'UTC'")
        self.connection.execute(f"SET temp_directory = '{self.folder}/scratch'; SET enable_progress_bar = false")
        self.connection.execute(
            "CREATE TABLE dead_letters (record_id VARCHAR, reason VARCHAR, error VARCHAR, shard INT)"
        )

    def write(
        self, name: str, columns: Mapping[str, str], where: str = "true", again: str = "false", **parameters: object
    ) -> Path:
        """Write the rows 0 … records − 1 that satisfy a condition, in order; those of `again` a second time."""
        target = self.folder / f"{name}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        chosen = ", ".join(f'{expression} AS "{column}"' for column, expression in columns.items())
        rows = f"SELECT {chosen} FROM range({self.records}) AS numbers(n) WHERE"
        query = f"{rows} {where}" if again == "false" else f"{rows} {where} UNION ALL {rows} {again}"
        for key, value in parameters.items():
            query = query.replace(f"${key}", f"'{value}'" if isinstance(value, str) else str(value))
        self.connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, ROW_GROUP_SIZE 100000)")
        return target

    def snapshot(self, **replaced: str) -> Case:
        path = self.write("snapshot", {**SNAPSHOT, **replaced})
        self.connection.execute(f"CREATE OR REPLACE VIEW snapshot AS SELECT * FROM '{path}'")
        return self

    def results(self, where: str = "true", **replaced: str) -> Case:
        """Write the shards; also the rows that readers would see."""
        for shard in range(self.shards):
            self._shard(shard, "sound", where, "false", replaced)
        return self.views()

    @contextmanager
    def planted(self, shard: int, where: str = "true", again: str = "false", **replaced: str) -> Iterator[Evidence]:
        """The same version with one shard that has a fault."""
        self._shard(shard, "faulty", where, again, replaced)
        self.views(faulty=shard)
        try:
            yield self.evidence()
        finally:
            self.views()

    def _shard(self, shard: int, kind: str, where: str, again: str, replaced: Mapping[str, str]) -> None:
        mine = f"n >= {shard * self.shard_size} AND n < {(shard + 1) * self.shard_size} AND ({where})"
        parameters = {"version": self.version.id, "shard_size": self.shard_size}
        self.write(self._name(shard, kind), {**RESULTS, **replaced}, mine, again, **parameters)

    def baseline(self, where: str = "true", **replaced: str) -> Case:
        parameters = {"version": "v0_published", "shard_size": self.shard_size}
        path = self.write("baseline", {**RESULTS, **replaced}, where, **parameters)
        self.connection.execute(f"CREATE OR REPLACE VIEW baseline AS SELECT * FROM '{path}'")
        return self

    def dead_letters(self, ids: str, reason: str = "invalid_output") -> Case:
        self.connection.execute(
            f"INSERT INTO dead_letters SELECT id, '{reason}', 'no', __row // {self.shard_size} FROM snapshot WHERE {ids}"
        )
        return self

    def views(self, faulty: int | None = None) -> Case:
        self.paths = [
            self.folder / f"{self._name(shard, 'faulty' if shard == faulty else 'sound')}.parquet"
            for shard in range(self.shards)
        ]
        files = parquet_rows(map(str, self.paths), "filename = '_file'")
        self.connection.execute(f"CREATE OR REPLACE VIEW results AS SELECT * FROM {files}")
        self.connection.execute("CREATE OR REPLACE VIEW whole AS SELECT * EXCLUDE (_file) FROM results")
        return self

    def _name(self, shard: int, kind: str) -> str:
        return f"{kind}/{self.version.id}/shard-{shard:05d}"

    def evidence(self) -> Evidence:
        """Digests and row counts are those of the files as they are now."""
        self.connection.execute(f"DROP TABLE IF EXISTS {UNEVEN}")  # that of other evidence
        shards = [self._sealed(number, path) for number, path in enumerate(self.paths)]
        has_baseline = self.connection.execute("SELECT 1 FROM duckdb_views() WHERE view_name = 'baseline'").fetchone()
        return Evidence(
            version=self.version,
            model=MODEL,
            gate=GateSpec.model_validate(self.gate),
            category_field="category",
            evaluated_field="category",
            golden={},
            sealed=shards,
            sealed_schema=pq.read_schema(self.paths[0]),
            baseline_version="v0_published" if has_baseline else None,
            recipes={self.version.id: self.version.recipe_digest},
            connection=self.connection,
        )

    def _sealed(self, shard: int, path: Path) -> SealedShard:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        rows = pq.read_metadata(path).num_rows
        return SealedShard(
            key=f"results/tickets/{self.version.id}/{path.name}",
            uri=str(path),
            shard=shard,
            sha256=digest,
            rows=rows,
            rows_found=rows,
            columns_missing=(),
            columns_mistyped=(),
            open=partial(path.open, "rb"),
            digest=lambda: digest,
        )
