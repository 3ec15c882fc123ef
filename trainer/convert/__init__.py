"""Weights, settings and tokenizer to and from transformers: one file a model, shared rules."""

from trainer.convert.family import SpecialIds
from trainer.convert.reading import (
    ImportedFolder,
    ImportedModel,
    import_folder,
    import_state_dict,
)
from trainer.convert.tokenizer_files import TokenizerSource
from trainer.convert.writing import export_config, export_folder, export_state_dict

__all__ = [
    "ImportedFolder",
    "ImportedModel",
    "SpecialIds",
    "TokenizerSource",
    "export_config",
    "export_folder",
    "export_state_dict",
    "import_folder",
    "import_state_dict",
]
