"""Encoded documents to pre-training instances, by objective.

An instance is [CLS] and one segment or more, each followed by [SEP], unpadded. It is planned as
spans of the documents' ids and written once, in its final place; documents and instances are
flat arrays, so that the loops compile and no Python object exists per token or sentence.
"""

from pipeline.instances.build import plan_instances
from pipeline.instances.documents import EncodedDocuments
from pipeline.instances.plan import InstanceCounts, InstancePlan, write_instances

__all__ = [
    "EncodedDocuments",
    "InstanceCounts",
    "InstancePlan",
    "plan_instances",
    "write_instances",
]
