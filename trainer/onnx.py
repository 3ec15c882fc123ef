"""Our model as an ONNX graph over padded batches, for runtimes without torch.

The graph is traced from the very modules that were trained, not from their twins of transformers:
so an export needs no transformers, and any architecture has one. Flat batches have no form in
ONNX, whose tensors are rectangles: the graph takes the padded batch that a tokenizer makes, and
computes the padding along.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from pipeline.errors import InputError
from trainer.data.batch import GridLayout, TensorBatch
from trainer.models.encoder_model import EncoderForPreTraining, EncoderModel

if TYPE_CHECKING:
    import onnx_ir

OPSET = 18
# A protobuf message, which an ONNX file is, ends at 2 GiB.
_LARGEST_BYTES = (1 << 31) - (1 << 20)

Output = Literal["last_hidden_state", "logits"]


class PaddedModel(nn.Module):
    """A model over padded batches, by the modules of `model`."""

    def __init__(self, model: EncoderModel, output: Output) -> None:
        super().__init__()
        self.model = model
        self.output = output

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the last layer's output, [B, L, H], or the logits of every token, [B, L, V].

        Inputs are [B, L] int64; the mask is 1 on tokens, first in each row, and 0 on padding.
        """
        rows, length = input_ids.shape
        flat_ids = input_ids.reshape(-1)
        batch = TensorBatch(
            input_ids=flat_ids,
            token_type_ids=torch.zeros_like(flat_ids)
            if token_type_ids is None
            else token_type_ids.reshape(-1),
            masked_positions=flat_ids[:0],
            layout=GridLayout.of(attention_mask != 0),
        )
        hidden_TH = self.model.hidden_states(batch)
        if self.output == "last_hidden_state":
            return hidden_TH.view(rows, length, -1)
        assert isinstance(self.model, EncoderForPreTraining)
        head = self.model.masked_lm_head
        logits_TV = head.decode(head(hidden_TH), self.model.decoder_weight)
        return logits_TV.view(rows, length, -1)


def onnx_bytes(model: EncoderModel, output: Output) -> bytes:
    """Return an ONNX file of a model; any number of rows, any length the positions are enough for.

    Inputs are input_ids, attention_mask, and token_type_ids where the model has segments.
    Raises InputError for logits of a model without an MLM head, for weights of 2 GiB or more, and
    where the packages onnx and onnxscript are missing.
    """
    if output == "logits" and not isinstance(model, EncoderForPreTraining):
        raise InputError('export.onnx = "logits": the model has no masked LM head')
    size = sum(parameter.nbytes for parameter in model.parameters())
    if size > _LARGEST_BYTES:
        raise InputError(
            f"the weights have {size} bytes: an ONNX file holds at most {_LARGEST_BYTES}"
        )
    for package in ("onnx", "onnxscript"):
        require_package(package)
    names = ["input_ids", "attention_mask"]
    if model.config.type_vocab_size >= 2:
        names.append("token_type_ids")
    shape = 2, min(8, model.max_seq_length)
    rows, length = torch.export.Dim("rows"), torch.export.Dim("tokens", max=model.max_seq_length)
    with _quiet():
        program = torch.onnx.export(
            PaddedModel(model, output).eval(),
            # Each a tensor of its own: of one tensor under two names the tracer makes one input.
            tuple(torch.ones(shape, dtype=torch.int64) for _ in names),
            input_names=names,
            output_names=[output],
            dynamic_shapes=tuple({0: rows, 1: length} for _ in names),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    _forget_where_it_was_made(program.model)
    written: bytes = program.model_proto.SerializeToString(deterministic=True)
    return written


def require_package(name: str) -> str:
    """Return the version of an installed package; InputError that says how to get it."""
    try:
        return version(name)
    except PackageNotFoundError:
        raise InputError(
            f"export.onnx needs the package {name}: pip install --editable '.[onnx]'"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own deprecations, and what it says of torchvision, off the terminal."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _forget_where_it_was_made(model: onnx_ir.Model) -> None:
    """Drop the exporter's notes: stack traces with paths, by which equal graphs would differ."""
    model.metadata_props.clear()
    for graph in model.graphs():
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*graph.inputs, *graph.initializers.values()):
            value.metadata_props.clear()
