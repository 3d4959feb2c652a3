"""Hostile and careless vocabularies: each contradiction is one typed error that names its key."""

import logging
import re

import pytest

from nybble.errors import ModelFileError, UnsupportedFeature
from nybble.tokenizer.control_tokens import ControlTokens
from nybble.tokenizer.pre_tokenizers import PRE_TOKENIZERS

from .small import CONTROL, NORMAL, USER_DEFINED, build, byte_level_metadata, sentence_piece_metadata

LONG = "x" * 5000


def changed(**changes: object) -> dict[str, object]:
    metadata = byte_level_metadata()
    for name, value in changes.items():
        key = f"tokenizer.ggml.{name}"
        metadata[key] = value(metadata[key]) if callable(value) else value
        if metadata[key] is None:
            del metadata[key]
    return metadata


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "tokenizer.ggml.model: missing"),
        ({"model": 7}, "tokenizer.ggml.model: missing or not a text"),
        ({"tokens": None}, "no vocabulary"),
        ({"tokens": "abc"}, "is a str; expected a list"),
        ({"tokens": []}, "0 tokens"),
        ({"tokens": lambda tokens: [*tokens[:-1], 3]}, "not of type str"),
        ({"tokens": lambda tokens: [*tokens[:-1], LONG]}, "has 5000 characters"),
        ({"tokens": lambda tokens: [*tokens[:-1], tokens[5]]}, r"repeats token 5"),
        ({"token_type": lambda kinds: kinds[:-1]}, r"has \d+ elements, but tokenizer.ggml.tokens has"),
        ({"token_type": lambda kinds: [*kinds[:-1], 7]}, "unknown type 7"),
        ({"token_type": lambda kinds: [*kinds[:-1], -1]}, "unknown type -1"),
        ({"token_type": lambda kinds: [*kinds[:-1], 1.0]}, "not of type int"),
        ({"merges": None}, "merges: missing"),
        ({"merges": lambda merges: [*merges, "abc"]}, r"merge 60 is 'abc'"),
        ({"merges": lambda merges: [*merges, "a b c"]}, r"merge 60 is 'a b c'"),
        ({"merges": lambda merges: [*merges, "a "]}, "which is not in the vocabulary"),
        ({"merges": lambda merges: [*merges, "zz z"]}, "merge 60, 'zz' and 'z', needs 'zz'"),
        ({"merges": lambda merges: [*merges, "q q"]}, "needs 'qq'"),
        ({"bos_token_id": 1 << 20}, "expected a token id below"),
        ({"eos_token_id": -1}, "expected a token id below"),
        ({"eot_token_id": "1"}, "expected a token id below"),
        ({"eom_token_id": True}, "expected a token id below"),
        ({"unknown_token_id": 0xFFFFFFFF}, "expected a token id below"),
        ({"add_bos_token": 1}, "expected true or false"),
        ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is missing"),
    ],
)
def test_malformed_vocabularies_are_named(change: dict[str, object], message: str) -> None:
    """Guards against lengths and ids that are believed (G11)."""
    with pytest.raises(ModelFileError, match=message) as error:
        build(changed(**change))
    assert str(error.value).startswith("toy.gguf: tokenizer.ggml.")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [(["x"] * (1 << 20) + ["y"], NORMAL), (["x" * 4000 + str(n) for n in range(3000)], NORMAL)],
    ids=["count", "characters"],
)
def test_absurd_sizes_are_refused_before_work(tokens: list[str], kind: int) -> None:
    """Guards against a file that takes minutes to load."""
    with pytest.raises(ModelFileError, match=r"at most|expected 1 to"):
        build(changed(tokens=tokens, token_type=[kind] * len(tokens)))


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_too_many_matched_tokens_are_refused(kind: int) -> None:
    tokens = [f"token{number}" for number in range(40_000)]
    with pytest.raises(ModelFileError, match="control and user-defined tokens"):
        build(changed(tokens=tokens, token_type=[kind] * len(tokens)))


def test_several_empty_placeholders_are_accepted() -> None:
    """Converters leave them; they stand for nothing."""
    tokenizer = build(changed(tokens=lambda tokens: [*tokens, "", ""], token_type=lambda kinds: [*kinds, 1, 3]))
    assert tokenizer.decode([tokenizer.vocabulary - 1, tokenizer.vocabulary - 2]) == ""
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


