"""A hook of mkdocs: a link to a file outside docs/ becomes its path, as the site lacks the file.

On GitHub, and in a clone, such a link works as it is.
"""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page's text with the names of files outside docs/ in place of links to them."""
    return OUTSIDE.sub(_without_link, markdown)


def _without_link(match: re.Match[str]) -> str:
    text, path = match.groups()
    return f"`{path}`" if text.endswith(path.rsplit("/", 1)[-1]) else f"{text} (`{path}`)"
