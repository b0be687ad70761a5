"""Where a SQLite ledger must not live.

In WAL mode SQLite's processes share memory through a file beside the database. On a network file
system that memory is not shared between machines, and locks are promises that some servers do not
keep: two workers could both win a claim, or the file could be damaged without a word.
"""

from __future__ import annotations

import re
from pathlib import Path

from batch_assets.errors import InputError

MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "glusterfs", "lustre", "gpfs", "beegfs"}
_NETWORK |= {"pvfs2", "orangefs", "ocfs2", "gfs2", "coda", "virtiofs", "vboxsf", "prl_fs", "ncpfs"}
# Behind `fuse.` stands the program that serves the files.
_NETWORK_FUSE = {"sshfs", "s3fs", "gcsfuse", "goofys", "rclone", "ceph", "glusterfs", "davfs", "blobfuse2", "juicefs"}
_NETWORK_FUSE |= {"blobfuse", "lizardfs", "moosefs", "mfs", "curlftpfs", "mount-s3", "mountpoint-s3"}


def refuse_network_file_system(database: Path, mounts: Path = MOUNTS) -> None:
    """Raise InputError when the database's folder is on a network file system."""
    kind = file_system_of(database, mounts)
    if kind is None or not is_network(kind):
        return
    raise InputError(
        f"The ledger {database} would lie on a network file system ({kind}). SQLite's locks and shared memory do not "
        "work there, and the ledger could be damaged. Set BATCH_ASSETS_HOME to a local disk, or use PostgreSQL: "
        "BATCH_ASSETS_LEDGER=postgresql+psycopg://user@host/database."
    )


def is_network(kind: str) -> bool:
    family, _, flavour = kind.partition(".")
    return family in _NETWORK or (family.startswith("fuse") and flavour in _NETWORK_FUSE)


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The kind of file system a path is on, as the kernel names it; None when that cannot be told.

    Format of the file: `man 5 proc_pid_mountinfo`. Of mounts over one another the last one counts.
    """
    try:
        lines = mounts.read_text(errors="replace").split("\n")
    except OSError:
        return None
    found: tuple[int, str] | None = None
    wanted = path.resolve()
    for line in lines:
        before, dash, after = line.partition(" - ")
        if not dash or len(before.split(" ")) < 6:
            continue
        point = Path(_unescaped(before.split(" ")[4]))
        if wanted.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), after.split(" ")[0]
    return None if found is None else found[1]


def _unescaped(text: str) -> str:
    """Blanks, line ends and backslashes are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
