"""The main text of an HTML page, by trafilatura: no navigation, no tables, no comments."""

from __future__ import annotations

import logging


def main_text(page: str) -> str | None:
    """Return the text of a page, a paragraph a line; None if it has none."""
    import trafilatura  # half a second that other formats need not pay

    # It warns of every page without a text; here they are counted.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    text: str | None = trafilatura.extract(
        page, include_comments=False, include_tables=False, include_images=False
    )
    return text
