"""The materialization of one shard: the event that Dagster keeps for each partition. Below 1 kB."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from batch_assets.core.shards import partition_key
from batch_assets.storage.objects import Objects
from batch_assets.storage.progress import ShardRow
from batch_assets.worker.events import ShardSealed
from batch_assets.worker.report import ShardStats


def sealed_event(key: dg.AssetKey, objects: Objects, event: ShardSealed, stats: ShardStats) -> dg.AssetMaterialization:
    """A shard that was sealed just now, with how it went."""
    seconds = max(stats.seconds, 1e-3)
    return dg.AssetMaterialization(
        asset_key=key,
        partition=partition_key(event.lease.shard),
        metadata={
            "dagster/partition_row_count": event.sealed.rows,
            "dagster/uri": _link(objects, event.sealed.key),
            "dead_letters": event.dead_letters,
            "attempt": event.lease.epoch,
            "seconds": round(seconds, 3),
            "tokens_per_s": round((stats.prompt_tokens + stats.output_tokens) / seconds, 1),
            "output_tokens_per_s": round(stats.output_tokens / seconds, 1),
        },
    )


def reused_event(key: dg.AssetKey, objects: Objects, shard: ShardRow) -> dg.AssetMaterialization:
    """A completed shard as the ledger tells of it: no worker of this run reported it."""
    return dg.AssetMaterialization(
        asset_key=key,
        partition=partition_key(shard.shard),
        metadata={
            "dagster/partition_row_count": shard.results,
            "dagster/uri": _link(objects, str(shard.sealed_key)),
            "dead_letters": shard.dead_letters,
            "attempt": shard.epoch,
            "reused": True,
        },
    )


def _link(objects: Objects, key: str) -> str:
    uri = objects.uri(key)
    return uri if "://" in uri else Path(uri).as_uri()
