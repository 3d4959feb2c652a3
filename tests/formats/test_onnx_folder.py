"""Folders as ONNX Runtime GenAI and the hub have them: which graph is meant, and what lies beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nybble.errors import ModelFileError, NybbleError, UnsupportedFeature
from nybble.formats.open import open_checkpoint
from nybble.tokenizer.chat_template import template_from_gguf
from nybble.tokenizer.gguf_tokenizer import tokenizer_from_gguf

from .toy_onnx import every_kind

SPACE = "▁"


def byte_level(**changes: Any) -> dict[str, Any]:
    """A ``tokenizer.json`` of bytes and two merges, with control tokens at its end."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    vocabulary = {text: place for place, text in enumerate([*letters, "th", "the"])}
    count = len(vocabulary)
    special = [{"id": count + place, "content": text, "special": True} for place, text in enumerate(("<s>", "</s>"))]
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["t", "h"], ["th", "e"]], **changes.pop("model", {})}
    return {
        "added_tokens": [*special, {"id": count + 2, "content": "[tool]", "special": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True},
        "model": model,
        **changes,
    }


def sentence_piece() -> dict[str, Any]:
    """A ``tokenizer.json`` that came from SentencePiece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), SPACE, "t", "h", "e", "th"]
    pieces += [f"{SPACE}th", f"{SPACE}the"]
    vocabulary = {text: place for place, text in enumerate(pieces)}
    merges = [f"{SPACE}th e", f"{SPACE} th", "t h"][::-1]
    return {
        "added_tokens": [{"id": place, "content": pieces[place], "special": True} for place in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]},
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def folder(path: Path, tokenizer: dict[str, Any], **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "decoder.onnx").write_bytes(every_kind().SerializeToString())
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    genai = {
        "model": {
            "decoder": {"filename": "decoder.onnx"},
            "context_length": 77,
            "vocab_size": 300,
            "bos_token_id": 258,
            "eos_token_id": [259],
        },
        "search": {"do_sample": True, "temperature": 0.5, "top_k": 9, "repetition_penalty": 1.25},
    }
    contents = {"genai_config": genai, "tokenizer_config": {"chat_template": "{{ bos_token }}hello"}, **files}
    for name, content in contents.items():
        if content is not None:
            (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_everything_beside_the_graph_is_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder(tmp_path, byte_level()))
    assert checkpoint.path == tmp_path / "decoder.onnx"
    assert checkpoint.graph is not None
    assert checkpoint.architecture == "onnx"
    metadata = checkpoint.metadata
    assert metadata["onnx.context_length"] == 77
    assert metadata["general.sampling.temp"] == 0.5
    assert metadata["general.sampling.top_k"] == 9
    assert metadata["general.sampling.penalty_repeat"] == 1.25
    tokenizer = tokenizer_from_gguf(metadata, "toy")
    assert tokenizer.vocabulary == 300
    assert (tokenizer.beginning_of_sequence, tokenizer.end_of_sequence) == (258, 259)
    template = template_from_gguf(metadata, "toy")
    assert template is not None
    assert (template.source, template.bos) == ("{{ bos_token }}hello", "<s>")


def test_sampling_that_is_switched_off_is_not_recommended(tmp_path: Path) -> None:
    genai = {"model": {"eos_token_id": 259}, "search": {"do_sample": False, "temperature": 0.5, "top_k": 50}}
    metadata = open_checkpoint(folder(tmp_path, byte_level(), genai_config=genai)).metadata
    assert not [key for key in metadata if key.startswith("general.sampling.")]


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True},
        {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True},
            ],
        },
    ],
)
def test_byte_level_tokens_are_those_of_the_library(tmp_path: Path, pre_tokenizer: dict[str, Any]) -> None:
    from tokenizers import Tokenizer

    made = byte_level(pre_tokenizer=pre_tokenizer)
    tokenizer = tokenizer_from_gguf(open_checkpoint(folder(tmp_path, made)).metadata, "toy")
    library = Tokenizer.from_str(json.dumps({"version": "1.0", **with_all_fields(made)}))
    for text in ("the other thethe", "tab\tand 123 é 漢 [tool] x", "  spaces   "):
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 259 not in tokenizer.encode("a </s> spelled out")


def test_sentence_piece_tokens_are_those_of_the_library(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    made = sentence_piece()
    genai = {"model": {"decoder": {"filename": "decoder.onnx"}, "bos_token_id": 1, "eos_token_id": 2}}
    tokenizer = tokenizer_from_gguf(open_checkpoint(folder(tmp_path, made, genai_config=genai)).metadata, "toy")
    plain = {**with_all_fields(made), "post_processor": None}
    library = Tokenizer.from_str(json.dumps({"version": "1.0", **plain}))
    for text in ("the the", "hethe th é", "t"):
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_bos=True)[0] == 1
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_metaspace_puts_spaces_where_the_library_does(tmp_path: Path, scheme: str) -> None:
    """At the start, after control tokens or not, and never before a space."""
    from tokenizers import Tokenizer

    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    made = {**sentence_piece(), "normalizer": None, "pre_tokenizer": metaspace, "post_processor": None}
    genai = {"model": {"decoder": {"filename": "decoder.onnx"}, "bos_token_id": 1, "eos_token_id": 2}}
    tokenizer = tokenizer_from_gguf(open_checkpoint(folder(tmp_path, made, genai_config=genai)).metadata, "toy")
    library = Tokenizer.from_str(json.dumps({"version": "1.0", **with_all_fields(made)}))
    for parts in (["the", 2, "the"], [1, "the"], [" the", 1, " the"], [1, 2, "h", 1], ["  t"], [f"{SPACE}t", 1, "é"]):
        text = "".join(part if isinstance(part, str) else {1: "<s>", 2: "</s>"}[part] for part in parts)
        assert tokenizer.encode_segments(parts) == library.encode(text, add_special_tokens=False).ids, parts


def with_all_fields(made: dict[str, Any]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "decoder": None,
        **made,
        "added_tokens": [{**flags, **token} for token in made["added_tokens"]],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "Unigram"}}, "model.type is 'Unigram'"),
        ({"model": {"dropout": 0.1}}, "dropout"),
        ({"model": {"merges": [["t", "h"], "x"]}}, "model.merges"),
        ({"model": {"vocab": {"a": -1}}}, "ids that are no numbers"),
        ({"model": {"vocab": {"a": 2**40}}}, "ids that are no numbers"),
        ({"model": {"vocab": {"a": 0, "b": 0}}}, "the id 0 to two tokens"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"pre_tokenizer": None}, "ByteLevel at the end"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer"),
        ({"added_tokens": [{"id": 3, "content": "other"}]}, "the id 3 to another token"),
    ],
)
def test_tokenizers_of_other_kinds_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(NybbleError, match=message) as raised:
        open_checkpoint(folder(tmp_path, byte_level(**change)))
    assert "tokenizer.json" in str(raised.value)


def test_a_regular_expression_of_a_stranger_is_never_run(tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    steps = [split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
    made = byte_level(pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    metadata = open_checkpoint(folder(tmp_path, made)).metadata
    with pytest.raises(UnsupportedFeature, match="none that nybble knows"):
        tokenizer_from_gguf(metadata, "toy")


@pytest.mark.parametrize("name", ["../decoder.onnx", "/etc/passwd", "", 7, "a/b.onnx"])
def test_the_decoder_must_lie_in_the_folder(tmp_path: Path, name: object) -> None:
    genai = {"model": {"decoder": {"filename": name}}}
    with pytest.raises(ModelFileError, match=r"decoder\.filename"):
        open_checkpoint(folder(tmp_path, byte_level(), genai_config=genai))


def test_a_folder_with_no_or_several_graphs(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="a folder without a model"):
        open_checkpoint(tmp_path)
    path = folder(tmp_path, byte_level(), genai_config=None, config={"eos_token_id": 259})
    assert open_checkpoint(path).metadata["tokenizer.ggml.eos_token_id"] == 259
    (path / "second.onnx").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"decoder\.onnx, second\.onnx"):
        open_checkpoint(path)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"model": NaN}', "[" * 100_000, "\ud800"])
def test_damaged_configurations_are_one_line(tmp_path: Path, text: str) -> None:
    path = folder(tmp_path, byte_level())
    (path / "genai_config.json").write_text(text, errors="surrogatepass")
    with pytest.raises(ModelFileError, match=r"genai_config\.json") as raised:
        open_checkpoint(path)
    assert "\n" not in str(raised.value)


def test_no_end_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="which token ends an answer"):
        open_checkpoint(
            folder(tmp_path, byte_level(), genai_config={"model": {"decoder": {"filename": "decoder.onnx"}}})
        )
