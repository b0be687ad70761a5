"""A SQLite ledger is refused on network file systems, as the kernel's list of mounts tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from batch_assets.errors import InputError
from batch_assets.storage.file_systems import file_system_of, refuse_network_file_system
from batch_assets.storage.ledger import Ledger

# As in /proc/self/mountinfo: id, parent, device, root, mount point, options, optional fields, "-", kind, source.
ROOT = "22 1 253:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    return tmp_path / "mountinfo"


@pytest.mark.parametrize(
    ("lines", "path", "kind"),
    [
        ("", "/srv/ledger", "ext4"),
        ("40 22 0:50 / /srv rw - nfs4 server:/export rw\n", "/srv/ledger", "nfs4"),
        ("40 22 0:50 / /srv rw - nfs4 server:/export rw\n", "/srvother/ledger", "ext4"),
        ("40 22 0:50 / /srv rw - nfs4 server:/export rw\n", "/srv", "nfs4"),
        # Without optional fields, and with several of them.
        ("40 22 0:50 / /srv rw - cifs //server/share rw\n", "/srv/a", "cifs"),
        ("40 22 0:50 / /srv rw shared:7 master:2 propagate_from:3 - cifs //server/share rw\n", "/srv/a", "cifs"),
        # The deepest mount counts, in whatever order they are listed.
        (
            "41 40 8:1 / /srv/disk rw - xfs /dev/sdb1 rw\n40 22 0:50 / /srv rw - nfs server:/e rw\n",
            "/srv/disk/l",
            "xfs",
        ),
        (
            "40 22 0:50 / /srv rw - nfs server:/e rw\n41 40 8:1 / /srv/disk rw - xfs /dev/sdb1 rw\n",
            "/srv/other/l",
            "nfs",
        ),
        # Of two mounts on one place the later hides the earlier.
        ("40 22 0:50 / /srv rw - nfs server:/e rw\n41 22 0:51 / /srv rw - tmpfs tmpfs rw\n", "/srv/l", "tmpfs"),
        ("40 22 0:51 / /srv rw - tmpfs tmpfs rw\n41 22 0:50 / /srv rw - nfs server:/e rw\n", "/srv/l", "nfs"),
        # A bind mount shows a part of another file system under its kind.
        ("40 22 0:50 /exports/a /home/me rw - nfs4 server:/exports/a rw\n", "/home/me/l", "nfs4"),
        ("40 22 253:1 /var/data /home/me rw - ext4 /dev/vda1 rw\n", "/home/me/l", "ext4"),
        # Blanks, tabs, line ends and backslashes in names are written as octal numbers.
        (r"40 22 0:50 / /srv/my\040disk rw - nfs4 server:/a\040b rw" + "\n", "/srv/my disk/l", "nfs4"),
        (r"40 22 0:50 / /srv/tab\011line\012end rw - nfs4 s:/ rw" + "\n", "/srv/tab\tline\nend/l", "nfs4"),
        (r"40 22 0:50 / /srv/back\134slash rw - nfs4 s:/ rw" + "\n", "/srv/back\\slash/l", "nfs4"),
        (r"40 22 0:50 / /srv/back\134040 rw - nfs4 s:/ rw" + "\n", "/srv/back\\040/l", "nfs4"),
        (r"40 22 0:50 / /srv/a\040-\040b rw - nfs4 s:/ rw" + "\n", "/srv/a - b/l", "nfs4"),
        # Containers: a layered root, with a volume of the host.
        ("40 22 0:60 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n", "/work/l", "overlay"),
        ("40 22 0:50 / /home/me rw - fuse.sshfs me@host: rw\n", "/home/me/l", "fuse.sshfs"),
    ],
)
def test_the_mount_that_a_path_is_on(mounts: Path, lines: str, path: str, kind: str) -> None:
    """The kind of file system is that of the deepest, latest mount above the path."""
    mounts.write_text(ROOT + lines)
    assert file_system_of(Path(path), mounts) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "virtiofs", "fuse.sshfs",
                                  "fuse.gcsfuse", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs"])  # fmt: skip
def test_network_file_systems_are_refused(mounts: Path, kind: str) -> None:
    """The message names the kind, and both ways out."""
    mounts.write_text(ROOT + f"40 22 0:50 / /srv rw - {kind} server:/export rw\n")
    with pytest.raises(InputError, match=rf"\({kind}\).*BATCH_ASSETS_HOME.*PostgreSQL"):
        refuse_network_file_system(Path("/srv/ledger.sqlite"), mounts)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuse.fuse-overlayfs", "fuseblk",
                                  "apfs", "fuse"])  # fmt: skip
def test_local_file_systems_are_not(mounts: Path, kind: str) -> None:
    """Containers and laptops included."""
    mounts.write_text(ROOT + f"40 22 0:50 / /srv rw - {kind} /dev/x rw\n")
    refuse_network_file_system(Path("/srv/ledger.sqlite"), mounts)


def test_a_link_is_followed(mounts: Path, tmp_path: Path) -> None:
    """What counts is where the file would be, not what it is called."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    mounts.write_text(ROOT + f"40 22 0:50 / {real} rw - nfs4 server:/export rw\n")
    with pytest.raises(InputError):
        refuse_network_file_system(link / "ledger.sqlite", mounts)


@pytest.mark.parametrize("text", [None, "", "nonsense\n", "1 2 3\n\n40 22 0:50 / /srv rw\n"])
def test_an_unknown_list_of_mounts_stops_nobody(mounts: Path, text: str | None) -> None:
    """Where the kernel does not tell (other systems, odd containers), the ledger is opened."""
    if text is not None:
        mounts.write_text(text)
    refuse_network_file_system(Path("/srv/ledger.sqlite"), mounts)


def test_a_ledger_looks_before_it_makes_anything(mounts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused ledger leaves no database behind."""
    mounts.write_text(ROOT + f"40 22 0:50 / {tmp_path}/share rw - nfs4 server:/export rw\n")
    monkeypatch.setattr("batch_assets.storage.database.refuse_network_file_system",
                        lambda path: refuse_network_file_system(path, mounts))  # fmt: skip
    with pytest.raises(InputError):
        Ledger(f"sqlite:///{tmp_path}/share/ledger.sqlite")
    assert not (tmp_path / "share" / "ledger.sqlite").exists()
