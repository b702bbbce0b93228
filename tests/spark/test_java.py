"""Which Java is taken, and what is said when there is none. The Javas here are shell scripts that print a version."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from chaffinch.spark import java
from chaffinch.spark.java import JavaNotFound, find_java_home, install_launcher, parse_java_major, use_java


@pytest.fixture(autouse=True)
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_wheel_java", lambda: None)


def fake_java(home: Path, version: str) -> Path:
    """A home whose bin/java says it is of this version."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 8), ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea"', 21), ("something else", None), ("", None),
    ],
)  # fmt: skip
def test_java_versions_are_parsed(text: str, major: int | None) -> None:
    assert parse_java_major(text) == major


def test_java_home_is_preferred(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "other", "17.0.1")
    assert find_java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home


def test_java_on_path_is_second(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")
    assert find_java_home({"PATH": str(home / "bin")}) == home


def test_link_on_path_is_resolved_to_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    assert find_java_home({"PATH": str(tmp_path / "links")}) == home


def test_java_of_wheel_is_third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, wheel = fake_java(tmp_path / "old", "11.0.1"), fake_java(tmp_path / "wheel", "25.0.2")
    monkeypatch.setattr(java, "_wheel_java", lambda: wheel / "bin" / "java")
    monkeypatch.setattr(java, "_cache_folder", lambda: tmp_path / "cache")
    home = find_java_home({"PATH": str(old / "bin")})
    assert home.parent == tmp_path / "cache"
    assert java.java_major(home / "bin" / "java") == 25


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [("java-8", "1.8.0_392", r"JAVA_HOME=.*java-8 is Java 8, Spark needs 17 or newer"), ("broken", "?", "is not a Java that starts")],
)
def test_unusable_java_home_is_refused(tmp_path: Path, name: str, version: str, text: str) -> None:
    home, good = fake_java(tmp_path / name, version), fake_java(tmp_path / "good", "17.0.1")
    with pytest.raises(JavaNotFound, match=text):
        find_java_home({"JAVA_HOME": str(home), "PATH": str(good / "bin")})


def test_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match="has no bin/java; correct it or unset it"):
        find_java_home({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize("version", [None, "11.0.1"])
def test_missing_java_error_says_what_to_install(tmp_path: Path, version: str | None) -> None:
    path = "" if version is None else str(fake_java(tmp_path / "old", version) / "bin")
    with pytest.raises(JavaNotFound) as caught:
        find_java_home({"PATH": path})
    text = str(caught.value)
    assert "\n" not in text
    assert ("no java on the path" if version is None else "is Java 11") in text
    assert "default-jre-headless" in text
    assert "pip install 'chaffinch[java]'" in text


def test_use_java_sets_java_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")
    environment = {"PATH": str(home / "bin")}
    use_java(environment)
    assert environment["JAVA_HOME"] == str(home)


class TestLauncher:
    def arguments(self, tmp_path: Path, *given: str) -> list[str]:
        real = tmp_path / "a folder" / "java"
        real.parent.mkdir(exist_ok=True)
        real.write_text('#!/bin/sh\nfor argument do echo "[$argument]"; done\n')
        real.chmod(0o755)
        home = install_launcher(real, tmp_path / "cache")
        done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def test_launcher_drops_one_argument(self, tmp_path: Path) -> None:
        given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=other", "*"]
        assert self.arguments(tmp_path, *given) == ["[-Xmx1g]", "[a b]", "[]", "[--add-modules=other]", "[*]"]

    def test_launcher_is_written_once(self, tmp_path: Path) -> None:
        self.arguments(tmp_path)
        launcher = next((tmp_path / "cache").glob("java-*/bin/java"))
        before = launcher.stat().st_ino
        self.arguments(tmp_path)
        assert launcher.stat().st_ino == before

    def test_launcher_falls_back_to_temporary_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        assert install_launcher(tmp_path / "java", tmp_path / "file" / "cache").is_relative_to(tmp_path)
        assert stat.filemode((tmp_path / f"chaffinch-{os.getuid()}").stat().st_mode) == "drwx------"

    def test_launcher_refuses_folder_that_others_can_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its name is predictable: another user may have put another program there."""
        (tmp_path / "file").write_text("in the way")
        (tmp_path / f"chaffinch-{os.getuid()}").mkdir()
        (tmp_path / f"chaffinch-{os.getuid()}").chmod(0o777)
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        with pytest.raises(JavaNotFound, match=r"the launcher for .* can be written neither to .* nor to "):
            install_launcher(tmp_path / "java", tmp_path / "file" / "cache")
