"""Every error this project raises, chosen by what the reader must do next.

    BatchAssetsError
    ├── InputError              fix what you gave us (exit status 2)
    │   ├── SpecError           the job folder: defs.yaml, prompt.md, output_schema.py, golden.jsonl
    │   ├── SnapshotError       the input records: unreadable, duplicate or null ids, missing columns
    │   ├── VersionError        no such version, or a version file that was edited
    │   └── ModelError          model files missing or different from what was pinned
    ├── GateError               the checks do not allow this publication; fix the cause and check again
    ├── PublicationConflict     someone else published meanwhile; look, then decide again
    ├── Fenced                  this worker's lease is over: stop working on the shard, write nothing
    ├── EngineDied              the engine process is gone: start a new one
    ├── EngineUnavailable       the engine cannot be started, or was restarted too often: call a person (69)
    ├── StoreError              the ledger or the object store refused or failed: try again (74)
    ├── ShardTrouble            this shard cannot be finished as things are; others can: call a person
    └── IncompleteError         shards are missing; run the version again to finish them

Messages are one paragraph: what was found, what follows from it, what to do. Nothing catches by
matching the text of a message.
"""

from __future__ import annotations


class BatchAssetsError(Exception):
    """Base of all errors that a person may see without a traceback."""

    exit_status = 1


class InputError(BatchAssetsError):
    """Something the user supplied is wrong; nothing was changed."""

    exit_status = 2


class SpecError(InputError):
    """The job folder is not a valid job."""


class SnapshotError(InputError):
    """The input records cannot be used as they are."""


class VersionError(InputError):
    """The job version does not exist, or its file is not what was pinned."""


class ModelError(InputError):
    """Model files are missing or differ from the pinned digest."""


class GateError(BatchAssetsError):
    """Publishing was refused by the checks. `reasons` holds one line per cause."""

    def __init__(self, message: str, *, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class PublicationConflict(BatchAssetsError):
    """The pointer no longer is what this publication was meant to replace."""

    def __init__(self, message: str, *, expected: str | None, found: str | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found


class Fenced(BatchAssetsError):
    """The ledger refused this worker: its epoch is not the current one."""


class EngineDied(BatchAssetsError):
    """The engine process ended while requests were in flight."""


class EngineUnavailable(BatchAssetsError):
    """The engine does not start, or died more often than allowed."""

    exit_status = 69  # EX_UNAVAILABLE: another machine may do better


class StoreError(BatchAssetsError):
    """The ledger or the object store could not do what was asked."""

    exit_status = 74  # EX_IOERR


class ShardTrouble(BatchAssetsError):
    """What is stored for this shard does not fit together; trying again gives the same."""


class IncompleteError(BatchAssetsError):
    """The version has shards that are not completed."""
