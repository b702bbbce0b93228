"""Exposure checks: listeners reachable from other machines, accepted HTTP Host headers, and files with secrets readable by others."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Iterable


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or `localhost`. Other names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def warning(option: str, host: str, *, has_tls: bool, has_login: bool, risk: str) -> str | None:
    """Warning about a listener that `option` opened; None if it is protected, or reachable only from this machine.

    `risk`: what others can do there.
    """
    missing = [name for name, is_there in (("TLS", has_tls), ("a login", has_login)) if not is_there]
    if not missing or is_loopback(host):
        return None
    return f"{option} can be reached from other machines, without {' and without '.join(missing)}: {risk}"


def is_expected(header: str, names: Iterable[str]) -> bool:
    """Whether a Host header names an address, `localhost`, this machine, or one of `names`.

    A web page cannot choose the header: if it points its domain at this machine, its requests carry the domain's name (DNS rebinding).
    """
    host = host_of(header)
    return _is_address(host) or host in {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}


def host_of(header: str) -> str:
    """`HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT` without its port, in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def warn_if_readable(logger: logging.Logger, what: str, path: str | os.PathLike[str]) -> None:
    """Log a WARNING if group or others may read the file. Opening it reports other faults of the file."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("%s %s may be read by other users of this machine (mode %04o): chmod 600 %s", what, path, mode, path)


def is_accessible_to_others(directory: str | os.PathLike[str]) -> bool:
    """Whether group or others may reach files in the directory by their names."""
    try:
        return bool(os.stat(directory).st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    except OSError:
        return False
