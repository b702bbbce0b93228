"""Folders: files whole or not at all, Hadoop's spellings, and what cannot be used is named with its option."""

import errno
import os
import pickle
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaffinch.errors.codes import Group
from chaffinch.spark.folders import Folder, PrivateFolder, _normalized
from chaffinch.spark.refusals import Refusal


def full(folder: Folder) -> None:
    try:
        with folder.opened()[0].open_output_stream(folder.path("full")) as out:
            out.write(bytes(1 << 20))
    except OSError as error:
        raise folder.refusal("has a file full that cannot be written", error) from None


class TestFolder:
    def test_files_are_replaced_atomically(self, tmp_path: Path) -> None:
        folder = Folder(f"file://{tmp_path}/new/folder", "checkpointLocation")
        assert folder.read("state") is None
        for text in (b"one", b"two"):
            folder.write("state", [text])
            assert folder.read("state") == text
        assert folder.names() == ["state"]
        folder.remove("state")
        folder.remove("state")
        assert folder.names() == []
        folder.remove_all()
        folder.remove_all()
        assert not (tmp_path / "new" / "folder").exists()

    def test_probe_leaves_no_files(self, tmp_path: Path) -> None:
        Folder(str(tmp_path), "stagingLocation").probe()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("location", ["file/below", "file"])
    def test_unwritable_location_error_names_option(self, tmp_path: Path, location: str) -> None:
        (tmp_path / "file").write_text("in the way")
        folder = Folder(str(tmp_path / location), "errors.dead.letter.path")
        with pytest.raises(Refusal, match=rf"errors\.dead\.letter\.path={tmp_path}/{location} cannot be written") as caught:
            folder.probe()
        assert caught.value.group is Group.INVALID_CONFIGURATION

    def test_unknown_scheme_is_refused(self) -> None:
        with pytest.raises(Refusal, match="stagingLocation=floppy://a cannot be opened"):
            Folder("floppy://a", "stagingLocation").probe()

    @pytest.mark.parametrize("location", ["file://host/a", "file://tmp/a"])
    def test_file_uri_with_host_is_refused(self, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As often two slashes instead of one or three; taken for /tmp/a, it was found nowhere."""
        monkeypatch.chdir(tmp_path)
        with pytest.raises(Refusal, match=rf"stagingLocation={location} cannot be opened: .*[Hh]ost.*{location}"):
            Folder(location, "stagingLocation").names()

    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.EIO, "I/O"), OSError(errno.ENOSPC, "no room"), TimeoutError(errno.ETIMEDOUT, "late"),
            OSError("When reading key 'a' in bucket 'b': AWS Error SLOW_DOWN during GetObject operation: reduce"),
            OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 28, Timeout was reached"),
            OSError("AWS Error UNKNOWN (HTTP status 503) during PutObject operation"),
        ],
        ids=str,
    )  # fmt: skip
    def test_transient_error_advises_retry(self, error: OSError | TimeoutError) -> None:
        """supervise starts a query again for it; a path that is wrong stays wrong."""
        refusal = Folder("s3://b/a", "stagingLocation").refusal("cannot be read", error)
        assert (refusal.group, refusal.name) == (Group.APPLICATION_RECOVERABLE, "STORAGE_FAILED")
        assert refusal.text.startswith("stagingLocation=s3://b/a cannot be read: ")
        assert refusal.text.endswith("; start the query again")

    @pytest.mark.parametrize(
        "error",
        [
            FileNotFoundError(errno.ENOENT, "none"), PermissionError(errno.EACCES, "not allowed"), OSError(errno.EROFS, "read only"),
            OSError("AWS Error ACCESS_DENIED (HTTP status 403) during PutObject operation"),
            OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 6, Couldn't resolve host name"),
            ValueError("HTTP status 503 is no location"),
        ],
        ids=str,
    )  # fmt: skip
    def test_permanent_error_advises_correction(self, error: Exception) -> None:
        refusal = Folder("s3://b/a", "stagingLocation").refusal("cannot be read", error)
        assert (refusal.group, refusal.name) == (Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE")

    def test_full_disk_is_storage_failed(self) -> None:
        """As in the message of pyarrow."""
        with pytest.raises(Refusal, match=r"STORAGE_FAILED: .*/dev has a file full that cannot be written") as caught:
            full(Folder("/dev", "stagingLocation"))
        assert caught.value.group is Group.APPLICATION_RECOVERABLE

    def test_null_character_is_refused(self) -> None:
        with pytest.raises(Refusal, match=r"LOCATION_NOT_USABLE: .*cannot be opened: a path cannot contain a null character"):
            Folder("/a\0b", "stagingLocation").probe()

    @pytest.mark.parametrize("reason", ["Unable to load libjvm\ndlopen(/a/libjvm.so) failed", "Prior attempt to load libhdfs failed"])
    def test_missing_hdfs_driver_error_says_what_to_install(self, reason: str) -> None:
        text = Folder("hdfs://n:1/x", "stagingLocation").refusal("cannot be opened", OSError(reason)).text
        assert text.startswith("stagingLocation=hdfs://n:1/x cannot be opened: pyarrow does not find the HDFS driver libhdfs.so, or ")
        assert "set HADOOP_HOME, JAVA_HOME, and CLASSPATH to the output of `hadoop classpath --glob`; name a folder that" in text

    @pytest.mark.parametrize(
        ("location", "shown"),
        [
            ("s3://name:secret@bucket/a?region=x", "s3://...@bucket/a?region=x"),
            ("s3://bucket/a@b", "s3://bucket/a@b"),
            ("/a/b@c", "/a/b@c"),
            ("s3://name:sec/r?et@bucket/a", "s3://...@bucket/a"),
            ("s3a://name:secret@bucket/a", "s3a://...@bucket/a"),
            ("hdfs://node:9000/a", "hdfs://node:9000/a"),
            (
                "abfss://c@a.dfs.core.windows.net/p?tenant_id=t&client_secret=S3cret&enable_tls=true",
                "abfss://...@a.dfs.core.windows.net/p?tenant_id=t&client_secret=...&enable_tls=true",
            ),
            ("s3://bucket/a?Access_Key=S3cret&region=x", "s3://bucket/a?Access_Key=...&region=x"),
        ],
    )
    def test_credentials_of_location_are_hidden(self, location: str, shown: str) -> None:
        assert Folder(location, "stagingLocation").shown == shown
        refusal = Folder(location, "stagingLocation").refusal("cannot be opened", ValueError(f"cannot parse {_normalized(location)}"))
        assert refusal.text.startswith(f"stagingLocation={shown} cannot be opened: cannot parse {shown}; ")

    def test_long_reason_is_shortened(self) -> None:
        refusal = Folder("/a", "stagingLocation").refusal("cannot be opened", OSError("no such file " * 1000))
        assert len(refusal.text) < 700
        assert refusal.text.endswith("...; name a folder that driver and executors can write to")

    @pytest.mark.parametrize(
        ("location", "expected"),
        [
            ("file:/a/b", "/a/b"),
            ("file:///a/b", "/a/b"),
            ("/a/b", "/a/b"),
            ("s3a://b/k", "s3://b/k"),
            ("hdfs://n/p", "hdfs://n/p"),
            ("hdfs:/p", "hdfs:///p"),
        ],
    )
    def test_hadoop_locations_are_normalized(self, location: str, expected: str) -> None:
        assert _normalized(location) == expected

    def test_file_system_options_stay_at_end_of_location(self) -> None:
        folder = Folder("s3://bucket/staging/?region=x", "stagingLocation").below("q", "3")
        assert folder.location == "s3://bucket/staging/q/3?region=x"
        assert folder.parent().location == "s3://bucket/staging/q?region=x"
        assert Folder("/a?b", "stagingLocation").below("q").location == "/a?b/q"
        assert Folder("s3a://bucket/letters/?region=x", "--parquet").in_spark("a.parquet") == "s3a://bucket/letters/a.parquet"
        assert Folder("/a?b", "--parquet").in_spark("a.parquet") == "/a?b/a.parquet"


class TestDurable:
    """What is on the disk in which order: after a power failure a name without its bytes, or bytes without a name, are not the file."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Folder, list[str]]:
        """What was asked of the system, in order, with the kind of file."""
        asked, fsync = [], os.fsync
        folder = Folder(str(tmp_path), "checkpointLocation")
        local, path = folder.opened()
        kept = ("type_name", "create_dir", "open_output_stream", "delete_file", "get_file_info")

        def move(source: str, target: str) -> None:
            asked.append("move")
            local.move(source, target)

        def sync(handle: int) -> None:
            asked.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
            fsync(handle)

        monkeypatch.setattr(folder, "_opened", (SimpleNamespace(move=move, **{name: getattr(local, name) for name in kept}), path))
        monkeypatch.setattr(os, "fsync", sync)
        return folder, asked

    def test_file_is_synced_before_rename_and_folder_after(self, asked: tuple[Folder, list[str]]) -> None:
        folder, done = asked
        folder.write("state", [b"one"])
        assert done == ["sync file", "move", "sync folder"]

    def test_file_is_closed_before_rename(self, asked: tuple[Folder, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
        """An object store has it from then on."""
        folder, _ = asked
        closed = []
        with folder.replacing("state") as out:
            out.write(b"one")
            monkeypatch.setattr(folder, "_settle", lambda *_: closed.append(out.closed))
        assert closed == [True]

    def test_rename_syncs_folder(self, asked: tuple[Folder, list[str]]) -> None:
        folder, done = asked
        folder.write("hidden", [b"one"])
        done.clear()
        folder.rename("hidden", "shown")
        assert done == ["move", "sync folder"]


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(Refusal, match="cannot be written"):
        Folder(str(tmp_path), "checkpointLocation").write("state", [b"x"])
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


class TestPrivateFolder:
    """A directory whose name other users of the machine can predict."""

    def test_private_directory_is_created_on_first_write(self, tmp_path: Path) -> None:
        root = tmp_path / "own"
        folder = PrivateFolder(str(root), "stagingLocation").below("query", "0")
        assert not root.exists()
        pickle.loads(pickle.dumps(folder)).write("a", [b"1"])
        assert stat.filemode(root.stat().st_mode) == "drwx------"
        assert folder.read("a") == b"1"
        folder.parent().remove_all()
        assert list(root.iterdir()) == []

    def test_readable_private_directory_is_closed_to_others(self, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir(mode=0o755)
        PrivateFolder(str(tmp_path / "own"), "stagingLocation").write("a", [b"1"])
        assert stat.filemode((tmp_path / "own").stat().st_mode) == "drwx------"

    @pytest.mark.parametrize("wrong", ["of another user", "writable for others", "writable for its group", "a link", "a file"])
    def test_directory_of_another_user_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
        root, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
        elsewhere.mkdir()
        match wrong:
            case "a link":
                root.symlink_to(elsewhere)
            case "a file":
                root.write_text("")
            case _:
                root.mkdir()
                root.chmod({"writable for others": 0o702, "writable for its group": 0o720}.get(wrong, 0o700))
        if wrong == "of another user":
            monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
        with pytest.raises(
            Refusal, match=rf"^KAFKA\[InvalidConfiguration\] LOCATION_NOT_USABLE: stagingLocation={root} cannot be used"
        ) as caught:
            PrivateFolder(str(root), "stagingLocation").below("query").write("a", [b"1"])
        wanted = f"; it must be a folder of user {os.getuid()} that no other user can write to; name a folder that"
        assert wanted in str(caught.value)
        assert list(elsewhere.iterdir()) == []


class TestRename:
    def test_rename_replaces_older_file_once(self, tmp_path: Path) -> None:
        folder = Folder(str(tmp_path), "errors.dead.letter.path")
        for text in (b"one", b"two"):
            folder.write("hidden", [text])
            folder.rename("hidden", "shown")
        folder.rename("hidden", "shown")  # Another process was faster.
        assert (folder.names(), folder.read("shown")) == (["shown"], b"two")

    @pytest.mark.parametrize("how", ["renamed", "written"])
    def test_rename_deletes_older_file_if_needed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        """As on HDFS."""
        folder = Folder(str(tmp_path), "errors.dead.letter.path")
        local, path = folder.opened()

        def move(source: str, target: str) -> None:
            if os.path.exists(target):
                raise OSError("Cannot rename: the target exists")
            local.move(source, target)

        kept = ("create_dir", "open_output_stream", "delete_file", "get_file_info")
        hdfs = SimpleNamespace(type_name="hdfs", move=move, **{name: getattr(local, name) for name in kept})
        (tmp_path / "shown").write_bytes(b"one")
        monkeypatch.setattr(folder, "_opened", (hdfs, path))
        if how == "renamed":
            (tmp_path / "hidden").write_bytes(b"two")
            folder.rename("hidden", "shown")
        else:
            folder.write("shown", [b"two"])
        assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("shown", b"two")]

    @pytest.mark.parametrize("kind", ["s3", "local"])
    def test_rename_deletes_nothing_if_it_can_replace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        """A driver that died behind that would have left none of the two, and a query that has forgotten itself."""
        folder = Folder(str(tmp_path), "checkpointLocation")
        local, path = folder.opened()
        folder.write("state", [b"one"])
        kept = ("create_dir", "open_output_stream", "get_file_info", "move")
        parts = {name: getattr(local, name) for name in kept}
        monkeypatch.setattr(folder, "_opened", (SimpleNamespace(type_name=kind, **parts), path))  # Without a way to delete.
        folder.write("state", [b"two"])
        assert (tmp_path / "state").read_bytes() == b"two"

    def test_failed_rename_keeps_older_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = Folder(str(tmp_path), "checkpointLocation")
        local, path = folder.opened()
        folder.write("state", [b"one"])

        def move(source: str, target: str) -> None:
            raise OSError(5, "Input/output error")

        kept = ("create_dir", "open_output_stream", "get_file_info", "delete_file")
        parts = {name: getattr(local, name) for name in kept}
        monkeypatch.setattr(folder, "_opened", (SimpleNamespace(type_name="local", move=move, **parts), path))
        with pytest.raises(Refusal, match=f"checkpointLocation={tmp_path} cannot be written: .*Input/output error"):
            folder.write("state", [b"two"])
        assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("state", b"one")]

    def test_failed_rename_error_names_option(self, tmp_path: Path) -> None:
        (tmp_path / "hidden").write_bytes(b"one")
        (tmp_path / "shown" / "below").mkdir(parents=True)
        with pytest.raises(Refusal, match=rf"errors\.dead\.letter\.path={tmp_path} has a file hidden that cannot be renamed to shown: "):
            Folder(str(tmp_path), "errors.dead.letter.path").rename("hidden", "shown")
