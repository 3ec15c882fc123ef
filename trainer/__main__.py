"""Command line of the model side: `python -m trainer COMMAND`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from pipeline import working_storage
from pipeline.command_line import parse_config, run_command
from pipeline.presets import preset_names
from pipeline.storage import open_storage
from trainer import config
from trainer.config import TrainerConfig

USAGE = """\
usage: python -m trainer COMMAND [--config FILE.toml] [--FIELD VALUE ...] [--debug]

  pretrain     shards -> trained model, with checkpoints; goes on where it was stopped
  export       finished training -> a Hugging Face folder
  report       report.html and summary.json of the run
  run          the three above; each finds what is done already

  fill-mask "TEXT with [MASK]"   what the trained model puts there
  import FOLDER                  what a checkpoint of transformers is: its tables for a run's TOML
  params PRESET                  parameters by module; PRESET is a name of deploy/models/ or a TOML

`python -m trainer COMMAND --help` lists a command's fields."""

_PROMPTS = (
    "the function [MASK] a list of strings .",
    "return the [MASK] of the array .",
    "raises a [MASK] if the argument is invalid .",
    "the default value is [MASK] .",
    "this class [MASK] a new instance .",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FillMaskConfig(TrainerConfig):
    """A run, and a text with [MASK] for its model."""

    text: Annotated[str, tyro.conf.Positional] = ""
    """Text with one [MASK] or more."""
    top: int = 5
    """Candidates to show for each [MASK]."""


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    command, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    prog = f"python -m trainer {command}"
    if command in ("pretrain", "export", "report", "run"):
        settings = parse_config(TrainerConfig, config.load, rest, prog)
        working_storage.prepare(settings.working_storage)
        open_storage(settings.root).prepare()
        for name, stage in (("pretrain", pretrain), ("export", export), ("report", report)):
            if command in (name, "run"):
                stage(settings)
        return 0
    if command == "fill-mask":
        return fill_mask(parse_config(FillMaskConfig, _load_fill_mask, rest, prog))
    if command == "import":
        return import_checkpoint(rest)
    if command == "params" and len(rest) == 1 and not rest[0].startswith("-"):
        return params(rest[0])
    if command == "params":
        names = ", ".join(preset_names())
        print(f"usage: python -m trainer params PRESET\n\nPRESET is a TOML or one of: {names}")
        return 0 if rest in (["-h"], ["--help"]) else 2
    asked = command in ("-h", "--help", "help")
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    if command and not asked:
        print(f"\nerror: {command}: no such command", file=sys.stderr)
    return 0 if asked else 2


def import_checkpoint(paths: Sequence[str]) -> int:
    """Check a checkpoint of transformers and print the tables of a run that starts from it."""
    from trainer.start_from import start_tables

    asked = list(paths) in (["-h"], ["--help"])
    if asked or len(paths) != 1 or paths[0].startswith("-"):
        usage = (
            "usage: python -m trainer import FOLDER\n\nFOLDER is local or s3://; a file of it does"
        )
        print(usage, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    print(start_tables(paths[0]), end="")
    return 0


def params(preset: str) -> int:
    """Print how many parameters a preset's model has, by module."""
    from trainer.parameter_table import parameter_table

    Console(highlight=False).print(parameter_table(preset))
    return 0


def _load_fill_mask(path: str) -> FillMaskConfig:
    loaded = config.load(path)
    fields = {one.name: getattr(loaded, one.name) for one in dataclasses.fields(loaded)}
    return FillMaskConfig(**fields)


def pretrain(settings: TrainerConfig) -> None:
    """Train on the cluster, or find the training done."""
    from pipeline.stage import Stage
    from trainer.first_masks import first_mask_warnings
    from trainer.training_run import (
        open_instances,
        start_report,
        training_facts,
        training_generation,
        training_manifest,
    )
    from trainer.unfinished import begin, refuse_changed

    instances = open_instances(settings)
    instances.shards("train"), instances.shards("held_out")  # refused now, not after the training
    generation = training_generation(settings, instances)
    with Stage(generation) as stage:
        if stage.manifest is not None:
            return
        facts = training_facts(settings, instances)
        if not settings.training.beside_unfinished:
            refuse_changed(generation, facts)
        begin(generation, facts)
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        start = start_report(settings, instances)
        if start is not None:
            console.print(
                f"training: starts from {settings.training.start_from}: {start}", markup=False
            )
        for warning in first_mask_warnings(instances, settings.masking, settings.seed):
            console.print(f"warning: {warning}", markup=False)
        from trainer.cluster.launch import train

        train(settings, generation, instances)
        stage.commit(training_manifest(settings, generation, instances))


def export(settings: TrainerConfig) -> None:
    """Write the Hugging Face folder, or find it done."""
    from trainer.export import export as export_stage

    export_stage(settings)


def report(settings: TrainerConfig) -> None:
    """Write report.html and summary.json and print the summary."""
    from tokenizers import Tokenizer

    from trainer.fill_mask import fill_mask as predict
    from trainer.report import FillMaskExample, held_out_examples, print_summary, write_report
    from trainer.training_run import trained_model

    model, instances, _ = trained_model(settings)
    tokenizer = Tokenizer.from_str(instances.tokenizer_json.decode())
    asked = [(text, "") for text in _PROMPTS]
    asked += held_out_examples(instances, settings.masking, len(_PROMPTS))
    examples = [
        FillMaskExample(
            text=text,
            predictions=predict(model, tokenizer, text, 5),
            originals=[original] if original else (),
        )
        for text, original in asked
    ]
    print_summary(
        write_report(
            settings.root,
            instances=instances,
            masking=settings.masking,
            fill_mask_examples=examples,
        )
    )


def fill_mask(settings: FillMaskConfig) -> int:
    """Print the likeliest tokens for each [MASK] of the text."""
    from tokenizers import Tokenizer

    from trainer.fill_mask import fill_mask as predict
    from trainer.training_run import trained_model

    model, instances, _ = trained_model(settings)
    tokenizer = Tokenizer.from_str(instances.tokenizer_json.decode())
    console = Console(highlight=False)
    for number, candidates in enumerate(predict(model, tokenizer, settings.text, settings.top), 1):
        table = Table("token", "probability", title=f"[MASK] {number}".replace("[", r"\["))
        for one in candidates:
            table.add_row(one.token.replace("[", r"\["), f"{one.probability:.3f}")
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
