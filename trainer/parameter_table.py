"""How many parameters a model has, by module, from its configuration alone."""

from __future__ import annotations

from rich.table import Table

from pipeline.errors import ConfigError
from pipeline.presets import preset_names, preset_path
from trainer.config import TrainerConfig, load
from trainer.models.encoder_model import PAIR_HEADS, EncoderForPreTraining


def load_preset(name: str) -> TrainerConfig:
    """Load a preset by its name, or a run's TOML by its path; ConfigError for anything else."""
    if name.endswith(".toml"):
        return load(name)
    if name not in preset_names():
        raise ConfigError(
            f"python -m trainer params {name}: must be a run's TOML file, whose name ends in "
            f".toml, or a preset: {', '.join(preset_names())}"
        )
    return load(preset_path(name, "python -m trainer params"))


def parameter_counts(config: TrainerConfig) -> dict[str, int]:
    """Return module -> parameters, each counted once, in the order of the forward pass.

    The decoder is the token embeddings; only its bias is counted with the masked LM head. The
    blocks of the encoder's layers are counted together.
    """
    multiple = config.vocabulary.pad_to_multiple_of
    model = EncoderForPreTraining(
        config.model,
        -(-config.vocabulary.vocab_size // multiple) * multiple,
        0,
        pair_head=PAIR_HEADS.get(config.instances.objective),
        seed=None,
    )
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        module = ".".join(parts[: 2 if parts[0] in ("embeddings", "encoder") else 1])
        counts[module] = counts.get(module, 0) + parameter.numel()
    return counts


def parameter_table(name: str) -> Table:
    """Return the table that `python -m trainer params NAME` prints."""
    config = load_preset(name)
    counts = parameter_counts(config)
    table = Table(title=f"{name}: {config.model.architecture}", show_footer=True)
    table.add_column("module", "total")
    table.add_column("parameters", f"{sum(counts.values()):,}", justify="right")
    for module, count in counts.items():
        table.add_row(module, f"{count:,}")
    return table
