"""The contracts of `.importlinter`: who may import whom. `make layers` prints the same."""

from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def lint(config, capsys):
    status = lint_imports(config_filename=str(config), no_cache=True, no_logo=True)
    return status, capsys.readouterr().out


def test_contracts_are_kept(capsys):
    status, report = lint(ROOT / ".importlinter", capsys)
    assert status == 0, report


@pytest.mark.parametrize(
    ("contract", "report_says"),
    [
        ("type = layers\ncontainers = chaffinch\nlayers =\n    identifiers\n    errors\n    settings", "chaffinch.settings"),
        ("type = forbidden\nsource_modules =\n    chaffinch.settings\nforbidden_modules =\n    math", "math"),
    ],
    ids=["layers upside down", "forbidden module"],
)
def test_a_broken_contract_is_noticed(tmp_path, capsys, contract, report_says):
    config = tmp_path / "contracts.ini"
    head = "[importlinter]\nroot_package = chaffinch\ninclude_external_packages = True\n\n[importlinter:contract:one]\nname = One\n"
    config.write_text(head + contract + "\n")
    status, report = lint(config, capsys)
    assert status == 1
    assert report_says in report
