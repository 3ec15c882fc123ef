"""Which identity fields each data stage depends on: what its fingerprint covers, no more."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from pipeline.config import PipelineConfig, identity_fields
from pipeline.source_config import SourceConfig


def documents_identity(config: PipelineConfig) -> dict[str, Any]:
    """Return the identity fields of the documents stage, and what its readers' bytes depend on."""
    identity = {"documents": identity_fields(config.documents), "seed": config.seed}
    readers = reader_versions(config.documents.sources)
    return {**identity, "readers": readers} if readers else identity


def reader_versions(sources: Iterable[SourceConfig]) -> dict[str, str]:
    """Return the versions of the libraries that decide what the text of a page is."""
    formats = {source.format for source in sources}
    names: set[str] = set()
    if formats & {"auto", "mediawiki"}:
        names.add("mwparserfromhell")
    if formats & {"auto", "warc"}:
        names |= {"trafilatura", "lxml", "justext"}
    return {name: version(name) for name in sorted(names)}


def vocabulary_identity(config: PipelineConfig) -> dict[str, Any]:
    """Return the identity fields of the vocabulary stage; no draw is made there."""
    return {"vocabulary": identity_fields(config.vocabulary)}


def masking_identity(config: PipelineConfig) -> dict[str, Any]:
    """Return what the shards depend on of masking: all of it where it is static.

    With dynamic masking they hold no mask; then how tokens are masked belongs to training.
    """
    if config.masking.mode == "static":
        return identity_fields(config.masking)
    return {"mode": config.masking.mode}


def instances_identity(config: PipelineConfig) -> dict[str, Any]:
    """Return the identity fields of the instances stage."""
    return {
        "instances": identity_fields(config.instances),
        "masking": masking_identity(config),
        "seed": config.seed,
    }
