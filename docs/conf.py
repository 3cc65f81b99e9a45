"""The site: `sphinx-build -c docs . FOLDER` writes it, with the packages of `pip install -e ".[docs]"`.

The tree itself is the source, not this folder, so that a link to `../rules/README.md` leads to that page on the site as
it does in a clone and on GitHub.
"""

import graphopt

project = "graphopt"
release = graphopt.__version__
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/results/*.md",
    "graphopt/DESIGN.md",
    "rules/README.md",
    "verifier/README.md",
]
exclude_patterns = [".*", "build", "dist", "graphopt/rules", "graphopt/verifier", "site", "tests"]

# -- Markdown and docstrings -------------------------------------------------------------------------------------------

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # the anchors that GitHub gives headings
smartquotes_action = "qe"  # no dashes, or --flag in a table would be –flag
nitpicky = True
nitpick_ignore_regex = [("py:class", r"[\w.]+")]  # types in signatures, most of which are not part of the interface

default_role = "literal"  # `x` in a docstring is code, as it is in Markdown
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the options of `optimize` are a list, not a heading each
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

# -- pages -------------------------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = "graphopt"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]  # the first page of the site leads to that of this folder
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
