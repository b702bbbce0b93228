"""What is said twice: commands of the Makefile that stand in the configuration of pre-commit too."""

import re
import shlex
from pathlib import Path

import pytest
from pre_commit.clientlib import load_config

ROOT = Path(__file__).parents[1]


def recipe(target: str) -> str:
    """The one command of a target, as a shell runs it."""
    found = re.search(rf"^{target}:.*\n\t@(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1].replace("$(BIN)", ".venv/bin")


@pytest.mark.parametrize("target", ["lint", "types"])
def test_before_a_commit_the_commands_of_make_run(target: str) -> None:
    [source] = load_config(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {hook["id"]: hook for hook in source["hooks"]}
    assert list(hooks) == ["lint", "types"]
    entry = shlex.split(hooks[target]["entry"])
    assert (entry[2] if entry[:2] == ["sh", "-c"] else shlex.join(entry)) == recipe(target)
    assert hooks[target]["language"] in {"system", "unsupported"}, "an environment of pre-commit's own needs the network"
    assert not hooks[target]["pass_filenames"], "on all files, as make does"
