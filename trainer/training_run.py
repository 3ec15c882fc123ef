"""Where a training run lives and what it depends on; its manifest once it has ended."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from pipeline.commit import Generation, current, parse_json, require_same_identity
from pipeline.config import require
from pipeline.contract import fingerprint
from pipeline.identity import documents_identity, instances_identity, vocabulary_identity
from pipeline.instance_set import COMMAND, STAGE, InstanceSet
from trainer.checkpoint import CheckpointRef, checkpoint_objects, load_model
from trainer.config import TrainerConfig, training_identity
from trainer.data.phases import set_name
from trainer.models.encoder_model import PAIR_HEADS, EncoderForPreTraining
from trainer.recorder import RESULT
from trainer.run_plan import open_sources
from trainer.start_from import StartReport, load_start, start_identity

PRETRAIN_COMMAND = "python -m trainer pretrain"


def open_instances(config: TrainerConfig) -> InstanceSet:
    """Open the set to train on of the run's current instances.

    Raises InputError unless the config's data half made them.
    """
    generation, manifest = current(config.root, STAGE, COMMAND)
    require_same_identity(
        generation,
        {**manifest["made_from"], **manifest["identity"]},
        {
            **documents_identity(config),
            **vocabulary_identity(config),
            **instances_identity(config),
        },
        "python -m pipeline run",
    )
    return InstanceSet.one_of(generation, manifest, config.trained_length)


def training_generation(config: TrainerConfig, instances: InstanceSet) -> Generation:
    """Return the generation of this config over these instances, and those it mixes in."""
    facts = training_facts(config, instances)
    return Generation(config.root, "training", fingerprint("training", **facts))


def training_facts(config: TrainerConfig, instances: InstanceSet) -> dict[str, Any]:
    """Return all that the fingerprint of a training is of: identity, inputs, versions."""
    return {
        "identity": full_identity(config, instances),
        "inputs": {"instances": instances.generation.fingerprint, **start_identity(config)},
        # The local part ("+cpu") tells builds of one release apart, which resume each other.
        "versions": {"torch": torch.__version__.split("+")[0]},
    }


def full_identity(config: TrainerConfig, instances: InstanceSet) -> dict[str, Any]:
    """Return the identity fields of a training with the sets of other runs that it mixes in."""
    mixed = [
        [
            set_name(one.instances)
            for one in of_phase
            if one.instances.generation.root != config.root
        ]
        for of_phase in open_sources(config, instances)
    ]
    identity = training_identity(config)
    return {**identity, "mixed_instances": mixed} if any(mixed) else identity


def training_manifest(
    config: TrainerConfig, generation: Generation, instances: InstanceSet
) -> dict[str, Any]:
    """Return the manifest of a run whose workers have ended, from the result they left."""
    name = generation.name(RESULT)
    result = parse_json(generation.storage.read(name), f"{generation.root}/{name}")
    start = start_report(config, instances)
    return {
        **result,
        **start_identity(config),
        **({"start": dataclasses.asdict(start)} if start else {}),
        "identity": full_identity(config, instances),
        "inputs": {"instances": instances.generation.fingerprint},
        "max_seq_length": instances.max_seq_length,
        "objects": checkpoint_objects(generation, CheckpointRef.from_json(result["checkpoint"])),
    }


def initial_model(config: TrainerConfig, instances: InstanceSet) -> EncoderForPreTraining:
    """Return the model before its first step, on the CPU, with the heads of the objective.

    Its weights are random, or those of the checkpoint `training.start_from`.
    Raises ConfigError if the model's positions are not enough for the longest instance, and what
    `load_start` raises.
    """
    model = _model(config, instances, config.seed)
    require(
        config.trained_length <= model.max_seq_length,
        "model.max_position_embeddings",
        config.model.max_position_embeddings,
        f"leaves positions for {model.max_seq_length} tokens, "
        f"an instance has {config.trained_length}",
    )
    if config.training.start_from:
        load_start(model, config.training.start_from, instances.vocab_txt)
    return model


def start_report(config: TrainerConfig, instances: InstanceSet) -> StartReport | None:
    """Return what the checkpoint `training.start_from` is to the run; None without one.

    Raises what `load_start` raises, before anything is trained.
    """
    path = config.training.start_from
    return load_start(_model(config, instances, None), path, instances.vocab_txt) if path else None


def _model(
    config: TrainerConfig, instances: InstanceSet, seed: int | None
) -> EncoderForPreTraining:
    return EncoderForPreTraining(
        config.model,
        instances.vocab_size,
        instances.special_ids["[PAD]"],
        pair_head=PAIR_HEADS.get(config.instances.objective),
        seed=seed,
    )


def trained_model(config: TrainerConfig) -> tuple[EncoderForPreTraining, InstanceSet, Generation]:
    """Load the model of the finished training, on the CPU, with the instances it learned from.

    Raises InputError if the config's training has not ended.
    """
    instances = open_instances(config)
    generation, manifest = current(config.root, "training", PRETRAIN_COMMAND)
    made_from = {key: manifest[key] for key in ("start_from_sha256",) if key in manifest}
    require_same_identity(
        generation,
        {**manifest["identity"], **manifest["inputs"], **made_from},
        {
            **full_identity(config, instances),
            "instances": instances.generation.fingerprint,
            **start_identity(config),
        },
        PRETRAIN_COMMAND,
    )
    model = _model(config, instances, None)
    ref = CheckpointRef.from_json(manifest["checkpoint"])
    model.load_state_dict(load_model(generation, ref), assign=True)
    return model.eval(), instances, generation
