"""MediaWiki dumps: which pages are documents, and what of their markup is text."""

from __future__ import annotations

import bz2
import codecs
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from pipeline.corpus.wikitext import plain_text
from tests.pipeline.corpus.reading import failure, read_all, read_reported, source_of

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="bg">
  <siteinfo><namespaces><namespace key="0" />
    <namespace key="6">Файл</namespace><namespace key="14">Категория</namespace>
  </namespaces></siteinfo>
"""


def page(text: str, title: str = "T", ns: int = 0, redirect: str = "") -> str:
    target = f'<redirect title="{redirect}" />' if redirect else ""
    return (
        f"<page><title>{title}</title><ns>{ns}</ns>{target}<id>1</id><revision><id>2</id>"
        f"<contributor><username>text</username></contributor>"
        f'<text xml:space="preserve">{escape(text)}</text></revision></page>\n'
    )


def dump(*pages: str) -> str:
    return HEAD + "".join(pages) + "</mediawiki>\n"


PAGES = dump(
    page("'''One''' is a [[number|numeral]]."),
    page("Talk about it.", ns=1),
    page("#REDIRECT [[One]]", redirect="One"),
    page("#redirect [[One]]"),
    page("Два. [[Файл:a.jpg|thumb|надпис]] [[Категория:X]]\U0001f600"),
    page("{{only a template}}"),
)
EXPECTED = [("a.xml", 0, "One is a numeral."), ("a.xml", 4, "Два.  \U0001f600")]


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_articles_are_documents_at_their_page_number(
    tmp_path: Path, codec: str, packed: bool
) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(codec, b"")
    data = mark + PAGES.encode(codec)
    path = tmp_path / ("a.xml.bz2" if packed else "a.xml")
    path.write_bytes(bz2.compress(data) if packed else data)
    assert read_all(source_of(path, "auto"), 1) == EXPECTED
    _, report = read_reported(source_of(path, "mediawiki"))
    assert report.counts == {
        "documents": 2,
        "pages": 3,
        "pages_of_other_namespaces": 1,
        "pages_redirects": 2,
        "pages_without_text": 1,
    }


def test_the_last_revision_of_a_page_counts(tmp_path: Path) -> None:
    revisions = "".join(f"<revision><text>{text}</text></revision>" for text in ("old", "new"))
    path = tmp_path / "a.xml"
    path.write_text(dump(f"<page><title>T</title><ns>0</ns>{revisions}</page>"))
    assert read_all(source_of(path, "mediawiki")) == [("a.xml", 0, "new")]


def test_a_dump_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(PAGES.removesuffix("</mediawiki>\n"))
    assert f"{path}: page 6: not well-formed XML: no element found" in failure(
        source_of(path, "auto")
    )
    path.write_text(PAGES.replace("<title>", "<tit", 1))
    assert f"{path}: page 0: not well-formed XML" in failure(source_of(path, "auto"))


def test_bytes_that_are_no_text_follow_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    data = dump(page("caf# au lait")).encode()
    offset = data.index(b"#")
    path.write_bytes(data.replace(b"#", b"\xe9"))
    message = failure(source_of(path, "mediawiki"))
    assert f"{path}: byte offset {offset}: not UTF-8 (byte 0xe9)" in message
    found, report = read_reported(source_of(path, "mediawiki", undecodable="replace"))
    assert found == ["caf\ufffd au lait"]
    assert report.counts["undecodable_replaced"] == 1


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("''it'' and '''bold''' and '''''both'''''", "it and bold and both"),
        ("== Heading ==\ntext\n=== Sub ===\nmore", "text\nmore"),
        (
            "before\n{| class=wikitable\n|+ Title\n! head\n|-\n| cell || cell\n|}\nafter",
            "before\nafter",
        ),
        ("before\n{|\n|\n{|\n| inner\n|}\n| outer\n|}\nafter", "before\nafter"),
        ("before\n{|\n| {|\n| inner\n|}\n| outer\n|}\nafter", "before\nafter"),
        ("before\n{| never closed\n| cell\nrest", "before"),
        ("<table><tr><td>cell</td></tr></table>after", "after"),
        ("a{{template|x|y={{inner}}}}b", "ab"),
        ("a<ref name=x>source [http://x y]</ref>b<ref name=x />c", "abc"),
        ("a<ref>never closed", "a"),
        ("[[File:a.jpg|thumb|A [[linked]] caption]]text", "text"),
        ("[[image:a.jpg]]text[[Category:B|sort]]", "text"),
        ("see [[:Category:B]] and [[:de:Berlin]]", "see Category:B and de:Berlin"),
        ("text\n[[de:Berlin]]\n[[zh-yue:Berlin]]", "text"),
        ("[[Berlin]] [[Berlin|the city]] [[Bus]]es", "Berlin the city Buses"),
        ("[[A&ndash;B]] R&amp;D &lt;tag&gt; caf&#233; &#x1F600;", "A–B R&D <tag> café \U0001f600"),
        ("[http://x.org the site] [http://x.org] http://x.org", "the site  http://x.org"),
        ("a<!-- hidden -->b", "ab"),
        ("<nowiki>[[no link]]</nowiki>", "[[no link]]"),
        ("one<br>two<br />three", "one\ntwo\nthree"),
        ("* first\n* second\n# third\n: indented\n; term", "first\nsecond\nthird\nindented\nterm"),
        ("__NOTOC__text__TOC__", "text"),
        ("<math>x^2</math> <gallery>\na.jpg|b\n</gallery>text", "text"),
        ("x<sup>2</sup> H<sub>2</sub>O <small>small</small>", "x2 H2O small"),
        ("A paragraph.\n\n\nAnother   one.", "A paragraph.\nAnother   one."),
        ("", ""),
        ("Albedo ({{IPA|x}}) is", "Albedo is"),
        ("Paris ({{IPA|x}}; {{lang|fr}}) is", "Paris is"),
        ("Rome ({{IPA|x}}; Latin Roma) f(x) is", "Rome (Latin Roma) f(x) is"),
    ],
)
def test_markup_leaves_its_running_text(markup: str, text: str) -> None:
    assert plain_text(markup) == text


@pytest.mark.parametrize("kind", ["auto", "mediawiki"])
@pytest.mark.parametrize("root", ["TEI", "rss", "page", "feed"])
def test_xml_that_is_no_dump_is_refused(tmp_path: Path, kind: str, root: str) -> None:
    path = tmp_path / "a.xml"
    path.write_text(
        f"<?xml version='1.0'?>\n<!-- a book -->\n<{root} n='1'><text>Text.</text></{root}>"
    )
    message = failure(source_of(path, kind))
    assert f"{path}: line 3: its root element is <{root}>, that of a MediaWiki dump is" in message
    path.write_text(f"<{root}>not even well-formed")
    assert f"{path}: line 1: its root element is <{root}>" in failure(source_of(path, kind))
