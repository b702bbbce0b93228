"""The folder of Parquet files of dead letters, as the one that a replay is given: that it is there, and holds letters."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from chaffinch.errors.codes import Group
from chaffinch.settings import shown_value
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal

_NAME_IT: Final = "name the one that errors.dead.letter.path had"
DONE: Final = "_replayed"
"""Folder of the Parquet files that are done with; Spark leaves out what begins with `_`."""


class LettersFolder(Folder):
    """One that is there already, because a query has written into it."""

    def refusal(self, what: str, error: Exception, remedy: str = _NAME_IT) -> Refusal:
        return super().refusal(what, error, remedy)


def look_at_folder(path: str) -> Folder:
    """The folder of dead letters. Refusal where there is none, or nobody may look into it."""
    from pyarrow import fs

    folder = LettersFolder(path, "--parquet")
    filesystem, at = folder.opened()
    try:
        kind = filesystem.get_file_info(at).type
    except OSError as error:
        raise folder.refusal("cannot be looked at", error) from None
    if kind != fs.FileType.Directory:
        what = "there is no such folder" if kind == fs.FileType.NotFound else "that is a file, and letters are replayed by their folder"
        raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", f"--parquet={folder.shown}: {what}; {_NAME_IT}")
    _refuse_folder_above(folder)
    return folder


def _refuse_folder_above(folder: Folder) -> None:
    """The one above that of the letters. One without letters may be that of a query that has set nothing aside."""
    names = folder.names()
    if DONE in names or files_of_letters(names):
        return
    for name in sorted(name for name in names if not name.startswith((".", "_"))):
        if _holds_letters(folder.below(name)):
            text = f"--parquet={folder.shown}: there is no Parquet file in that folder, but in {shown_value(name)} below it; {_NAME_IT}"
            raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", text)


def _holds_letters(folder: Folder) -> bool:
    with suppress(Refusal):  # That is no folder, or one of others.
        return bool(files_of_letters(folder.names()))
    return False


def files_of_letters(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith(".parquet") and not name.startswith((".", "_"))}
