"""The export stage: a finished run as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline.commit import Generation
from pipeline.config import identity_fields
from pipeline.contract import ObjectEntry, fingerprint
from pipeline.stage import Stage
from trainer.config import TrainerConfig
from trainer.convert import TokenizerSource, export_folder
from trainer.convert.model_card import README, model_card
from trainer.onnx import onnx_bytes, require_package
from trainer.training_run import trained_model

FOLDER = "huggingface"
# Where sentence-transformers and optimum look for it.
ONNX = "onnx/model.onnx"


def export(config: TrainerConfig) -> dict[str, Any]:
    """Write the folder, or find it done; returns the stage's manifest."""
    model, instances, training = trained_model(config)
    inputs = {"training": training.fingerprint}
    name = fingerprint(
        "export", identity=identity_fields(config.export), inputs=inputs, versions=_versions(config)
    )
    generation = Generation(config.root, "export", name)
    with Stage(generation) as stage:
        if stage.manifest is not None:
            return stage.manifest
        source = TokenizerSource(
            tokenizer_json=instances.tokenizer_json,
            vocab_txt=instances.vocab_txt,
            lowercase=config.vocabulary.lowercase,
            strip_accents=config.vocabulary.strip_accents,
            handle_chinese_chars=config.vocabulary.handle_chinese_chars,
        )
        files = export_folder(model, source)
        trained = training.manifest()
        assert trained is not None  # `trained_model` has read it
        files[README] = model_card(model, source, training=trained, instances=instances.manifest)
        if config.export.onnx != "none":
            files[ONNX] = onnx_bytes(model, config.export.onnx)
        objects = {f"{FOLDER}/{name}": data for name, data in files.items()}
        generation.complete("export", objects, {})
        entries = {name: asdict(ObjectEntry.of(name, data)) for name, data in objects.items()}
        return stage.commit({"folder": FOLDER, "inputs": inputs, "objects": entries})


def _versions(config: TrainerConfig) -> dict[str, str]:
    """Return the versions that shape an export's bytes: those of the ONNX exporter, if it runs."""
    if config.export.onnx == "none":
        return {}
    packages = ("torch", "onnx", "onnxscript")
    # The local part ("+cpu") tells builds of one release apart, which trace alike.
    return {name: require_package(name).split("+")[0] for name in packages}
