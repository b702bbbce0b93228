"""Sphinx configuration of the documentation site: `make docs-site` builds it without a network."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
_PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = _PROJECT["urls"]["Repository"]
"""Where files outside `docs/` are linked to."""

project = "Chaffinch"
author = "the Chaffinch authors"
project_copyright = "the Chaffinch authors, Apache-2.0"
version = release = _PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
root_doc = "index"
exclude_patterns = ["_build"]
default_role = "code"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"Chaffinch {version}"
html_static_path: list[str] = []
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True


_RELATIVE_LINK = re.compile(r"\]\((\.\./[^)\s#]*)")


def _link_to_repository(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn links to files and folders that are no pages of the site into links to the repository."""
    folder = (DOCS / docname).parent

    def absolute(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(DOCS) and target.suffix == ".md":
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(DOCS.parent).as_posix()}"

    source[0] = _RELATIVE_LINK.sub(absolute, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _link_to_repository)
