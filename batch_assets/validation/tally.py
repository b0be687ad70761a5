"""Which rows of two sides differ, without a table of all ids: fingerprints first, ids where they differ.

A shard is a range of the snapshot's rows, so its records and its outcomes are two small sets. Both are
summed up as a count and two sums of 64-bit hashes, in one pass and in memory that depends on the number
of shards only. Shards whose sums agree hold the same ids as often: that two different sets agree by
chance happens once in 2^128 comparisons. Ids are compared one by one in all other shards, out of core.
Record ids are unique in the snapshot: planning refuses any other.
"""

from __future__ import annotations

from batch_assets.core.sql_text import quote_name
from batch_assets.validation.evidence import Evidence

UNEVEN = "uneven_ids"  # id, asked (rows of the snapshot), answered (results), given_up (dead letters)
_NO_SHARD = -1


def shard_of_record(evidence: Evidence) -> str:
    """Expression over `snapshot`: the shard in which a record is answered."""
    return f"__row // {evidence.version.shard_size}"


def shard_of_result() -> str:
    """Expression over `results`: the shard that a row says it is of."""
    return f"coalesce(_shard, {_NO_SHARD})"


def create_uneven_shards(evidence: Evidence, name: str, asked: str, given: str) -> None:
    """Table `name` (shard): where the rows of two queries over (shard, value) are not the same values."""
    evidence.connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE {name} AS
        SELECT shard FROM (
            SELECT shard, 1 AS sign, hash(value) AS one, hash(value, 'again') AS two FROM ({asked})
            UNION ALL SELECT shard, -1, hash(value), hash(value, 'again') FROM ({given})
        )
        GROUP BY shard HAVING sum(sign) <> 0 OR sum(sign * one::HUGEINT) <> 0 OR sum(sign * two::HUGEINT) <> 0
        """
    )


def tally(evidence: Evidence) -> str:
    """The name of a table of the ids whose counts are not one record and one outcome; made once."""
    connection = evidence.connection
    if connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [UNEVEN]).fetchone():
        return UNEVEN
    record_id = f"{quote_name(evidence.version.snapshot.record_id)}::VARCHAR"
    snapshot = f"SELECT {shard_of_record(evidence)} AS shard, {record_id} AS value FROM snapshot"
    results = f"SELECT {shard_of_result()} AS shard, {record_id} AS value FROM results"
    letters = f"SELECT coalesce(shard, {_NO_SHARD}) AS shard, record_id AS value FROM dead_letters"
    create_uneven_shards(evidence, "uneven_shards", snapshot, f"{results} UNION ALL {letters}")
    suspect = "WHERE shard IN (SELECT shard FROM uneven_shards)"
    connection.execute(
        f"""
        CREATE TEMP TABLE {UNEVEN} AS
        SELECT id, sum(a)::BIGINT AS asked, sum(r)::BIGINT AS answered, sum(d)::BIGINT AS given_up
        FROM (
            SELECT value AS id, 1::UTINYINT AS a, 0::UTINYINT AS r, 0::UTINYINT AS d FROM ({snapshot}) {suspect}
            UNION ALL SELECT value, 0, 1, 0 FROM ({results}) {suspect}
            UNION ALL SELECT value, 0, 0, 1 FROM ({letters}) {suspect}
        )
        GROUP BY id HAVING sum(a) <> 1 OR sum(r) + sum(d) <> 1
        """
    )
    return UNEVEN
