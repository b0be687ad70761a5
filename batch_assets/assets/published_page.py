"""What the page of `published` shows: rows, columns, lineage, a sample, and the pictures of its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
import duckdb

from batch_assets.assets.snapshot import snapshot_key
from batch_assets.assets.texts import clip
from batch_assets.assets.verdict_events import pictures
from batch_assets.assets.version_page import column_descriptions
from batch_assets.core.sql_text import quote_name
from batch_assets.core.version import JobVersion
from batch_assets.operations.catalog import open_published
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.history import standing_override
from batch_assets.operations.publish import current_verdicts
from batch_assets.storage.publications import Publication

SAMPLE_ROWS = 5


def published_metadata(deployment: Deployment, job: str, job_version: str) -> Mapping[str, dg.MetadataValue]:
    """Read from the catalog that readers open, so that the page shows what they get."""
    version = deployment.version(deployment.ledger.plans.get(job_version))
    with open_published(deployment) as connection:
        relation = f"published.{quote_name(job)}"
        schema = _schema(connection, relation, column_descriptions(deployment, version))
        rows = connection.execute(f"SELECT count(*) FROM {relation}").fetchone()
        sample = _sample(connection, relation, schema)
    publication, override = deployment.ledger.publications.pointer(job), standing_override(deployment, job)
    drawn = {
        name: picture
        for verdict in current_verdicts(deployment, job_version)
        for name, picture in pictures(verdict).items()
    }
    return {
        "dagster/row_count": dg.MetadataValue.int(rows[0] if rows else 0),
        "dagster/table_name": dg.MetadataValue.text(f"published.{job}"),
        "dagster/column_schema": dg.MetadataValue.table_schema(schema),
        "dagster/column_lineage": dg.MetadataValue.column_lineage(_lineage(version, job, schema)),
        "sample": sample,
        "published by": dg.MetadataValue.text(_by(publication)),
        **({"override": dg.MetadataValue.text(_override_text(override))} if override is not None else {}),
        **drawn,
    }


def _by(publication: Publication | None) -> str:
    return "nobody" if publication is None else f"{publication.who}, {publication.at} ({publication.publication_id})"


def _override_text(override: Mapping[str, Any]) -> str:
    return f"{', '.join(override['checks'])} had failed; {override['who']} gave as reason: {override['reason']}"


def _schema(
    connection: duckdb.DuckDBPyConnection, relation: str, descriptions: Mapping[str, str | None]
) -> dg.TableSchema:
    found = connection.execute(f"DESCRIBE {relation}").fetchall()
    return dg.TableSchema([dg.TableColumn(str(row[0]), str(row[1]), descriptions.get(str(row[0]))) for row in found])


def _sample(connection: duckdb.DuckDBPyConnection, relation: str, schema: dg.TableSchema) -> dg.MetadataValue:
    names = [column.name for column in schema.columns]
    rows = connection.execute(f"SELECT * FROM {relation} LIMIT {SAMPLE_ROWS}").fetchall()
    records = [dg.TableRecord(dict(zip(names, map(clip, row), strict=True))) for row in rows]
    columns = [dg.TableColumn(name=name, type="string") for name in names]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def _lineage(version: JobVersion, job: str, schema: dg.TableSchema) -> dg.TableColumnLineage:
    """The record id and the access labels come from the snapshot, everything else from the version."""
    copied = {version.snapshot.record_id, *version.snapshot.access_labels}
    results = dg.AssetKey([job, version.id])
    return dg.TableColumnLineage(
        deps_by_column={
            column.name: [
                dg.TableColumnDep(
                    asset_key=snapshot_key(job) if column.name in copied else results, column_name=column.name
                )
            ]
            for column in schema.columns
        }
    )
