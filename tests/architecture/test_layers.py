"""The contracts of `.importlinter`: who may import whom. `make layers` prints the same."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(config: Path) -> tuple[int, str]:
    """In a process of its own: import-linter configures logging again, which silences every existing logger."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--config", str(config), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_contracts_are_kept() -> None:
    status, report = lint(ROOT / ".importlinter")
    assert status == 0, report


@pytest.mark.parametrize(
    ("contract", "report_says"),
    [
        ("type = layers\ncontainers = chaffinch\nlayers =\n    identifiers\n    errors\n    settings", "chaffinch.settings"),
        ("type = forbidden\nsource_modules =\n    chaffinch.settings\nforbidden_modules =\n    math", "math"),
    ],
    ids=["layers upside down", "forbidden module"],
)
def test_broken_contract_is_reported(tmp_path: Path, contract: str, report_says: str) -> None:
    config = tmp_path / "contracts.ini"
    head = "[importlinter]\nroot_package = chaffinch\ninclude_external_packages = True\n\n[importlinter:contract:one]\nname = One\n"
    config.write_text(head + contract + "\n")
    status, report = lint(config)
    assert status == 1
    assert report_says in report
