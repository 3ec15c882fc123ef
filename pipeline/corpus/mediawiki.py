"""Format mediawiki: the articles of an XML dump, streaming, without their markup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from mwparserfromhell.parser import ParserError

from pipeline.corpus.charset import is_blank
from pipeline.corpus.content import Content
from pipeline.corpus.report import RawDocument
from pipeline.corpus.wikitext import HIDDEN_NAMESPACES, plain_text
from pipeline.errors import InputError

_ROOT = "mediawiki"
_ARTICLES = "0"
_FILE_AND_CATEGORY = ("6", "14")
_FIELDS = ("title", "ns", "text")


def read_mediawiki(content: Content) -> Iterator[RawDocument]:
    """Yield the text of every page of namespace 0 that is no redirect.

    A page's place is its number in the dump, from 0, pages that are left out included; of several
    revisions the last counts. Raises InputError for what is no well-formed XML or no dump.
    """
    decoder = content.decoder()
    charset = decoder.charset
    dump = _Dump()
    number = 0
    try:
        for text in decoder.stream(
            content.chunks_after_mark(charset), charset.mark_bytes, content.where
        ):
            # An empty piece comes last; then the parser checks that the document is whole.
            dump.feed(text)
            if dump.root not in ("", _ROOT):
                raise InputError(
                    f"{content.location}: line {dump.root_line}: its root element is "
                    f"<{dump.root[:60]}>, that of a MediaWiki dump is <{_ROOT}>; take the file out "
                    "of the source, or convert it to text"
                )
            for page in dump.take_pages():
                reason = _reason_to_skip(page)
                if reason:
                    content.report.counts[reason] += 1
                else:
                    content.report.counts["pages"] += 1
                    article = _article(page, dump, content, number)
                    if is_blank(article):
                        content.report.counts["pages_without_text"] += 1
                    else:
                        yield RawDocument(content.part.path, number, article)
                number += 1
        dump.close()
    except expat.ExpatError as error:
        raise InputError(
            f"{content.location}: page {number}: not well-formed XML: {error}; repair the dump or "
            "take it out of the source"
        ) from None


@dataclass(slots=True)
class _Page:
    fields: dict[str, str] = field(default_factory=dict)
    redirect: bool = False


def _reason_to_skip(page: _Page) -> str:
    if page.fields.get("ns", _ARTICLES).strip() != _ARTICLES:
        return "pages_of_other_namespaces"
    # Old dumps do not mark redirects.
    text = page.fields.get("text", "").lstrip()
    if page.redirect or text[:9].lower() == "#redirect":
        return "pages_redirects"
    return ""


def _article(page: _Page, dump: _Dump, content: Content, number: int) -> str:
    try:
        return plain_text(page.fields.get("text", ""), dump.hidden_namespaces)
    except (ParserError, RecursionError) as error:
        content.malformed(
            f"{content.location}: page {number}", f"markup cannot be parsed: {error}", "repair it"
        )
        return ""


class _Dump:
    """Pages of an XML dump as its text comes in."""

    def __init__(self) -> None:
        # The text is decoded already: whatever the XML declaration says does not count.
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._page: _Page | None = None
        self._pages: list[_Page] = []
        self._parts: list[str] | None = None
        self._names_file_or_category = False
        self.root = ""
        self.root_line = 0
        self.hidden_namespaces = set(HIDDEN_NAMESPACES)

    def feed(self, text: str) -> None:
        self._parser.Parse(text.encode("utf-8", "surrogatepass"), False)

    def close(self) -> None:
        self._parser.Parse(b"", True)

    def take_pages(self) -> list[_Page]:
        pages, self._pages = self._pages, []
        return pages

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self.root:
            self.root, self.root_line = name, self._parser.CurrentLineNumber
        if name == "page":
            self._page = _Page()
        elif name == "redirect" and self._page is not None:
            self._page.redirect = True
        elif name in _FIELDS and self._page is not None:
            self._parts = []
        elif name == "namespace":
            # The wiki's own words for "File" and "Category".
            self._parts = [] if attributes.get("key") in _FILE_AND_CATEGORY else None

    def _characters(self, data: str) -> None:
        if self._parts is not None:
            self._parts.append(data)

    def _end(self, name: str) -> None:
        if name == "page" and self._page is not None:
            self._pages.append(self._page)
            self._page = None
        if self._parts is None:
            return
        if name in _FIELDS and self._page is not None:
            self._page.fields[name] = "".join(self._parts)
            self._parts = None
        elif name == "namespace":
            self.hidden_namespaces.add("".join(self._parts).strip().lower())
            self._parts = None