def test_a_missing_pre_tokenizer_warns(caplog: pytest.LogCaptureFixture) -> None:
    """Guards against files without it running silently worse (report 44 of the field)."""
    with caplog.at_level(logging.WARNING):
        tokenizer = build(changed(pre=None))
    assert "tokenizer.ggml.pre is missing" in caplog.text
    assert tokenizer.encode("a1234") == build(changed(pre="default")).encode("a1234")


@pytest.mark.parametrize("change", [{"pre": "no-such-rules"}, {"pre": 3}, {"model": "bert"}])
def test_unknown_kinds_are_refused_and_the_known_named(change: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFeature, match=f"{next(iter(change.values()))!r} is not supported; nybble has .*gpt"):
        build(changed(**change))


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_builds_and_loses_nothing(name: str) -> None:
    """Guards against a pattern that does not compile, or drops what lies between its matches."""
    tokenizer = build(byte_level_metadata(pre=name))
    text = "Don't SHOUT: the 12345 cats’ naïve café, 猫が座った… 😀\r\n\r\n\t  x=y+1;  // ok  \n   "
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", ["default", "smollm", "llama-bpe", "tekken", "gpt-4o", "deepseek-llm", "deepseek-v3"])
def test_long_runs_take_linear_time(name: str) -> None:
    """Guards against patterns that backtrack (S6): quadratic ones take minutes here."""
    tokenizer = build(byte_level_metadata(pre=name))
    for unit in (" ", "a", "A", "1", "\n", " \n", "<", "Aa", "中", "'", "a\u0301", "\xa0 ", "!a", "\t\t."):
        text = (unit * 20_000)[:20_000] + "x"
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("text", "kind", "ends"),
    [
        ("<|endoftext|>", CONTROL, True),
        ("<|eot_id|>", CONTROL, True),
        ("</s>", CONTROL, True),
        ("<end_of_turn>", USER_DEFINED, True),
        ("<|eom_id|>", NORMAL, True),
        ("</s>", NORMAL, False),
        ("</s>", USER_DEFINED, False),
        ("<|custom|>", USER_DEFINED, False),
    ],
)
def test_end_tokens_are_all_that_end_a_turn(text: str, kind: int, ends: bool) -> None:
    """Guards against answers that run on because a file declares one end token of two."""
    metadata = changed(tokens=lambda tokens: [*tokens, text], token_type=lambda kinds: [*kinds, kind])
    tokenizer = build(metadata)
    last = tokenizer.vocabulary - 1
    assert (last in tokenizer.end_tokens) == ends
    assert 1 in tokenizer.end_tokens
    if text != "</s>" or kind == CONTROL:
        assert last not in tokenizer.encode(text)
        assert tokenizer.decode([last]) == ""


def test_declared_end_tokens_count() -> None:
    assert {0, 1, 5, 6} == build(changed(eot_token_id=5, eom_token_id=6, eos_token_id=0)).end_tokens


def test_sentence_piece_defaults_are_those_of_the_format() -> None:
    metadata = sentence_piece_metadata()
    for name in ("bos", "eos", "unknown"):
        del metadata[f"tokenizer.ggml.{name}_token_id"]
    tokenizer = build(metadata)
    assert (tokenizer.beginning_of_sequence, tokenizer.end_of_sequence) == (1, 2)


def test_the_longest_control_token_wins() -> None:
    control = ControlTokens({"<a": 1, "<a>": 2, "<a><": 3, "b": 4})
    assert control.split("x<a<a><<a>b<") == ["x", 1, 3, 2, 4, "<"]
    assert control.split("") == []
    assert ControlTokens({}).split("<a>") == ["<a>"]


@pytest.mark.parametrize(("text", "expected"), [("x<", True), ("x<a>y", True), ("y>", False), ("<c", False)])
def test_phrases_that_control_tokens_may_arise_from(text: str, expected: bool) -> None:
    assert ControlTokens({"<a>": 1, "<bb>": 2}).may_arise_from(text) == expected


def test_real_vocabulary_is_read_as_published(real_tokenizer) -> None:
    assert real_tokenizer.vocabulary == 49152
    assert real_tokenizer.end_tokens == {0, 2}
    assert not real_tokenizer.adds_beginning_of_sequence
    assert not re.search("[^ -~]", real_tokenizer.token_text(2))
