"""The report of a finished run: one self-contained HTML page, and its figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config import MaskingConfig
from pipeline.contract import canonical_json
from pipeline.decoding import decode_instances
from pipeline.errors import InputError
from pipeline.instance_set import InstanceSet
from pipeline.storage import open_storage
from trainer.report.finished_run import read_run
from trainer.report.held_out_examples import held_out_examples
from trainer.report.page import FillMaskExample, render_page
from trainer.report.summary import print_summary, summarise, summary_of

REPORT_HTML = "report.html"
SUMMARY_JSON = "summary.json"

__all__ = [
    "REPORT_HTML",
    "SUMMARY_JSON",
    "FillMaskExample",
    "held_out_examples",
    "print_summary",
    "summarise",
    "write_report",
]


def write_report(
    root: str,
    *,
    instances: InstanceSet,
    masking: MaskingConfig,
    fill_mask_examples: Sequence[FillMaskExample],
    decoded_instances: int = 8,
) -> dict[str, Any]:
    """Write report.html and summary.json below a run's root; returns the summary.

    Raises InputError before the run was trained, or if `instances` are not those it was trained
    on; CorruptError if what it left was damaged.
    """
    run = read_run(root)
    trained_on = run.training["inputs"]["instances"]
    if instances.generation.fingerprint != trained_on:
        raise InputError(
            f"{instances.uri}: the run was trained on instances {trained_on}; run "
            "`python -m trainer pretrain` with this config first"
        )
    decoded = tuple(decode_instances(instances, "train", decoded_instances, masking, epoch=0))
    summary = summary_of(run)
    page = render_page(run, summary, decoded, fill_mask_examples)
    storage = open_storage(root)
    storage.replace(SUMMARY_JSON, canonical_json(summary))
    storage.replace(REPORT_HTML, page.encode())
    return summary
