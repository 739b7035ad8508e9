"""Settings of Sphinx for `make docs`: the pages of this folder as a site, with every link and anchor checked."""

from __future__ import annotations

project = "flowdist"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
html_theme = "furo"
html_title = "flowdist"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["build"]
nitpicky = True
