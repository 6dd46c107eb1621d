"""Sphinx configuration. Build from the project's root: sphinx-build -W docs docs/_build"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
# notebooks run in kernels of their own, which must import this checkout too; small matrices want one thread
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "dmft-derive"
author = "dmft-derive maintainers"
copyright = author
release = installed_version("dmft-derive")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.bibtex",
    "latex_environments",
    "ledger_pages",
    "plain_docstrings",
]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "unsrt"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "code"

html_theme = "pydata_sphinx_theme"
html_theme_options = {"navigation_with_keys": False, "show_prev_next": True}
html_show_sourcelink = True
html_title = "dmft-derive"
