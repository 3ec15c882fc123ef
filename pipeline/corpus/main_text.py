"""The main text of an HTML page, by trafilatura: no navigation, no tables, no comments."""

from __future__ import annotations


def main_text(page: bytes | str) -> str | None:
    """Return the text of a page, a paragraph a line; None if it has none.

    Bytes are decoded by what the page says of itself.
    """
    import trafilatura  # half a second that other formats need not pay

    text: str | None = trafilatura.extract(
        page, include_comments=False, include_tables=False, include_images=False
    )
    return text
