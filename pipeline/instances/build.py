"""One entry to every objective: documents, objective and seed in, a plan of instances out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.contract import PAIR_LABELS, Objective
from pipeline.derived_keys import derive_key
from pipeline.errors import ConfigError
from pipeline.instances.documents import EncodedDocuments
from pipeline.instances.packing import plan_packed
from pipeline.instances.pairs import plan_pairs
from pipeline.instances.plan import InstanceCounts, InstancePlan


def plan_instances(
    documents: EncodedDocuments,
    *,
    objective: Objective,
    seed: int,
    repetitions: Sequence[int],
    max_seq_length: int,
    short_seq_prob: float,
) -> InstancePlan:
    """Cut the documents into instances, once for each of `repetitions`, differently each time.

    nsp, sop: pairs of segments, see `pairs.plan_pairs`. full_sentences, doc_sentences, sentence:
    whole sentences without a pair, see `packing.plan_packed`.

    `seed`, repetition, the document and the set of documents fix its instances; the order of
    the documents fixes only the order of the instances.

    Raises ConfigError for a max_seq_length, short_seq_prob or repetition out of range.
    """
    if not 5 <= max_seq_length <= np.iinfo(np.uint16).max:
        raise ConfigError(f"max_seq_length = {max_seq_length}: must be in [5, 65535]")
    if not 0.0 <= short_seq_prob <= 1.0:
        raise ConfigError(f"short_seq_prob = {short_seq_prob}: must be in [0, 1]")
    for repetition in repetitions:
        if not 0 <= repetition < 1 << 32:
            raise ConfigError(f"repetition = {repetition}: must be in [0, 2**32)")

    kept = documents.without_empty()
    key = np.uint64(derive_key(seed, "pair"))
    if objective in PAIR_LABELS:
        plan = plan_pairs(
            kept,
            key=key,
            repetitions=repetitions,
            max_seq_length=max_seq_length,
            short_seq_prob=short_seq_prob,
            sentence_order=objective == "sop",
        )
    else:
        plan = plan_packed(
            kept,
            key=key,
            repetitions=repetitions,
            max_seq_length=max_seq_length,
            objective=objective,
        )
    with_tokens = kept.document_hashes.size
    is_alone = objective == "nsp" and np.unique(kept.originals).size == 1
    tokens = int(kept.sentence_offsets[-1] - kept.sentence_offsets[0])
    return InstancePlan(
        segments=plan.segments,
        segment_offsets=plan.segment_offsets,
        pair_labels=plan.pair_labels,
        counts=InstanceCounts(
            documents=documents.document_hashes.size,
            documents_used=plan.documents_used,
            documents_one_sentence=with_tokens - plan.documents_used,
            documents_empty=documents.document_hashes.size - with_tokens,
            documents_alone=plan.documents_used if is_alone else 0,
            tokens_read=tokens * len(repetitions),
            tokens_borrowed=plan.tokens_borrowed,
            tokens_used=int((plan.segments[:, 1] - plan.segments[:, 0]).sum()),
            tokens_truncated=plan.tokens_truncated,
            tokens_unpaired=plan.tokens_unpaired,
        ),
    )
