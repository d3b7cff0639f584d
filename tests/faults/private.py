"""What a process can take away from itself alone: the space of its disk, and root's right to ignore permissions."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_CAPABILITIES = 0x20080522
_IGNORE_PERMISSIONS = 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def mount_small_disk(place: Path, size: int) -> None:
    """A file system of `size` bytes in memory, seen by this process only and gone with it; OSError if not allowed."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) != 0:  # as an ordinary user: as the root of a namespace of its own
        _checked(libc.unshare(_NEW_MOUNTS | _NEW_USER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _checked(libc.mount(b"none", b"/", None, _PRIVATE | _RECURSIVE, None))
    _checked(libc.mount(b"none", os.fsencode(place), b"tmpfs", 0, f"size={size}".encode()))


def obey_permissions() -> None:
    """A process of root is refused what others are refused; the rights of others stay as they are."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: of the first 32, then of the others
    _checked(libc.capget(header, sets))
    sets[0] &= ~_IGNORE_PERMISSIONS
    _checked(libc.capset(header, sets))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
