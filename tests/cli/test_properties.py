"""Files of options, as Java reads them."""

from pathlib import Path

import pytest

from chaffinch.cli import properties
from chaffinch.errors import ConfigException

TEXTS = {
    "": {},
    "# a comment\n! another\n\n   \t\n": {},
    "a=1": {"a": "1"},
    "a = 1 \nb:2\nc 3\nd\n": {"a": "1", "b": "2", "c": "3", "d": ""},
    "  a.b\t=\tx=y:z\r\nc=d": {"a.b": "x=y:z", "c": "d"},
    "list=one,\\\n   two,\\\n   three\nnext=1": {"list": "one,two,three", "next": "1"},
    "path=C\\:\\\\temp\\t1\n": {"path": "C:\\temp\t1"},
    "a\\ b\\=c=d\\u00e9\n": {"a b=c": "dé"},
    "a=1\\": {"a": "1"},
    "a=1 # not a comment": {"a": "1 # not a comment"},
    "=nameless": {"": "nameless"},
}


@pytest.mark.parametrize(("text", "entries"), TEXTS.items(), ids=repr)
def test_entries_are_parsed(text: str, entries: dict[str, str]) -> None:
    assert dict(properties.parse(text)) == entries


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a=1\nb=1\na=2\n", ":3: repeats the option of line 1$"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a" * (properties.FILE_BYTES_MAX + 1), "larger than"),
    ],
    ids=["twice", "bytes", "large"],
)
def test_invalid_files_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(data)
    with pytest.raises(ConfigException, match=says) as raised:
        properties.load(str(path))
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_unreadable_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigException, match=str(tmp_path)):
        properties.load(str(tmp_path / name))
    with pytest.raises(ConfigException, match=f"--users {tmp_path}"):
        properties.load(str(tmp_path / name), "--users")


def test_empty_file_name_is_refused() -> None:
    with pytest.raises(ConfigException, match="--command-config is empty: expected the name of a file of options"):
        properties.load("", "--command-config")


@pytest.mark.parametrize("line", ["garbage line without equals", "alice secret=word", "alice:secret", "alice"])
def test_strict_mode_requires_equals_signs(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# users\na = 1\\\n  2\n\n{line}\n")
    with pytest.raises(ConfigException, match=r"users:5: not name=value$"):
        properties.load(str(path), is_strict=True)
    path.write_text("# users\na = 1\\\n  2\n")
    assert properties.load(str(path), is_strict=True) == {"a": "12"}
