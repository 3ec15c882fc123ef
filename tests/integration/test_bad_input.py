"""What cannot work is refused by one message and an exit code, and nothing committed is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Head
from tests.integration.corpus import documents
from tests.integration.file_systems import mounted
from tests.integration.product import Ended, run
from tests.integration.run_folder import contents, copy_data, current, manifest, require_whole

pytestmark = pytest.mark.ray


def refused(ended: Ended, *said: str, code: int = 1) -> None:
    """Assert one message that says all of `said`, the exit code, and no traceback."""
    assert ended.exit_code == code, ended
    assert ended.stderr.count("error: ") == 1, ended
    assert "Traceback" not in ended.stderr + ended.stdout, ended
    assert "not foreseen" not in ended.stderr, ended
    for words in said:
        assert words in ended.stderr, ended


def source(tmp_path: Path, text: str | None, kind: str = "text") -> str:
    """A config whose only source is one file of this text; None: a file that does not exist."""
    corpus = tmp_path / "corpus.txt"
    if text is not None:
        corpus.write_text(text)
    path = tmp_path / "run.toml"
    path.write_text(
        f'root = "{tmp_path}/run"\n[documents]\npartitions = 1\nheld_out_fraction = 0.0\n'
        f'[[documents.sources]]\nname = "one"\nformat = "{kind}"\npath = "{corpus}"\n'
        "[vocabulary]\nvocab_size = 150\nmin_pair_count = 1\n[instances]\nmax_seq_length = 32\n"
    )
    return str(path)


def one_document() -> str:
    return "\n".join(documents()[:20])


def documents_of_one_sentence() -> str:
    words = sorted({word for word in one_document().split() if word.isalpha()})
    return "\n\n".join(f"This is {word}" for word in words)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        pytest.param(lambda: None, "text", "corpus.txt: no such file", id="no file"),
        pytest.param(lambda: "", "text", "1 files, all empty", id="empty"),
        pytest.param(lambda: "\n \n\n", "text", "no document is left of 0 read", id="blank"),
        pytest.param(lambda: "{not json\n", "jsonl", "corpus.txt: byte offset 0", id="not JSON"),
        pytest.param(one_document, "text", "needs several documents", id="one document"),
        pytest.param(
            documents_of_one_sentence, "text", "no document has two sentences", id="one sentence"
        ),
    ],
)
def test_a_corpus_that_gives_no_instances_is_refused(
    head: Head, tmp_path: Path, text: Callable[[], str | None], kind: str, said: str
) -> None:
    ended = run("pipeline", "run", "--config", source(tmp_path, text(), kind), **head.join)
    refused(ended, said)
    assert not (tmp_path / "run/instances/current.json").exists()


def test_documents_that_are_all_held_out_are_refused_by_that_name(
    head: Head, tmp_path: Path
) -> None:
    arguments = ("--config", source(tmp_path, one_document()))
    flag = ("--documents.held_out_fraction", "0.9999")
    ended = run("pipeline", "run", *arguments, *flag, **head.join)
    refused(ended, "no documents to train on", "documents.held_out_fraction")


def test_whole_words_of_a_vocabulary_without_pieces_are_refused_before_the_work(
    head: Head, tmp_path: Path
) -> None:
    start = tmp_path / "words.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, "first", "second", *(f"word{number}" for number in range(57))]
    start.write_text("".join(f"{word}\n" for word in words))
    config = source(tmp_path, "first second.\nsecond first.\n\nfirst.\nsecond.\n")
    continued = ("--vocabulary.start_from", str(start), "--vocabulary.new_entries", "0")
    flags = (*continued, "--vocabulary.vocab_size", "64", "--masking.unit", "whole_word")
    ended = run("pipeline", "run", "--config", config, *flags, **head.join)
    refused(ended, "masking.unit = 'whole_word': the vocabulary has no ## pieces", code=2)
    assert not list((tmp_path / "run/instances").rglob("*.arrow"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mode = 1", ("masking.mode = 1",)),
        ("probability = 1.5", ("masking.probability = 1.5", "(0, 1]")),
        ("probabilty = 0.2", ("masking.probabilty", "unknown key")),
        ("probability = ", ("not valid TOML",)),
    ],
)
def test_a_wrong_line_in_the_config_is_refused(
    tmp_path: Path, line: str, said: tuple[str, ...]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[masking]\n{line}\n")
    refused(run("pipeline", "run", "--config", str(path)), "run.toml", *said, code=2)


def test_a_vocabulary_larger_than_the_corpus_gives_is_refused(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    before = contents(root)
    arguments = ("--config", config, "--root", str(root), "--vocabulary.vocab_size", "1000000")
    ended = run("pipeline", "run", *arguments, **head.join)
    refused(ended, "vocabulary.vocab_size = 1000000: this corpus gives at most", code=2)
    after = contents(root)
    assert {name: after[name] for name in before} == before
    require_whole(root)


def train_shards(root: Path) -> list[Path]:
    folder = current(root, "instances")
    shards = manifest(root, "instances")["sets"][0]["shards"]
    return [folder / one["object"]["name"] for one in shards if one["split"] == "train"]


def test_a_flipped_bit_in_a_shard_ends_the_training_at_once(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    for shard in train_shards(root):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    ended = run("trainer", "pretrain", "--config", config, "--root", str(root), **head.join)
    refused(ended, ".arrow: bytes", "CRC-32 differs", "run `python -m pipeline instances` again")
    # One attempt: a restart would meet the same bytes.
    assert len(list(root.glob("training/*/attempts/*.json"))) == 1
    verified = run("pipeline", "verify", str(root))
    assert verified.exit_code == 1
    assert verified.stdout.count("fault: ") == len(train_shards(root))
    assert verified.stdout.count(": whole") == 2  # documents and vocabulary


def test_a_shard_cut_short_is_refused(undisturbed: Path, tmp_path: Path) -> None:
    root = copy_data(undisturbed, tmp_path)
    shard = train_shards(root)[0]
    os.truncate(shard, shard.stat().st_size // 2)
    refused(run("pipeline", "inspect", str(root), "--rows", "1000"), shard.name, "cut short")
    verified = run("pipeline", "verify", str(root))
    assert verified.exit_code == 1
    assert verified.stdout.count("fault: ") == 1
    assert "cut short" in verified.stdout


def test_a_vocabulary_that_is_not_the_shards_is_refused(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    path = current(root, "vocabulary") / "tokenizer.json"
    path.write_text(path.read_text().replace("[UNK]", "[unk]"))
    static = ("--masking.mode", "static")
    ended = run("pipeline", "run", "--config", config, "--root", str(root), *static, **head.join)
    refused(ended, "tokenizer.json: ", "SHA-256")
    path = current(root, "instances") / "vocab.txt"
    path.write_text(path.read_text().replace("the\n", "eht\n"))
    refused(run("pipeline", "inspect", str(root)), "vocab.txt: SHA-256")
    assert run("pipeline", "verify", str(root)).stdout.count("fault: ") == 2


def test_a_config_of_other_shards_is_refused_by_the_trainer(undisturbed: Path, config: str) -> None:
    arguments = ("--config", config, "--root", str(undisturbed))
    changed = ("--instances.max_seq_length", "48")
    ended = run("trainer", "pretrain", *arguments, *changed)
    refused(ended, "max_seq_length: 64 there, 48 here", "pipeline run")
    ended = run("trainer", "export", *arguments)
    refused(ended, "no training yet", "python -m trainer pretrain")


def test_a_full_disk_stops_the_run_and_keeps_what_is_committed(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", 64 << 20) as root:
        copy_data(undisturbed, root)
        room = os.statvfs(root)
        (root / "filler").write_bytes(bytes(room.f_bavail * room.f_bsize - 40_000))
        arguments = ("--config", config, "--root", str(root), "--seed", "8")
        ended = run("pipeline", "run", *arguments, **head.join)
        refused(ended, "No space left on device; free space on that disk")
        require_whole(root)


def committed(root: Path) -> dict[str, bytes]:
    """Every file of the checkpoints that have a manifest."""
    manifests = root.glob("training/*/checkpoints/step-*/manifest.json")
    files = [file for one in manifests for file in one.parent.iterdir()]
    return {str(file): file.read_bytes() for file in files}


def test_a_disk_that_fills_up_ends_the_training_and_keeps_its_checkpoints(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    steps = 8
    with mounted(tmp_path / "disk", 64 << 20) as root:
        copy_data(undisturbed, root)
        room = os.statvfs(root)
        # For the first steps' checkpoints of 0.4 MB each, not for all.
        (root / "filler").write_bytes(bytes(room.f_bavail * room.f_bsize - 1_600_000))
        flags = ("--training.total_steps", str(steps), "--training.keep_checkpoints", str(steps))
        arguments = ("--config", config, "--root", str(root), "--training.workers", "1", *flags)
        once = ("--training.max_restarts", "0")
        ended = run("trainer", "pretrain", *arguments, *once, **head.join)
        refused(ended, f"{root}/training/", "No space left on device; free space on that disk")
        kept = committed(root)
        assert kept and not (root / "training/current.json").exists()
        (root / "filler").unlink()
        run("trainer", "pretrain", *arguments, **head.join).require_success()
        assert {name: data for name, data in committed(root).items() if name in kept} == kept
        result = manifest(root, "training")
        assert (result["steps"], result["sequences_seen"]) == (steps, steps * 16)
        lines = (current(root, "training") / "metrics.jsonl").read_text().splitlines()
        done = [one["step"] for one in map(json.loads, lines) if one["kind"] == "train"]
        assert done == list(range(1, steps + 1))


def test_a_place_without_write_permission_is_refused(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    arguments = ("--config", config, "--seed", "8")
    if os.geteuid() != 0:
        root = copy_data(undisturbed, tmp_path / "run")
        (root / "documents").chmod(0o500)
        ended = run("pipeline", "run", *arguments, "--root", str(root), **head.join)
        refused(ended, "cannot write: Permission denied; give this user the right")
        require_whole(root)
        return
    # Root may write anywhere but on a file system that takes no writes.
    with mounted(tmp_path / "disk", 64 << 20) as root:
        copy_data(undisturbed, root)
        subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
        ended = run("pipeline", "run", *arguments, "--root", str(root), **head.join)
        refused(ended, "cannot write: Read-only file system; give this user the right")
        require_whole(root)
