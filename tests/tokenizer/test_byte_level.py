"""Byte-level BPE against a slow encoder written from the definition, on small vocabularies and the real one."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import InvalidParameter
from nybble.tokenizer.tokenizer import Tokenizer

from .small import CORPUS, SPELLED, build, byte_level_metadata, merge_by_rank, spell

UNICODE = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
# What a character is may differ between the Unicode versions of Python and of the encoder; old ones are settled.
SETTLED = st.text(
    st.characters(exclude_categories=("Cs", "Cn")).filter(
        lambda c: unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
    ),
    max_size=60,
)
WORDY = st.lists(st.one_of(st.sampled_from(CORPUS.split(" ")), st.text(" \n\t'a1é猫😀<|", max_size=4))).map(" ".join)


def smollm_words(text: str) -> list[str]:
    """SmolLM's cutting in plain Python: single digits, then the rules of GPT-2, read off character by character."""
    words = []
    for run in _around_digits(text):
        while run:
            length = 1 if _is_number(run[0]) else _gpt2_length(run)
            words.append(run[:length])
            run = run[length:]
    return words


def _around_digits(text: str) -> list[str]:
    runs, run = [], ""
    for character in text:
        if _is_number(character):
            runs += [run, character]
            run = ""
        else:
            run += character
    return [run for run in [*runs, run] if run]


def _is_number(character: str) -> bool:
    return unicodedata.category(character)[0] == "N"


def _kind(character: str) -> str:
    if character in "\t\n\v\f\r\x85" or unicodedata.category(character)[0] == "Z":
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def _gpt2_length(text: str) -> int:
    for contraction in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if text.startswith(contraction):
            return len(contraction)
    start = 1 if text[0] == " " and len(text) > 1 and _kind(text[1]) != "space" else 0
    kind = _kind(text[start])
    end = start
    while end < len(text) and _kind(text[end]) == kind:
        end += 1
    # Of spaces before a word, the last is left to the word.
    return end - 1 if kind == "space" and end < len(text) and end - start > 1 else end


def reference(metadata: dict[str, object], text: str) -> list[int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {token: place for place, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    spellable = [c for c in text if all(SPELLED[byte] in ids for byte in c.encode())]
    words = smollm_words("".join(spellable))
    return [ids[piece] for word in words for piece in merge_by_rank(list(spell(word)), ranks)]


TOY = byte_level_metadata()
TOY_TOKENIZER = build(TOY)


@settings(max_examples=200)
@given(st.one_of(SETTLED, WORDY))
def test_toy_vocabulary_equals_the_definition(text: str) -> None:
    """Guards against a wrong cutting of words, a wrong order of merges, a wrong byte alphabet."""
    assert TOY_TOKENIZER.encode(text) == reference(TOY, text)


@settings(max_examples=60)
@given(st.one_of(SETTLED, WORDY))
def test_real_vocabulary_equals_the_definition(real_metadata, real_tokenizer: Tokenizer, text: str) -> None:
    """The same on a vocabulary nobody here made up."""
    assert real_tokenizer.encode(text) == reference(real_metadata, text)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
        ("\n", [198]),
    ],
)
def test_real_vocabulary_gives_published_ids(real_tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    """Ids other engines publish for SmolLM2: our definition and our encoder could share a mistake."""
    assert real_tokenizer.encode(text) == ids


@settings(max_examples=100)
@given(UNICODE)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert TOY_TOKENIZER.decode(TOY_TOKENIZER.encode(text)) == text


def test_unspellable_characters_are_left_out_whole() -> None:
    """Guards against broken characters: leaving out single bytes would keep the rest of the character."""
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index(SPELLED[0xF1])] = "[gone]"
    tokens[tokens.index(SPELLED[0x04])] = "[gone too]"
    tokenizer = build(metadata)
    assert tokenizer.decode(tokenizer.encode("a\U00050000b\x04c😀")) == "abc😀"


@pytest.mark.parametrize("text", ["<|im_end|>", "<|im_start|>user\n", "a<|im_end|><|im_end|>"])
def test_control_tokens_in_text_stay_text(text: str) -> None:
    """Guards against a person ending a turn (reports 51 of the field)."""
    ids = TOY_TOKENIZER.encode(text)
    assert not {0, 1} & set(ids)
    assert TOY_TOKENIZER.decode(ids) == text


def test_control_tokens_stay_text_even_where_whole_words_are_tokens() -> None:
    """Guards against the shortcut of Llama 3's kind, which takes a word that is a token as it stands."""
    tokenizer = build(byte_level_metadata(controls=("hello", "world"), pre="llama-bpe"))
    assert not {0, 1} & set(tokenizer.encode("hello world"))


def test_merges_to_a_control_token_are_not_used() -> None:
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    the = tokens.index(spell("the"))
    metadata["tokenizer.ggml.eos_token_id"] = the
    tokenizer = build(metadata)
    assert the not in tokenizer.encode("the")
    assert tokenizer.decode(tokenizer.encode("the")) == "the"


def test_user_defined_tokens_are_found_in_text() -> None:
    """They are ordinary text to the model (tool calls, runs of spaces), and decode to themselves."""
    tokenizer = build(byte_level_metadata(user_defined=("<tool_call>", "  ", "日本")))
    ids = tokenizer.encode("a  日本<tool_call>b")
    assert {tokenizer.vocabulary - 1, tokenizer.vocabulary - 2, tokenizer.vocabulary - 3} <= set(ids)
    assert tokenizer.decode(ids) == "a  日本<tool_call>b"


def test_lone_surrogates_are_refused() -> None:
    """JSON can carry them; no encoder can."""
    with pytest.raises(InvalidParameter, match="not valid Unicode"):
        TOY_TOKENIZER.encode("a\ud800")


@pytest.mark.parametrize("token", [-1, TOY_TOKENIZER.vocabulary])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    for call in (TOY_TOKENIZER.token_text, TOY_TOKENIZER.token_bytes, lambda id: TOY_TOKENIZER.decode([id])):
        with pytest.raises(InvalidParameter, match="outside the vocabulary"):
            call(token)
