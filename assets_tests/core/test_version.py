"""The version id depends on exactly the pinned things."""

from __future__ import annotations

from typing import Any

import pytest

from batch_assets.core.spec import DecodingSpec
from batch_assets.core.version import (
    FilePin,
    JobVersion,
    ModelPin,
    PromptPin,
    SchemaPin,
    SnapshotPin,
    dump_version,
    load_version,
)
from batch_assets.errors import VersionError

SOURCE = FilePin(key="/data/a.parquet", size=10, sha256="aa", rows=3)


def version(**changes: Any) -> JobVersion:
    """A version in which parts can be replaced: `snapshot__rows=4` reaches inside."""
    parts: dict[str, Any] = {
        "job": "tickets",
        "label": "v1",
        "snapshot": SnapshotPin(
            sources=(SOURCE,),
            files=(SOURCE,),
            rows=3,
            record_id="id",
            text=("body",),
            record_class=None,
            access_labels=(),
        ),
        "model": ModelPin(provider="local", name="m", digest="d", files=(), dtype="float32", quantization=None),
        "prompt": PromptPin(text="p", sha256="ps", format="plain", template_sha256="ts"),
        "decoding": DecodingSpec(input_tokens_max=100),
        "output_schema": SchemaPin(source="s", sha256="ss"),
        "shard_size": 2,
        "pinned_at": "2026-01-01T00:00:00+00:00",
    }
    for key, value in changes.items():
        part, _, inner = key.partition("__")
        parts[part] = parts[part].model_copy(update={inner: value}) if inner else value
    return JobVersion(**parts)


PINNED = {
    "job": "other",
    "snapshot__sources": (FilePin(key="/data/a.parquet", size=10, sha256="ab", rows=3),),
    "snapshot__rows": 2,
    "snapshot__record_id": "key",
    "snapshot__text": ("subject",),
    "snapshot__record_class": "kind",
    "snapshot__access_labels": ("acl",),
    "model__digest": "e",
    "model__dtype": "bfloat16",
    "model__quantization": "awq",
    "model__provider": "scripted",
    "prompt__sha256": "pt",
    "prompt__format": "chat",
    "prompt__template_sha256": "tt",
    "decoding__input_tokens_max": 101,
    "decoding__output_tokens_max": (201, 400),
    "decoding__temperature": 0.1,
    "decoding__seed": 1,
    "decoding__stop": ("\n",),
    "output_schema__sha256": "st",
}
NOT_PINNED = {
    "shard_size": 7,
    "pinned_at": "2027-01-01T00:00:00+00:00",
    "model__name": "elsewhere/m",
    "snapshot__sources": (FilePin(key="/moved/a.parquet", size=10, sha256="aa", rows=3),),
    "snapshot__files": (FilePin(key="snapshots/x.parquet", size=99, sha256="zz", rows=3),),
}


@pytest.mark.parametrize("change", PINNED)
def test_changing_a_pinned_thing_is_a_new_version(change: str) -> None:
    """Each pinned thing, changed alone, gives another id."""
    assert version(**{change: PINNED[change]}).id != version().id


@pytest.mark.parametrize("change", NOT_PINNED)
def test_other_things_leave_the_version_alone(change: str) -> None:
    """Where files lie, how large a shard is and when it was pinned do not enter the id."""
    assert version(**{change: NOT_PINNED[change]}).id == version().id


def test_the_label_names_the_version_but_is_not_its_identity() -> None:
    """The label stands in the id; the digest behind it stays."""
    renamed = version(label="v2")
    assert renamed.id == f"v2_{version().digest[:12]}"


def test_a_version_file_survives_a_round_trip() -> None:
    """What is written is read back equal."""
    assert load_version(dump_version(version()), expected_id=version().id, where="f") == version()


@pytest.mark.parametrize(
    "edit",
    [
        (b'"shard_size": 2', b'"shard_size": 3'),  # outside of the id, and still refused
        (b'"digest": "d"', b'"digest": "x"'),
        (b'"id": "v1', b'"id": "v9'),
        (b"}", b""),
    ],
)
def test_an_edited_version_file_is_refused(edit: tuple[bytes, bytes]) -> None:
    """Any edit of a pinned file is refused, with what to do instead."""
    data = dump_version(version()).replace(*edit, 1)
    with pytest.raises(VersionError, match="never edited: change the job folder and pin again"):
        load_version(data, expected_id=version().id, where="versions/tickets/v1.json")


def test_shards_cover_all_records() -> None:
    """The last shard may be short; none is missing."""
    assert (version(snapshot__rows=4).shards, version().shards) == (2, 2)
