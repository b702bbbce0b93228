"""Files with secrets that other users of this machine may read: a WARNING names them."""

import logging
import os
import stat


def warn_if_readable(logger: logging.Logger, what: str, path: str | os.PathLike[str]) -> None:
    """Log a WARNING if group or others may read the file. Opening it reports other faults of the file."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("%s %s may be read by other users of this machine (mode %04o): chmod 600 %s", what, path, mode, path)


def is_entered_by_others(directory: str | os.PathLike[str]) -> bool:
    """Whether group or others may reach files in the directory by their names."""
    try:
        return bool(os.stat(directory).st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    except OSError:
        return False
