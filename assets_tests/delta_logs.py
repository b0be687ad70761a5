"""Delta tables with features that deltalake reads and does not write: the log is written by hand.

Format: the Delta transaction log protocol, deletion vectors (inline, "Z85") and column mapping.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1681511377  # of a serialized 64-bit roaring bitmap in a deletion vector


def delete_rows(table: Path, rows: Sequence[int]) -> None:
    """Version 1: the rows of the only file that have these positions are deleted by a deletion vector."""
    data = struct.pack("<i", _MAGIC) + BitMap64(rows).serialize()
    text = base64.b85encode(data + b"\0" * (-len(data) % 4)).decode().translate(str.maketrans(_B85, _Z85))
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}
    add = _only(table, "add")
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    _commit(table, _feature("deletionVectors"), {"remove": remove}, {"add": {**add, "deletionVector": vector}})


def rename_column(table: Path, name: str, renamed: str) -> None:
    """Version 1: a column has another name than in the files."""
    metadata = _only(table, "metaData")
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], start=1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field["name"] = renamed if field["name"] == name else field["name"]
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(schema["fields"]))}
    changed = {**metadata, "schemaString": json.dumps(schema), "configuration": configuration}
    _commit(table, _feature("columnMapping"), {"metaData": changed})


def require_feature(table: Path, name: str) -> None:
    """Version 1: readers must know a feature."""
    _commit(table, _feature(name))


def _feature(name: str) -> dict[str, Any]:
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {"protocol": {**versions, "readerFeatures": [name], "writerFeatures": [name]}}


def _log(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def _only(table: Path, kind: str) -> dict[str, Any]:
    actions = [json.loads(line) for line in _log(table, 0).read_text().splitlines()]
    (found,) = (action[kind] for action in actions if kind in action)
    return dict(found)


def _commit(table: Path, *actions: dict[str, Any]) -> None:
    _log(table, 1).write_text("\n".join(map(json.dumps, actions)))
