"""The export stage: a finished run as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline.commit import Generation
from pipeline.contract import ObjectEntry, fingerprint
from pipeline.stage import Stage
from trainer.config import TrainerConfig
from trainer.convert import export_folder
from trainer.training_run import trained_model

FOLDER = "huggingface"


def export(config: TrainerConfig) -> dict[str, Any]:
    """Write the folder, or find it done; returns the stage's manifest."""
    model, instances, training = trained_model(config)
    inputs = {"training": training.fingerprint}
    generation = Generation(
        config.root, "export", fingerprint("export", identity={}, inputs=inputs, versions={})
    )
    with Stage(generation) as stage:
        if stage.manifest is not None:
            return stage.manifest
        files = export_folder(
            model,
            config.model,
            tokenizer_json=instances.tokenizer_json,
            vocab_txt=instances.vocab_txt,
            lowercase=config.vocabulary.lowercase,
            strip_accents=config.vocabulary.strip_accents,
            handle_chinese_chars=config.vocabulary.handle_chinese_chars,
            max_seq_length=model.max_seq_length,
        )
        objects = {f"{FOLDER}/{name}": data for name, data in files.items()}
        generation.complete("export", objects, {})
        entries = {name: asdict(ObjectEntry.of(name, data)) for name, data in objects.items()}
        return stage.commit({"folder": FOLDER, "inputs": inputs, "objects": entries})
