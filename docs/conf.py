"""Builds the site: `make docs`."""

from __future__ import annotations

import logging
import os
import sys
import warnings
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

DOCS = Path(__file__).resolve().parent
MADE = DOCS / "made"
sys.path.insert(0, str(DOCS / "site"))
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # of tqdm, in guides
logging.getLogger("traitlets").setLevel(logging.ERROR)
# Kernels of guides warn about their transport; nobody else uses these settings.
os.environ["IPYTHONDIR"] = str(DOCS.parent / "build" / "ipython")
profile = DOCS.parent / "build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 'ERROR'\n")

project = "fedhpo_gym"
author = "The fedhpo_gym contributors"
release = metadata.version("fedhpo-gym")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
root_doc = "docs/index"

# Pages link to each other as they lie in the repository, so that is where they are read.
include_patterns = [
    "docs/**.md",
    "docs/made/api/*.rst",
    "*.md",
    "benchmarks/*.md",
    "benchmarks/results/*.md",
]
exclude_patterns = [
    ".*", "build", "data", "examples", "fedhpo_gym", "node_modules", "requirements", "runs",
    "tests", "README.md", "docs/site", "docs/made/problems/pictures", "**/__pycache__",
]  # fmt: skip

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "auto"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
nb_execution_show_tb = True

default_role = "code"
toc_object_entries = False
autodoc_inherit_docstrings = False  # those of Gymnasium are no reStructuredText
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # written out, some defaults fill pages
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"fedhpo_gym {release}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def make_pages(_app: Sphinx) -> None:
    """Write the pages that are made from the package before any is read."""
    from api_pages import write_api
    from claims import StaleError, page
    from family_pages import family_index, family_pages
    from problem_pages import write, write_pages

    folder = MADE / "problems"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old versions have pages, too
        write_pages(folder, family_pages(folder / "pictures"), family_index())
    write_api(MADE / "api")
    try:
        write(MADE / "claims.md", page())
    except StaleError as error:
        raise ExtensionError(str(error)) from None


def require_extras(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Refuse to run a guide whose extras are not installed, by their names."""
    if not source[0].startswith("---\n"):
        return
    head: dict[str, Any] = yaml.safe_load(source[0].split("---\n")[1]) or {}
    for extra in head.get("extras", []):
        needed = [
            line.split(";")[0]
            for line in metadata.distribution("fedhpo-gym").requires or []
            if f'extra == "{extra}"' in line
        ]
        if not needed:
            raise ExtensionError(f"{docname} names the extra {extra!r}, which does not exist")
        for requirement in needed:
            name = "".join(requirement.split("[")[0].partition("=")[0].split("<")[0].split(">")[0])
            try:
                metadata.distribution(name.strip())
            except metadata.PackageNotFoundError:
                raise ExtensionError(
                    f"{docname} needs {name}: pip install '.[{extra}]' in the checkout"
                ) from None


def spread(_app: Sphinx, _env: object, docnames: list[str]) -> None:
    """Read pages in a mixed order: neighbours are read by one process, and guides take seconds."""
    docnames.sort(key=lambda name: zlib.crc32(name.encode()))


def lead_home(app: Sphinx, error: Exception | None) -> None:
    """Write a page at the root of the site that leads to its first page."""
    if error is None and app.builder.name == "html":
        refresh = '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(
            f"<!doctype html><title>fedhpo_gym</title>{refresh}\n", encoding="utf-8"
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what is made to the events of a build."""
    app.connect("builder-inited", make_pages)
    app.connect("env-before-read-docs", spread)
    app.connect("source-read", require_extras)
    app.connect("build-finished", lead_home)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
