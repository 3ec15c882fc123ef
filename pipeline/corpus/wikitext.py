"""Wiki markup -> the running text of an article, by mwparserfromhell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, HTMLEntity, Tag, Text, Wikilink

HIDDEN_NAMESPACES = ("file", "image", "category", "media")
"""Links into these show an image or sort the page: no text of the article."""

# What a reader of the page does not read as running text.
_DROPPED_TAGS = frozenset((
    "table", "caption", "tr", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6", "style", "script",
    "includeonly", "noinclude", "ref", "references", "gallery", "imagemap", "timeline", "score",
    "math", "chem", "syntaxhighlight", "source", "graph", "hiero", "templatestyles", "mapframe",
    "maplink",
))  # fmt: skip
_BREAKING_TAGS = frozenset(("br", "hr", "p", "div", "li", "ul", "ol", "dl", "dd", "dt", "center"))
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*", re.ASCII)
_BEHAVIOUR_SWITCH = re.compile(r"__[A-Z]+__")
# What the parser leaves of markup that is broken, most often for want of its end.
_QUOTES = re.compile(r"'{2,}")
_HEADING = re.compile(r"={1,6}[^=].*={1,6}[ \t]*")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_REFERENCE = re.compile(r"<ref\b[^<>]*/>|<ref\b[^<>]*>.*?(?:</ref>|$)", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:abbr|b|big|blockquote|br|center|cite|code|del|div|em|font|gallery|i|includeonly|ins|"
    r"li|noinclude|nowiki|ol|onlyinclude|p|poem|ref|references|s|section|small|span|strike|strong|"
    r"sub|sup|table|td|th|tr|tt|u|ul)\b[^<>]*>",
    re.IGNORECASE,
)
# What a template for a pronunciation or a coordinate leaves around itself.
_EMPTY_PARENTHESES = re.compile(r" ?\([\s;,]*\)")
_BEGUN_PARENTHESIS = re.compile(r"\(\s*[;,]\s*")
_TABLE = re.compile(r"[ \t:*]*\{\|")
_TABLE_END = re.compile(r"[ \t]*\|\}")
_TABLE_ROW = re.compile(r"[ \t]*(?:\|-|\|\+|\|(?!\})|!)")


def plain_text(markup: str, hidden_namespaces: Set[str] = frozenset(HIDDEN_NAMESPACES)) -> str:
    """Return the text of an article, a paragraph or list item a line.

    Headings, tables, templates, references, comments, files and categories leave nothing; a link
    leaves its words; entities are what they stand for. `hidden_namespaces` are lower-case.
    """
    code = mwparserfromhell.parse(markup)
    text = "".join(_visible(code, hidden_namespaces))
    return "\n".join(_clean_lines(_BEHAVIOUR_SWITCH.sub("", text), hidden_namespaces))


def _visible(code: Any, hidden: Set[str]) -> Iterator[str]:
    for node in code.nodes:
        if isinstance(node, Text):
            yield node.value
        elif isinstance(node, HTMLEntity):
            yield _entity(node)
        elif isinstance(node, Wikilink):
            yield from _link(node, hidden)
        elif isinstance(node, ExternalLink):
            if not node.brackets:
                yield str(node.url)
            elif node.title is not None:
                yield from _visible(node.title, hidden)
        elif isinstance(node, Tag):
            yield from _tag(node, hidden)
        # Templates, arguments, comments and headings leave nothing.


def _entity(node: Any) -> str:
    try:
        return str(node.normalize())
    except (ValueError, OverflowError):  # a number beyond Unicode
        return str(node)


def _link(node: Any, hidden: Set[str]) -> Iterator[str]:
    title = "".join(_visible(node.title, hidden)).strip()
    prefix, colon, _ = title.partition(":")
    prefix = prefix.strip()
    if colon and prefix.lower().replace("_", " ") in hidden:
        return
    # [[de:Berlin]] puts the article in the list of other languages, [[:de:Berlin]] is a link.
    if colon and node.text is None and _LANGUAGE.fullmatch(prefix):
        return
    if node.text is not None:
        yield from _visible(node.text, hidden)
    else:
        yield title.removeprefix(":")


def _tag(node: Any, hidden: Set[str]) -> Iterator[str]:
    name = str(node.tag).strip().lower()
    if name in _DROPPED_TAGS:
        return
    if name in _BREAKING_TAGS:
        yield "\n"
    if node.contents is not None:
        yield from _visible(node.contents, hidden)
    if name in _BREAKING_TAGS:
        yield "\n"


def _clean_lines(text: str, hidden: Set[str]) -> Iterator[str]:
    tables = 0  # how many are open
    hidden_link = re.compile(rf"\[\[\s*(?:{'|'.join(map(re.escape, hidden))})\s*:", re.IGNORECASE)
    brackets = 0  # of a file's link over several lines that the parser did not see as one
    for raw in text.split("\n"):
        line = _TEMPLATE.sub("", _REFERENCE.sub("", raw))
        line = _QUOTES.sub("", _TAG.sub("", line))
        line = _BEGUN_PARENTHESIS.sub("(", _EMPTY_PARENTHESES.sub("", line)).strip()
        if brackets or hidden_link.match(line):
            brackets = max(0, brackets + line.count("[[") - line.count("]]"))
        elif _TABLE.match(line):
            tables += 1
        elif _TABLE_END.match(line):
            tables = max(0, tables - 1)
        elif line and not tables and not _TABLE_ROW.match(line) and not _HEADING.fullmatch(line):
            yield line
