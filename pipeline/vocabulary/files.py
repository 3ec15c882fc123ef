"""The vocabulary as files: tokenizer.json of the tokenizers library, and vocab.txt."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from pipeline.errors import ConfigError, InputError
from pipeline.normalization import TextRules
from pipeline.released_files import parse_table, require_no_pointer
from pipeline.storage import open_storage
from pipeline.vocabulary.layout import CONTINUATION, SPECIAL_TOKENS
from pipeline.vocabulary.tokenizer_json import wordpiece_entries


def build_tokenizer(
    entries: Sequence[str], rules: TextRules, *, max_input_chars_per_word: int = 100
) -> Tokenizer:
    """Return BERT's tokenizer with `entries` as ids 0, 1, ...; a longer word is one [UNK].

    It neither truncates nor pads: that is the caller's choice at encoding.
    Raises InputError for repeated entries or missing special tokens.
    """
    check_entries(entries, "vocabulary")
    ids = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(
        models.WordPiece(
            ids,
            unk_token="[UNK]",
            max_input_chars_per_word=max_input_chars_per_word,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    tokenizer.normalizer = rules.normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def vocab_txt(entries: Sequence[str]) -> bytes:
    """Return one entry a line, each ended by a line feed; the line number is the id."""
    return "".join(f"{entry}\n" for entry in entries).encode()


def read_vocab(data: bytes, name: str = "vocab.txt") -> list[str]:
    """Return the entries of a vocab.txt; only a line feed ends a line, a BOM is dropped.

    Raises InputError, naming file and byte or line, for bytes that are not UTF-8, Windows line
    ends, empty lines, repeated entries and missing special tokens.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start}: not UTF-8; save it as UTF-8") from error
    entries = text.split("\n")
    if entries[-1] == "":
        entries.pop()
    for line, entry in enumerate(entries, 1):
        if entry.endswith("\r"):
            raise InputError(f"{name}: line {line}: ends in \\r\\n; end lines with \\n only")
        if not entry:
            raise InputError(f"{name}: line {line}: is empty, and its number is an id; remove it")
    check_entries(entries, name)
    return entries


def read_start(path: str) -> str:
    """Return the text of the vocab.txt at a path or s3:// URI, checked; empty for an empty path.

    Of a tokenizer.json it is the text that its vocabulary would be as vocab.txt.
    Raises ConfigError where there is none, InputError where `read_vocab` or `wordpiece_entries`
    refuses it and where a tokenizer.json is no WordPiece.
    """
    if not path:
        return ""
    folder, _, name = path.rpartition("/")
    storage = open_storage(folder or ("/" if path.startswith("/") else "."))
    if storage.size(name) is None:
        raise ConfigError(f"vocabulary.start_from = {path}: no such file; name a vocab.txt")
    data = require_no_pointer(storage.read(name), path)
    if name.endswith(".json"):
        data = _tokenizer_vocab_txt(data, path)
    read_vocab(data, path)
    return data.decode()


def _tokenizer_vocab_txt(data: bytes, path: str) -> bytes:
    """Return the vocab.txt of a tokenizer.json."""
    entries = wordpiece_entries(parse_table(data, path), path)
    if entries is None:
        raise InputError(f"{path}: is not a tokenizer of a WordPiece model; name a vocab.txt")
    return vocab_txt(entries)


def check_entries(entries: Sequence[str], name: str) -> None:
    """Raise InputError unless entries are distinct and hold every special token."""
    first_line: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry in first_line:
            raise InputError(
                f"{name}: {entry!r} is entry {first_line[entry]} and entry {index}: an entry must"
                " have one id; remove one"
            )
        first_line[entry] = index
    missing = [token for token in SPECIAL_TOKENS if token not in first_line]
    if missing:
        raise InputError(
            f"{name}: {len(entries)} entries, {', '.join(missing)} is missing: each of"
            f" {', '.join(SPECIAL_TOKENS)} must be there once"
        )
