"""Configuration of Sphinx for the documentation.

Build the site from the root of the project: sphinx-build -W docs docs/_build
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
# notebooks run in kernels of their own, which must import this checkout too; small matrices want one thread
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("OMP_NUM_THREADS", "1")


def state_of_the_code() -> str:
    """Return a digest of the files that cells of pages run: both packages and the examples."""
    sources = [*HERE.parent.glob("derive/**/*"), *HERE.parent.glob("numerics/**/*"), *HERE.glob("examples/*")]
    chosen = sorted(x for x in sources if x.suffix in {".py", ".toml", ".json", ".npy"})
    digest = sha256()
    for path in chosen:
        digest.update(str(path.relative_to(HERE.parent)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


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
    "equations",
    "ledger_pages",
    "public_names",
    "try_it",
    "validated_docstrings",
]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "unsrt"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"  # what a page printed is kept until its code, the packages or the examples change
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache" / state_of_the_code())
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_ivar = True  # attributes of a class are members already
napoleon_use_rtype = False  # types of results stand beside their names, as those of parameters
napoleon_preprocess_types = False
viewcode_follow_imported_members = False  # every name is documented in the module that defines it
default_role = "code"
suppress_warnings = [
    "ref.python",  # names of types that several modules define: `Node`, `Source`
    "myst-nb.lexer",  # the language of cells that never ran: -D nb_execution_mode=off
]

mathjax_path = "mathjax/tex-svg-full.js"  # MathJax 3.2.2, shipped with the site: no page asks another server
mathjax3_config = {"svg": {"fontCache": "global", "displayAlign": "left", "scale": 0.92}}

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": True,
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_sidebars = {"index": [], "gallery/index": [], "try_it/index": []}  # these have no pages below them
html_show_sourcelink = True
html_title = "dmft-derive"
html_context = {"default_mode": "auto"}  # without it the theme reports an error on the first visit
