"""The files of a checkpoint: which are read, and what is said of missing and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from pipeline.errors import InputError
from tests.trainer.batches import TINY, make_model
from tests.trainer.test_convert_import import KEY
from tests.trainer.wordpiece import make_source
from trainer.convert import export_folder, export_state_dict, import_folder
from trainer.models.encoder_model import EncoderForPreTraining


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in export_folder(make_model(), make_source()).items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_folder_and_a_file_in_it_are_read(folder: Path) -> None:
    state = make_model().state_dict()
    for path in (str(folder), f"{folder}/", f"{folder}/model.safetensors"):
        found = import_folder(path)
        assert found.model.config == TINY
        assert all(torch.equal(found.model.state[name], value) for name, value in state.items())
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").unlink()
    without = import_folder(str(folder))
    assert without.vocab_txt is None
    assert without.sha256 != found.sha256


def test_the_vocabulary_of_tokenizer_json_stands_for_vocab_txt(folder: Path) -> None:
    # Both names: transformers 5 saves no vocab.txt.
    before = import_folder(str(folder))
    (folder / "vocab.txt").unlink()
    found = import_folder(str(folder))
    assert found.vocab_txt == make_source().vocab_txt
    assert found.vocabulary_uri == f"{folder}/tokenizer.json"
    assert found.sha256 == before.sha256
    path = folder / "tokenizer.json"
    table = json.loads(path.read_text())
    table["model"]["vocab"]["the"] = 99
    path.write_text(json.dumps(table))
    with pytest.raises(InputError, match=rf"{path}: no entry has id \d+ of 99: .* without a hole"):
        import_folder(str(folder))
    table["model"]["type"] = "BPE"
    path.write_text(json.dumps(table))
    assert import_folder(str(folder)).vocab_txt is None


def test_the_decoder_is_the_embedding_after_an_import(folder: Path) -> None:
    # The weights are assigned to parameters that were on "meta": a tie could have been lost.
    model = import_folder(str(folder)).model.model()
    assert isinstance(model, EncoderForPreTraining)
    assert model.decoder_weight is model.embeddings.word_embeddings.weight
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_torch_pickle_is_read_and_half_precision_becomes_float32(
    folder: Path, dtype: torch.dtype
) -> None:
    tensors = {name: value.to(dtype) for name, value in export_state_dict(make_model()).items()}
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    state = import_folder(str(folder)).model.state
    for name, value in make_model().state_dict().items():
        assert torch.equal(state[name], value.to(dtype).float()), name


class Code:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (exec, ("raise SystemExit",))


def test_a_torch_pickle_runs_no_code_and_holds_tensors_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    torch.save({"x": Code()}, weights)
    with pytest.raises(
        InputError, match=r"pytorch_model\.bin: \d+ bytes: cut short, not a .* tensors"
    ) as caught:
        import_folder(str(folder))
    assert "weights_only" not in str(caught.value)
    torch.save({"model": export_state_dict(make_model())}, weights)
    with pytest.raises(InputError, match=r"must hold a state dict"):
        import_folder(str(folder))


@pytest.mark.parametrize("kept", [0, 5, 8, 100, 0.5, -1], ids=str)
def test_a_safetensors_file_cut_short_is_refused_with_its_sizes(folder: Path, kept: float) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    size = int(kept * len(whole)) if isinstance(kept, float) else kept % len(whole)
    weights.write_bytes(whole[:size])
    with pytest.raises(InputError) as caught:
        import_folder(str(folder))
    assert f"{weights}: {size} bytes: cut short" in str(caught.value)
    if size > 8:
        header = 8 + int.from_bytes(whole[:8], "little")
        assert str(header if size < header else len(whole)) in str(caught.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[1, 2, 3] ", "must be a table, tensor -> dtype, shape and data_offsets"),
        (b'{"a": 5}', "must be a table, tensor -> dtype, shape and data_offsets"),
        (b'{"a": {"data_offsets": ["x", "y"]}}', "must be a table, tensor -> dtype"),
        (b'{"a": ', "bytes 8 to 14 are not valid JSON"),
        (b"[" * 100_000, "bytes 8 to 100008 are not valid JSON"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_a_safetensors_header_that_is_none_is_refused_in_words(
    folder: Path, header: bytes, message: str
) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    told = rf"^{weights}: not a safetensors header: .*{message}.*: fetch the file again$"
    with pytest.raises(InputError, match=told):
        import_folder(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "vocab.txt"])
def test_a_pointer_of_git_lfs_is_told_from_the_file(folder: Path, name: str) -> None:
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 440449768\n"
    (folder / name).write_bytes(pointer)
    with pytest.raises(InputError, match=rf"{folder / name}: \d+ bytes: a pointer.*git lfs pull"):
        import_folder(str(folder))


def test_damaged_and_longer_files_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole + b"x")
    with pytest.raises(InputError, match=rf"{len(whole) + 1} bytes: followed by other bytes: .* "):
        import_folder(str(folder))
    weights.write_bytes(whole[:8] + b"x" * (len(whole) - 8))
    with pytest.raises(InputError, match=r"model\.safetensors: not a safetensors header"):
        import_folder(str(folder))
    weights.write_bytes(b"\xff" * len(whole))
    with pytest.raises(
        InputError, match=rf"{len(whole)} bytes: not a safetensors file, by its fir"
    ):
        import_folder(str(folder))
    weights.write_bytes(whole.replace(b'"F32"', b'"X32"'))
    with pytest.raises(InputError, match=rf"model\.safetensors: {len(whole)} bytes: damaged"):
        import_folder(str(folder))


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_torch_pickle_cut_short_is_refused_with_its_size(folder: Path, kept: float) -> None:
    weights = folder / "pytorch_model.bin"
    torch.save(export_state_dict(make_model()), weights)
    weights.write_bytes(weights.read_bytes()[: int(kept * weights.stat().st_size)])
    with pytest.raises(InputError, match=rf"{weights.stat().st_size} bytes: cut short, not a Py"):
        import_folder(str(weights))


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"hello", 18, 150], ids=str)
def test_what_is_no_torch_file_is_refused_with_its_size(folder: Path, content: bytes | int) -> None:
    weights = folder / "pytorch_model.bin"
    if isinstance(content, int):
        torch.save({KEY: torch.ones(9)}, weights, _use_new_zipfile_serialization=False)
        content = weights.read_bytes()[:content]
    weights.write_bytes(content)
    with pytest.raises(InputError, match=rf"{len(content)} bytes: cut short, not a PyTorch file"):
        import_folder(str(weights))


def test_weights_split_into_files_are_read_by_their_index(folder: Path) -> None:
    whole = import_folder(str(folder)).model.state
    tensors = export_state_dict(make_model())
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        part = {name: tensors[name] for name in tensors if places[name] == file}
        safetensors.torch.save_file(part, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    state = import_folder(str(folder)).model.state
    assert all(torch.equal(state[name], value) for name, value in whole.items())
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(InputError, match=rf"{index}: names model-1\.safetensors, which is not"):
        import_folder(str(folder))
    index.write_text('{"weight_map": {}}')
    with pytest.raises(InputError, match=rf"{index}: weight_map must be a table"):
        import_folder(str(folder))


def test_missing_and_broken_files_are_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"other: has no model\.safetensors and no pytorch_model"):
        import_folder(str(folder / "other"))
    with pytest.raises(InputError, match=r"has no x\.safetensors"):
        import_folder(str(folder / "x.safetensors"))
    config = folder / "config.json"
    config.write_text(config.read_text()[:-9])
    with pytest.raises(InputError, match=rf"{config}: not valid JSON"):
        import_folder(str(folder))
    config.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(InputError, match=rf"{config}: nested too deeply to be read"):
        import_folder(str(folder))
    config.write_text(json.dumps([1]))
    with pytest.raises(InputError, match=rf"{config}: holds a list"):
        import_folder(str(folder))
    config.unlink()
    with pytest.raises(InputError, match=rf"{config}: no such file"):
        import_folder(str(folder))


def test_errors_of_tensors_name_the_file(folder: Path) -> None:
    tensors = export_state_dict(make_model())
    del tensors[KEY]
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        InputError, match=rf"{folder}/model\.safetensors: not the tensors of .*{KEY}"
    ):
        import_folder(str(folder))
