"""HTML from parts: whatever is not Html already is escaped, since names come from strangers."""

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def html(value: object) -> Html:
    """Return a value as HTML: text is escaped, HTML stays as it is."""
    return value if isinstance(value, Html) else Html(escape(printable(str(value))))


def printable(text: str) -> str:
    """Return a text that any file can hold: control signs and halves of signs are replaced."""
    return "".join(
        sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text
    )


def join(parts: Iterable[object], between: str = "") -> Html:
    """Put parts one behind the other."""
    return Html(html(between).join(html(part) for part in parts))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """Return an element; `class_` and the like lose their underscore, None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{told}>{join(content)}</{name}>")


def table(
    heads: Sequence[object], rows: Iterable[Sequence[object]], note: object = "", kind: str = ""
) -> Html:
    """Return a table whose first column names the row; "" without rows.

    Args:
        heads: of the columns.
        rows: cells of each row; the first one is the row's head.
        note: what the reader must know, below it.
        kind: a class, "words" where the cells are words.
    """
    lines = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    if not lines:
        return Html()
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in heads)))
    below = tag("p", note, class_="note") if note else ""
    return join(
        [
            tag(
                "div",
                tag("table", head, tag("tbody", *lines), class_=kind or None),
                class_="scroll",
            ),
            below,
        ]
    )
