"""The program that stands for Python in a local Spark: PySpark from where it is installed, all else as `python` does it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaffinch.spark.worker_python import PROGRAM, VARIABLES, use_python, without_archives

RUN = [sys.executable, "-c", "from chaffinch.spark.worker_python import main; main()"]
NAMED_BEFORE = [name for name in VARIABLES if name in os.environ]
PRINT_PATHS = "import sys, pyspark\nprint(pyspark.__file__, __name__, sys.argv[1:], sys.path[0], sep='\\n')\n"

LISTING = """
import importlib.util, pkgutil
assert importlib.util.find_spec("nowhere_to_be_found") is None
importlib.invalidate_caches()
print("listing" in {module.name for module in pkgutil.iter_modules()})
"""


def installed(place: Path) -> tuple[str, str]:
    """A PySpark with its archive, and py4j, as pip leaves them: the folder they are found in, and the archive."""
    archive = place / "pyspark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    (place / "pyspark" / "__init__.py").touch()
    (place / "py4j").mkdir()
    (place / "py4j" / "__init__.py").touch()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyspark/__init__.py", "")
    return str(place), str(archive)


class TestThePath:
    def test_archives_of_installed_pyspark_are_removed(self, tmp_path: Path) -> None:
        place, archive = installed(tmp_path / "site")
        library = archive.replace("pyspark.zip", "py4j-0.10-src.zip")
        assert without_archives(["/job", archive, library, "/jars/a.jar", place]) == ["/job", "/jars/a.jar", place]

    def test_archives_stay_without_py4j(self, tmp_path: Path) -> None:
        place, archive = installed(tmp_path / "site")
        shutil.rmtree(tmp_path / "site" / "py4j")
        assert without_archives([archive, place]) == [archive, place]

    def test_archives_of_another_spark_stay(self, tmp_path: Path) -> None:
        place, _ = installed(tmp_path / "site")
        _, other = installed(tmp_path / "spark")
        assert without_archives([other, place]) == [other, place]

    def test_shadowing_pyspark_keeps_archives(self, tmp_path: Path) -> None:
        place, archive = installed(tmp_path / "site")
        shadow, _ = installed(tmp_path / "shadow")
        assert without_archives([archive, shadow, place]) == [archive, shadow, place]

    def test_archive_stays_without_installed_pyspark(self, tmp_path: Path) -> None:
        _, archive = installed(tmp_path / "site")
        assert without_archives([archive, "/elsewhere"]) == [archive, "/elsewhere"]

    def test_other_archives_stay(self, tmp_path: Path) -> None:
        place, _ = installed(tmp_path / "site")
        assert without_archives(["/elsewhere/own.zip", place]) == ["/elsewhere/own.zip", place]


class TestTheProgram:
    def test_module_runs_like_python_m(self, tmp_path: Path) -> None:
        place, archive = installed(tmp_path / "site")
        (tmp_path / "printed.py").write_text(PRINT_PATHS)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([archive, place])}
        printed = {}
        for name, command in (("ours", RUN), ("python", [sys.executable])):
            done = subprocess.run(
                [*command, "-m", "printed", "a", "-b"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
            )
            printed[name] = done.stdout.splitlines()
        assert printed["python"] == [f"{archive}/pyspark/__init__.py", "__main__", "['a', '-b']", str(tmp_path)]
        assert printed["ours"] == [f"{place}/pyspark/__init__.py", *printed["python"][1:]]

    def test_modules_are_listed_after_invalidate_caches(self, tmp_path: Path) -> None:
        """What Spark does to find data sources: Python 3.13 raises KeyError for an archive that stays behind on the path."""
        place, archive = installed(tmp_path / "site")
        (tmp_path / "listing.py").write_text(LISTING)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([archive, place])}
        command = [*RUN, "-m", "listing"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("True\n", "")

    def test_program_runs_in_deleted_working_directory(self, tmp_path: Path) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        code = "import os; from chaffinch.spark.worker_python import main; os.rmdir(os.getcwd()); main()"
        command = [sys.executable, "-c", code, "-m", "json.tool", "--help"]
        assert subprocess.run(command, cwd=gone, capture_output=True, text=True, check=True).stdout.startswith("usage: ")

    @pytest.mark.parametrize("arguments", [["-c", "print(6 * 7)"], ["-c", "print(*__import__('sys').argv[1:])", "42"]])
    def test_other_arguments_run_python(self, arguments: Sequence[str]) -> None:
        assert subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=True).stdout == "42\n"

    def test_program_imports_no_module_with_threads(self) -> None:
        """Spark forks from what it runs."""
        heavy = "{'numpy', 'pyarrow', 'pyspark'} & set(sys.modules)"
        code = f"import sys, threading, chaffinch.spark.worker_python; print({heavy}, threading.active_count())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "set() 1\n"


class TestTheEnvironment:
    @pytest.fixture(autouse=True)
    def _interpreter(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An environment with an interpreter and the program beside it; no variable is set."""
        self.python, self.program = tmp_path / "python", tmp_path / PROGRAM
        self.python.touch(mode=0o755)
        self.program.write_text(f"#!{self.python}\n")
        self.program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(self.python))
        for name in VARIABLES:
            monkeypatch.setenv(name, "")  # Or it would stay as a test leaves it, where it was not set.
            monkeypatch.delenv(name)
        self.given = monkeypatch.setenv

    @staticmethod
    def named() -> list[str]:
        return [Path(os.environ[name]).name for name in VARIABLES]

    def test_local_mode_uses_program(self) -> None:
        use_python(is_one_machine=True)
        assert self.named() == [PROGRAM, PROGRAM]

    def test_cluster_uses_interpreter_after_local_session(self) -> None:
        use_python(is_one_machine=True)
        use_python(is_one_machine=False)
        assert self.named() == ["python", "python"]

    @pytest.mark.parametrize(("name", "expected"), [(VARIABLES[0], ["mine", "python"]), (VARIABLES[1], ["python", "mine"])])
    def test_variables_of_user_are_kept(self, name: str, expected: Sequence[str]) -> None:
        self.given(name, "/opt/mine")
        use_python(is_one_machine=True)
        assert self.named() == expected

    @pytest.mark.parametrize("first_line", ["#!/gone/python", "#!/bin/sh", ""], ids=["moved", "long path", "empty"])
    def test_program_of_other_interpreter_is_not_used(self, first_line: str) -> None:
        self.program.write_text(first_line + "\n")
        use_python(is_one_machine=True)
        assert self.named() == ["python", "python"]

    def test_link_in_same_folder_counts_as_interpreter(self, tmp_path: Path) -> None:
        (tmp_path / "python3").symlink_to(self.python)
        self.program.write_text(f"#!{tmp_path / 'python3'}\n")
        use_python(is_one_machine=True)
        assert self.named() == [PROGRAM, PROGRAM]

    def test_program_of_other_python_in_same_folder_is_not_used(self, tmp_path: Path) -> None:
        (tmp_path / "python3.99").touch(mode=0o755)
        self.program.write_text(f"#!{tmp_path / 'python3.99'}\n")
        use_python(is_one_machine=True)
        assert self.named() == ["python", "python"]

    def test_link_from_other_folder_is_not_used(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "python").symlink_to(self.python)
        self.program.write_text(f"#!{tmp_path / 'other' / 'python'}\n")
        use_python(is_one_machine=True)
        assert self.named() == ["python", "python"]

    def test_unexecutable_program_is_not_used(self) -> None:
        self.program.chmod(0o644)
        use_python(is_one_machine=True)
        assert self.named() == ["python", "python"]

    def test_missing_program_falls_back_to_interpreter(self) -> None:
        self.program.unlink()
        use_python(is_one_machine=True)
        assert self.named() == ["python", "python"]

    def test_program_without_interpreter_line_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "")
        use_python(is_one_machine=True)
        assert self.named() == ["", ""]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # PySpark leaves the socket of `collect` to the garbage collector.
def test_workers_import_pyspark_of_driver(spark: SparkSession) -> None:
    program = Path(sys.executable).with_name(PROGRAM)
    if NAMED_BEFORE or not program.exists():
        pytest.skip("PYSPARK_PYTHON is set, or the program is not installed: make setup")
    import pyspark

    assert os.environ["PYSPARK_PYTHON"] == str(program)

    def look(_: object) -> Iterator[str]:
        import pyspark as found

        yield found.__file__

    assert set(spark.sparkContext.range(2, numSlices=2).mapPartitions(look).collect()) == {pyspark.__file__}
