"""Record ids as keys of the ledger. Ids are untrusted text; a key must fit a database index.

Nearly every id is its own key. Two kinds are not: PostgreSQL's text cannot hold NUL, and an index
entry must stay under a third of a page. NUL is therefore written as two characters, and an id that is
too long is represented by its digest, with the id itself in a column beside it. The mapping is
one-to-one (an escape is always followed by a character that says which), so I1 holds for the ids.
"""

from __future__ import annotations

import hashlib
from typing import Any

KEY_BYTES_MAX = 1000

_ESCAPE = "\x01"
_NUL = _ESCAPE + "\x01"
_ITSELF = _ESCAPE + "\x02"
_DIGEST = _ESCAPE + "\x03"


def key_columns(record_id: str) -> dict[str, str | None]:
    """The columns `record_id` and `long_record_id` for an id."""
    escaped = _escape(record_id)
    if len(escaped) <= KEY_BYTES_MAX // 4 or len(escaped.encode()) <= KEY_BYTES_MAX:
        return {"record_id": escaped, "long_record_id": None}
    digest = hashlib.sha256(escaped.encode()).hexdigest()
    return {"record_id": _DIGEST + digest, "long_record_id": escaped}


def record_key(record_id: str) -> str:
    """The key of an id."""
    return str(key_columns(record_id)["record_id"])


def record_id_of(row: Any) -> str:
    """The id behind a row with both columns."""
    escaped: str = row.record_id if row.long_record_id is None else row.long_record_id
    if _ESCAPE not in escaped:
        return escaped
    return escaped.replace(_NUL, "\x00").replace(_ITSELF, _ESCAPE)


def storable(text: str) -> str:
    """Text for people that every database can hold: what it cannot is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _escape(text: str) -> str:
    if _ESCAPE in text:
        text = text.replace(_ESCAPE, _ITSELF)
    return text.replace("\x00", _NUL) if "\x00" in text else text
