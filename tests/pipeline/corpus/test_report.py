"""What reading reports, and that it names no place of a machine."""

from __future__ import annotations

from pipeline.corpus import ReadReport


def test_places_are_named_by_source_and_path() -> None:
    report = ReadReport()
    for place in (
        "/data/news/a.txt: byte offset 3",
        "/data/news/a.txt.gz: byte offset 4",
        "/data/news/sub/.hidden",
        "elsewhere: byte offset 5",
    ):
        report.note("reason", place)
    report.name_places(
        {"/data/news/": "news/", "/data/news/a.txt": "news/A", "/data/news/a.txt.gz": "news/B"}
    )
    assert report.places == [
        "news/A: byte offset 3: reason",
        "news/B: byte offset 4: reason",
        "news/sub/.hidden: reason",
        "elsewhere: byte offset 5: reason",
    ]
