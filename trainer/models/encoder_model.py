"""The encoder and its pre-training heads over flat batches, one class for every architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline.derived_keys import derive_key
from trainer.data.batch import Batch, TensorBatch, check_batch, check_no_padding, to_tensors
from trainer.models.embeddings import Embeddings
from trainer.models.encoder import Encoder
from trainer.models.heads import MaskedLMHead, Pooler
from trainer.settings.model import ModelConfig

PairHead = Literal["nsp", "sop"]
PAIR_HEADS: Mapping[str, PairHead] = {"nsp": "nsp", "sop": "sop"}
"""The head of each objective that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTrainingOutput:
    """What the heads answer for one batch."""

    masked_logits: Tensor
    """[M, V], of the masked positions only."""
    pair_logits: Tensor | None
    """[B, 2], 0 = B follows A (in order), 1 = random (swapped); None without a pair head."""


class EncoderModel(nn.Module):
    """Embeddings, encoder and pooler: what a Hugging Face BertModel is.

    The initial weights are a pure function of (seed, parameter name): a truncated normal of
    standard deviation initializer_range, cut at twice that (released code of BERT), zero biases,
    LayerNorm weights of one. With seed None there are none: the parameters are on the meta device,
    with shapes only, until load_state_dict(..., assign=True).
    """

    pooler: Pooler | None

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        pad_token_id: int,
        *,
        pooler: bool,
        seed: int | None,
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.pad_token_id = pad_token_id
        self.max_seq_length = config.max_position_embeddings - config.first_position(pad_token_id)
        """Tokens of the longest sequence that the positions are enough for."""
        # On "meta" the layers' own initialisation runs on no data and draws from no generator.
        with torch.device("meta"):
            self.embeddings = Embeddings(config, vocab_size, pad_token_id)
            self.encoder = Encoder(config)
            self.pooler = Pooler(config) if pooler else None
            self._make_heads()
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, seed)

    def _make_heads(self) -> None:
        """Make what a subclass puts on top."""

    def check(self, batch: Batch) -> None:
        """Raise TrainingError, naming row and value, for a batch this model cannot read.

        Those are ids beyond the vocabulary (rows that only pad it included), the segments and the
        positions, whether there is a table of them or not, and labels that are none.
        """
        check_batch(
            batch,
            vocab_size=self.vocab_size,
            max_seq_length=self.max_seq_length,
            type_vocab_size=self.config.type_vocab_size,
        )

    def inputs(self, batch: Batch) -> TensorBatch:
        """Return the inputs of a batch on the model's device.

        Raises as `check`, and TrainingError for a token that is the padding token where positions
        begin behind that one's id: transformers gives it the row of padding, this model a position
        of its own, so the answers would differ.
        """
        self.check(batch)
        if self.config.position_offset != "none":
            check_no_padding(batch, self.pad_token_id)
        return to_tensors(batch, next(self.parameters()).device)

    def hidden_states(self, batch: TensorBatch) -> Tensor:
        """Return the last layer's output, [T, H]."""
        hidden_TH: Tensor = self.encoder(self.embeddings(batch), batch.layout)
        return hidden_TH

    def pooled(self, hidden_TH: Tensor, batch: TensorBatch) -> Tensor:
        """Return the pooled sequences, [B, H]; their first tokens as they are without a pooler."""
        first_BH = hidden_TH.index_select(0, batch.layout.first_tokens)
        return first_BH if self.pooler is None else self.pooler(first_BH)


class EncoderForPreTraining(EncoderModel):
    """The encoder with its masked LM head and, where the objective has pairs, a pair head."""

    pair_head: nn.Linear | None

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        pad_token_id: int,
        *,
        pair_head: PairHead | None,
        seed: int | None,
    ) -> None:
        self.pair_objective = pair_head
        # Without pairs nothing would train the pooler: it is left out, not exported untrained.
        pooler = config.pooler and pair_head is not None
        super().__init__(config, vocab_size, pad_token_id, pooler=pooler, seed=seed)

    def _make_heads(self) -> None:
        self.masked_lm_head = MaskedLMHead(self.config, self.vocab_size)
        self.embeddings.sparse_gradient = True
        has_pairs = self.pair_objective is not None
        self.pair_head = nn.Linear(self.config.hidden_size, 2) if has_pairs else None

    def forward(self, batch: TensorBatch) -> PreTrainingOutput:
        """Return the logits of both heads."""
        transformed_ME, pair_logits_B2 = self.states(batch)
        logits_MV = self.masked_lm_head.decode(transformed_ME, self.decoder_weight)
        return PreTrainingOutput(masked_logits=logits_MV, pair_logits=pair_logits_B2)

    def states(self, batch: TensorBatch) -> tuple[Tensor, Tensor | None]:
        """Return what the decoder takes, [M, E], and the pair logits, [B, 2].

        The loss goes on from here: it never holds all of the [M, V] logits.
        """
        hidden_TH = self.hidden_states(batch)
        transformed_ME = self.masked_lm_head(hidden_TH.index_select(0, batch.masked_positions))
        if self.pair_head is None:
            return transformed_ME, None
        return transformed_ME, self.pair_head(self.pooled(hidden_TH, batch))

    @property
    def decoder_weight(self) -> Tensor:
        """The decoder's matrix, [V, E]: the token embeddings themselves."""
        return self.embeddings.word_embeddings.weight

    def decoder_weight_of_loss(self) -> Tensor:
        """Return the decoder's matrix for a loss that `Tensor.backward` is called on.

        A leaf of its own, whose gradient is added to the embeddings' `.grad` as soon as it is
        there; what the embedded tokens add comes later and then goes in place. Of two gradients
        for one leaf autograd makes a third: in BERT-Base 28 ms of a step on two cores, and 94 MB.
        """
        weight = self.decoder_weight
        if not torch.is_grad_enabled():
            return weight
        leaf = weight.detach().requires_grad_(weight.requires_grad)

        def hand_over(leaf: Tensor) -> None:
            assert leaf.grad is not None
            weight.grad = leaf.grad if weight.grad is None else weight.grad.add_(leaf.grad)
            leaf.grad = None

        if leaf.requires_grad:
            leaf.register_post_accumulate_grad_hook(hand_over)  # type: ignore[no-untyped-call]
        return leaf


def initialise(model: EncoderModel, seed: int) -> None:
    """Fill every parameter of `model`, each from a generator of its own."""
    config = model.config
    for module_name, module in model.named_modules():
        std = config.initializer_range
        if config.scale_output_initializer and module_name.endswith(
            (".output", "masked_lm_head.dense")
        ):
            std /= math.sqrt(2.0 * config.num_hidden_layers)
        for name, parameter in module.named_parameters(recurse=False):
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(parameter)
            else:
                key = derive_key(seed, "weights", f"{module_name}.{name}")
                generator = torch.Generator().manual_seed(key & (2**63 - 1))
                nn.init.trunc_normal_(parameter, 0.0, std, -2.0 * std, 2.0 * std, generator)
