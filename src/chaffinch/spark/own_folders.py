"""Folders of this machine that belong to one user, though others can tell their names: whoever is first may have made them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def claim(root: str) -> None:
    """Makes a folder of this machine where it is missing, for this user alone. OSError where it is not his."""
    with suppress(FileExistsError):
        os.makedirs(root, 0o700)
    found = os.lstat(root)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        seen = f"it belongs to user {found.st_uid}, with {stat.filemode(found.st_mode)}"
        raise PermissionError(f"{seen}; it must be a folder of user {os.getuid()} to which nobody else may write")
    os.chmod(root, 0o700)
