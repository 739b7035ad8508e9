"""Settings of Sphinx for `make docs`: the pages of this folder as a site, with every link and anchor checked."""

from __future__ import annotations

import sys
from pathlib import Path

import flowdist

sys.path.insert(0, str(Path(__file__).parent))  # glossary_links

project = "flowdist"
version = release = flowdist.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "glossary_links",
]
html_theme = "furo"
html_title = f"flowdist {version}"
html_show_sphinx = html_show_copyright = False
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # the pages of codes have headings of the third level alone
    "misc.highlighting_failure",  # Mermaid, and command lines with an apostrophe, are shown as they are
]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
