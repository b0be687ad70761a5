"""Shard arithmetic: a shard is a contiguous range of snapshot rows, known from counts alone."""

from __future__ import annotations

from collections.abc import Iterator

KEY_DIGITS = 6  # zero-padded, so that sorted by text is sorted by number; up to a million shards


def shard_range(shard: int, *, shard_size: int, records: int) -> range:
    """Snapshot row numbers of a shard, from 0."""
    start = shard * shard_size
    if not 0 <= start < records:
        raise IndexError(f"shard {shard} is outside of {records} records in shards of {shard_size}")
    return range(start, min(start + shard_size, records))


def shard_of_row(row: int, *, shard_size: int) -> int:
    """The shard that a snapshot row belongs to."""
    return row // shard_size


def partition_key(shard: int) -> str:
    """The Dagster partition of a shard."""
    return f"{shard:0{KEY_DIGITS}d}"


def shard_of_partition(key: str) -> int:
    """The shard of a Dagster partition."""
    return int(key)


def contiguous(shards: list[int]) -> Iterator[tuple[int, int]]:
    """Sorted shard numbers as inclusive ranges: few for work that is dense, whatever its size."""
    start = previous = None
    for shard in shards:
        if previous is None or shard != previous + 1:
            if start is not None and previous is not None:
                yield start, previous
            start = shard
        previous = shard
    if start is not None and previous is not None:
        yield start, previous
