"""Masked language modelling: which tokens are predicted, and what the model sees instead.

One function serves static masking (when instances are built) and dynamic masking (in the
loader). The mask of an instance is f(seed, purpose, epoch, instance number, repetition), so it
does not depend on the batch the instance stands in.
"""

from pipeline.masking.classes import TokenClasses, token_classes
from pipeline.masking.mask import MaskedTokens, mask_tokens, require_words

__all__ = ["MaskedTokens", "TokenClasses", "mask_tokens", "require_words", "token_classes"]
