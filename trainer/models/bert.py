"""BERT for pre-training: encoder, masked LM head and next-sentence head (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.keyed_random import derive_key
from trainer.batch import TensorBatch
from trainer.model_config import ModelConfig
from trainer.models.embeddings import Embeddings
from trainer.models.encoder import Encoder
from trainer.models.heads import MaskedLMHead, Pooler


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTrainingOutput:
    """What the heads answer for one batch."""

    masked_logits: Tensor
    """[M, V], of the masked positions only."""
    pair_logits: Tensor
    """[B, 2], 0 = B follows A, 1 = random."""


class BertForPreTraining(nn.Module):
    """BERT with both pre-training heads, over flat batches.

    The initial weights are a pure function of (seed, parameter name): a truncated normal of
    standard deviation initializer_range, cut at twice that (released code of BERT), zero biases,
    LayerNorm weights of one.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, pad_token_id: int, *, seed: int
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.pad_token_id = pad_token_id
        # On "meta" the layers' own initialisation runs on no data and draws from no generator.
        with torch.device("meta"):
            self.embeddings = Embeddings(config, vocab_size)
            self.encoder = Encoder(config)
            self.pooler = Pooler(config)
            self.masked_lm_head = MaskedLMHead(config, vocab_size)
            self.pair_head = nn.Linear(config.hidden_size, 2)
        self.to_empty(device="cpu")
        initialise(self, config.initializer_range, seed)

    def forward(self, batch: TensorBatch) -> PreTrainingOutput:
        """Return the logits of both heads."""
        transformed_MH, pair_logits_B2 = self.states(batch)
        logits_MV = self.masked_lm_head.decode(transformed_MH, self.decoder_weight)
        return PreTrainingOutput(masked_logits=logits_MV, pair_logits=pair_logits_B2)

    def states(self, batch: TensorBatch) -> tuple[Tensor, Tensor]:
        """Return what the decoder takes, [M, H], and the pair logits, [B, 2].

        The loss goes on from here: it never holds all of the [M, V] logits.
        """
        hidden_TH = self.encoder(self.embeddings(batch), batch.layout)
        masked_MH = hidden_TH.index_select(0, batch.masked_positions)
        first_BH = hidden_TH.index_select(0, batch.layout.first_tokens)
        return self.masked_lm_head(masked_MH), self.pair_head(self.pooler(first_BH))

    @property
    def decoder_weight(self) -> Tensor:
        """The decoder's matrix, [V, H]: the token embeddings themselves."""
        return self.embeddings.word_embeddings.weight


def initialise(model: nn.Module, initializer_range: float, seed: int) -> None:
    """Fill every parameter of `model`, each from a generator of its own."""
    with torch.no_grad():
        for module_name, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name.endswith("bias"):
                    parameter.zero_()
                elif isinstance(module, nn.LayerNorm):
                    parameter.fill_(1.0)
                else:
                    key = derive_key(seed, "weights", f"{module_name}.{name}")
                    generator = torch.Generator().manual_seed(key & (2**63 - 1))
                    limit = 2.0 * initializer_range
                    nn.init.trunc_normal_(
                        parameter, 0.0, initializer_range, -limit, limit, generator
                    )
