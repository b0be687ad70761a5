"""A few results beside their records, for people to read. Reads one shard per result, never the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb

from batch_assets.core.shards import shard_range
from batch_assets.core.sql_text import parquet_rows, quote_name
from batch_assets.core.version import JobVersion
from batch_assets.operations.deployment import Deployment
from batch_assets.storage.progress import ShardRow
from batch_assets.storage.scan import MEMORY_LIMIT
from batch_assets.storage.sealed import RESERVED

VALUE_CHARS = 1_200  # of one column


@dataclass(frozen=True, kw_only=True)
class SampledResult:
    """One result and its record; every value is text, cut."""

    record_id: str
    shard: int
    record: dict[str, str | None]
    result: dict[str, str | None]


def sample_results(deployment: Deployment, version: JobVersion, count: int) -> Iterator[SampledResult]:
    """Results drawn with the version's digest as the seed, in shard order.

    The same version gives the same sample as long as it holds the same content.
    """
    chance = random.Random(version.digest)
    sealed = [row for row in deployment.ledger.progress.shards(version.id, state="completed") if row.results]
    picked = sorted(_draw(chance, [row.results for row in sealed], count))
    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET enable_progress_bar = false")
        deployment.objects.attach(connection)
        for place in dict.fromkeys(place for place, _ in picked):
            shard, numbers = sealed[place], [number for one, number in picked if one == place]
            results = _results(connection, deployment.objects.uri(str(shard.sealed_key)), numbers, version)
            records = _records(deployment, version, shard, set(results))
            for record_id, result in results.items():
                yield SampledResult(
                    record_id=record_id, shard=shard.shard, record=records.get(record_id, {}), result=result
                )


def _draw(chance: random.Random, sizes: Sequence[int], count: int) -> set[tuple[int, int]]:
    """Places (index of a file, row in it): files with equal chance of a row, without drawing a row twice."""
    total = sum(sizes)
    wanted = sorted(chance.sample(range(total), min(count, total)))
    drawn, first = set(), 0
    for place, size in enumerate(sizes):
        while wanted and wanted[0] < first + size:
            drawn.add((place, wanted.pop(0) - first))
        first += size
    return drawn


def _results(
    connection: duckdb.DuckDBPyConnection, uri: str, numbers: Sequence[int], version: JobVersion
) -> dict[str, dict[str, str | None]]:
    source = parquet_rows([uri], "file_row_number = true")
    kinds = connection.execute(f"DESCRIBE SELECT * EXCLUDE (file_row_number) FROM {source}").fetchall()
    names = [str(row[0]) for row in kinds]
    columns = ", ".join(_text(str(name), str(kind)) for name, kind, *_ in kinds)
    rows = connection.execute(
        f"SELECT {columns} FROM {source} WHERE file_row_number IN (SELECT unnest($1::BIGINT[])) ORDER BY file_row_number",
        [list(numbers)],
    ).fetchall()
    record_id = version.snapshot.record_id
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return {
        str(one[record_id]): {name: one[name] for name in names if name not in (record_id, *RESERVED)} for one in found
    }


def _text(name: str, kind: str) -> str:
    """A column as text, cut inside of DuckDB, so that a value of megabytes is not held here."""
    column = quote_name(name)
    is_nested = kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION"))
    return f"left({f'to_json({column})' if is_nested else column}::VARCHAR, {VALUE_CHARS}) AS {column}"


def _records(
    deployment: Deployment, version: JobVersion, shard: ShardRow, wanted: set[str]
) -> dict[str, dict[str, str | None]]:
    """The source records with these ids; they lie in the shard's own range of rows."""
    snapshot = version.snapshot
    shown = [*snapshot.text, *([snapshot.record_class] if snapshot.record_class else []), *snapshot.access_labels]
    columns = list(dict.fromkeys([snapshot.record_id, *shown]))
    rows = shard_range(shard.shard, shard_size=version.shard_size, records=version.records)
    found: dict[str, dict[str, str | None]] = {}
    for record in deployment.reader(version).read(rows, columns):
        record_id = str(record[snapshot.record_id])
        if record_id in wanted:
            found[record_id] = {name: _cut(record[name]) for name in columns if name != snapshot.record_id}
        if len(found) == len(wanted):
            break
    return found


def _cut(value: object) -> str | None:
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]}…"
