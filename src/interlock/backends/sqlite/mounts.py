"""Which file systems a lock file may live on.

SQLite's write-ahead log needs memory that all its users share, and both it and the gate need locks that the kernel hands
out itself. A file system that another machine serves keeps neither promise: two machines would both hold the lock.
"""

from __future__ import annotations

from typing import NamedTuple

from ...runtime.base import by_a_handler

MOUNTINFO = "/proc/self/mountinfo"

NETWORK = """
    nfs nfs3 nfs4 cifs smb2 smb3 smbfs 9p afs auristorfs coda ncpfs davfs ceph lustre glusterfs beegfs gpfs orangefs pvfs2
    panfs wekafs quobyte pohmelfs
"""
CLUSTER = "ocfs2 gfs gfs2 acfs"  # one disk under several machines
GUEST = "virtiofs vboxsf prl_fs vmhgfs drvfs fakeowner"  # a host's directory, seen from its virtual machines
SHARED = frozenset(f"{NETWORK} {CLUSTER} {GUEST}".split())

# FUSE can be anything, so here it is the other way round: what is not known to stay on this machine is refused.
LOCAL_FUSE_NAMES = """
    fuse-overlayfs overlayfs unionfs unionfs-fuse mergerfs bindfs encfs gocryptfs cryfs securefs ntfs-3g ntfs exfat ext2 ext4
    zfs zfs-fuse lxcfs
"""
LOCAL_FUSE = frozenset(("fuseblk", "fusectl", *(f"fuse.{name}" for name in LOCAL_FUSE_NAMES.split())))


class Mount(NamedTuple):
    """Where a file system is attached and of which kind it is."""

    point: str
    kind: str


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The mount that an absolute path without symbolic links lies on, from the text of /proc/self/mountinfo."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _unescaped(fields[4])
        # Of two mounts on one point the later hides the earlier.
        if _lies_under(path, point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point, right.split(" ", 1)[0])
    return best


def is_shared(kind: str) -> bool:
    """Whether other machines may write to a file system of this kind behind this kernel's back."""
    return kind in SHARED or (kind.startswith("fuse") and kind not in LOCAL_FUSE)


def read_mountinfo() -> str:
    """The text of /proc/self/mountinfo, or "" where there is none."""
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        if by_a_handler(error):
            raise
        return ""


def _lies_under(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescaped(field: str) -> str:
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, char)
    return field
