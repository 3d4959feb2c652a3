"""SentencePiece vocabularies against slow encoders written from the definitions."""

import math
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import ModelFileError
from nybble.tokenizer.sentence_piece import merges_by_score

from .small import BYTE, CORPUS, NORMAL, USER_DEFINED, build, sentence_piece_metadata

WORDY = st.lists(st.one_of(st.sampled_from(CORPUS.split(" ")), st.text(" \nathe猫é<0x1>", max_size=5))).map(" ".join)
UNICODE = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def pieces_of(metadata: dict[str, object]) -> tuple[dict[str, int], dict[str, float], dict[int, int]]:
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ids = {text: token for token, text in enumerate(tokens) if kinds[token] == NORMAL}
    scores = {text: metadata["tokenizer.ggml.scores"][token] for text, token in ids.items()}
    octets = {int(text[3:5], 16): token for token, text in enumerate(tokens) if kinds[token] == BYTE}
    return ids, scores, octets


def with_fallback(pieces: list[str], ids: dict[str, int], octets: dict[int, int]) -> list[int]:
    """Ids of pieces; what is in no piece becomes bytes, or one unknown token for each run."""
    found: list[int] = []
    for piece in pieces:
        if piece in ids:
            found.append(ids[piece])
        elif octets:
            found += [octets[byte] for byte in piece.encode()]
        elif not found or found[-1] != 0:
            found.append(0)
    return found


def greedy(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece BPE by definition: join the best-scored neighbours, the leftmost of equals, until none is left."""
    symbols = list(text)
    while True:
        joined = enumerate(left + right for left, right in pairwise(symbols))
        joins = [(-scores[piece], at) for at, piece in joined if piece in scores]
        if not joins:
            return symbols
        at = min(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def bpe_reference(metadata: dict[str, object], text: str, prefix: bool) -> list[int]:
    ids, scores, octets = pieces_of(metadata)
    text = ("▁" if prefix and text else "") + text.replace(" ", "▁")
    return with_fallback(greedy(text, scores), ids, octets)


@pytest.mark.parametrize("byte_tokens", [True, False])
@pytest.mark.parametrize("prefix", [True, False])
def test_bpe_equals_the_definition(prefix: bool, byte_tokens: bool) -> None:
    """Guards against a wrong order of merges, of the added space, and of what becomes bytes."""
    metadata = sentence_piece_metadata(byte_tokens=byte_tokens) | {"tokenizer.ggml.add_space_prefix": prefix}
    tokenizer = build(metadata)

    @settings(max_examples=100)
    @given(st.one_of(WORDY, UNICODE))
    def check(text: str) -> None:
        assert tokenizer.encode(text) == bpe_reference(metadata, text, prefix)

    check()


@settings(max_examples=200)
@given(st.data())
def test_bpe_equals_the_definition_in_runs_of_one_string(data: st.DataObject) -> None:
    """Guards against ties: pieces of one letter can be made in several ways of equal score."""
    lengths = data.draw(st.lists(st.integers(2, 7), unique=True, max_size=4).map(sorted))
    # As trained: each piece is made of two that were there before it.
    reachable = [1]
    for length in lengths:
        if any(length - part in reachable for part in reachable):
            reachable.append(length)
    scores = {"a" * length: -float(place) for place, length in enumerate(reachable)} | {"b": -99.0, "▁": -98.0}
    metadata = sentence_piece_metadata(byte_tokens=False) | {
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *scores],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, *scores.values()],
        "tokenizer.ggml.token_type": [2, 3, 3, *[NORMAL] * len(scores)],
    }
    text = data.draw(st.text("ab", max_size=30))
    assert build(metadata).encode(text) == bpe_reference(metadata, text, True)


@pytest.mark.parametrize("prefix", [True, False])
def test_decoding_gives_the_text_back(prefix: bool) -> None:
    """Guards against a lost or an added leading space."""
    tokenizer = build(sentence_piece_metadata() | {"tokenizer.ggml.add_space_prefix": prefix})

    @settings(max_examples=100)
    @given(st.one_of(WORDY, UNICODE).filter(lambda text: "▁" not in text))
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


@pytest.mark.parametrize("text", ["</s>", "<s>", "<unk>", "<0x0A>", " unknown", "<|user|>"])
def test_no_text_becomes_a_control_or_byte_token(text: str) -> None:
    """Guards against spellings inside the encoder that a person could type."""
    tokenizer = build(sentence_piece_metadata(extra_controls=("<|user|>",)))
    ids = tokenizer.encode(text)
    assert not {0, 1, 2, 3} & set(ids)
    assert tokenizer.token_text(4 + 0x0A) == "<0x0A>"
    assert 4 + 0x0A not in ids
    assert tokenizer.decode(ids) == text


def test_each_part_after_a_control_token_gets_the_space() -> None:
    """What llama.cpp does, and with it the files made for it."""
    tokenizer = build(sentence_piece_metadata())
    assert tokenizer.encode_segments([1, "the", 2, "the"]) == [1, *tokenizer.encode("the"), 2, *tokenizer.encode("the")]


def test_the_beginning_of_sequence_is_there_once() -> None:
    """Guards against two of them (report 45 of the field)."""
    tokenizer = build(sentence_piece_metadata())
    assert tokenizer.adds_beginning_of_sequence
    assert tokenizer.encode("the", add_bos=True)[0] == 1
    assert tokenizer.encode_segments([1, "the"], add_bos=True).count(1) == 1
    silent = build(sentence_piece_metadata() | {"tokenizer.ggml.add_bos_token": False})
    assert 1 not in silent.encode("the", add_bos=True)


def test_user_defined_runs_of_spaces_are_found() -> None:
    """Files spell them with real spaces or with ▁; both are what a person types as spaces."""
    for spelling in ("   ", "▁▁▁"):
        tokenizer = build(
            sentence_piece_metadata(user_defined=(spelling,)) | {"tokenizer.ggml.add_space_prefix": False}
        )
        ids = tokenizer.encode("a   b")
        assert tokenizer.vocabulary - 1 in ids
        assert tokenizer.decode(ids) == "a   b"


def test_merges_of_a_large_vocabulary_are_found_quickly() -> None:
    """Guards against quadratic work in the number of pieces."""
    pieces = {f"{number:b}": number for number in range(32_000)}
    merges = merges_by_score(pieces, [-float(number) for number in range(32_000)])
    made = [pieces[left + right] for left, right in merges]
    assert made == sorted(made)
    assert len(merges) > 100_000


def unigram_metadata(byte_tokens: bool = True) -> dict[str, object]:
    metadata = sentence_piece_metadata(byte_tokens=byte_tokens, user_defined=("<tool>",))
    kinds = metadata["tokenizer.ggml.token_type"]
    scores = [-1.0 - (7 * token % 13) if kind == NORMAL else 0.0 for token, kind in enumerate(kinds)]
    return metadata | {"tokenizer.ggml.model": "t5", "tokenizer.ggml.scores": scores}


def best_segmentation(text: str, scores: dict[str, float]) -> float:
    """The best sum of scores by dynamic programming; a character in no piece costs the worst score and 10 more."""
    unknown = min(scores.values()) - 10.0
    best = [0.0] + [-math.inf] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(end):
            piece = text[start:end]
            score = scores.get(piece, unknown if len(piece) == 1 else -math.inf)
            best[end] = max(best[end], best[start] + score)
    return best[-1]


@settings(max_examples=150)
@given(WORDY)
def test_unigram_takes_the_best_segmentation(text: str) -> None:
    """Guards against wrong scores and a wrong spelling of spaces; of equally good ones any will do."""
    metadata = unigram_metadata()
    tokenizer = build(metadata)
    ids, scores, octets = pieces_of(metadata)
    found = tokenizer.encode(text)
    assert tokenizer.decode(found) == text
    unknown = min(scores.values()) - 10.0
    total = sum(scores[tokenizer.token_text(token)] for token in found if token in ids.values())
    spelled = b"".join(tokenizer.token_bytes(token) for token in found if token in octets.values()).decode()
    expected = best_segmentation(("▁" if text else "") + text.replace(" ", "▁"), scores)
    assert total + unknown * len(spelled) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["</s>", "<0x0A>", " 1", " 2", "<unk>"])
def test_unigram_text_never_becomes_a_control_or_byte_token(text: str) -> None:
    tokenizer = build(unigram_metadata())
    ids = tokenizer.encode(text)
    assert not {0, 1, 2, 3 + 0x0A} & set(ids)
    assert tokenizer.decode(ids) == text


def test_unigram_without_bytes_uses_the_unknown_token() -> None:
    tokenizer = build(unigram_metadata(byte_tokens=False))
    assert 0 in tokenizer.encode("猫猫")
    assert tokenizer.decode(tokenizer.encode("the 猫")) == "the "


def test_unigram_collapses_spaces_if_the_file_says_so() -> None:
    tokenizer = build(unigram_metadata() | {"tokenizer.ggml.remove_extra_whitespaces": True})
    assert tokenizer.decode(tokenizer.encode("  the   cat ")) == "the cat"
    assert tokenizer.encode("   ") == []


def character_map(source: str, target: str) -> list[int]:
    """A compiled character map that rewrites one ASCII character: a trie of 4-byte units, then the targets.

    Unit: bits 0 to 7 label, bit 8 "a value follows", bits 10 up offset; a value has bit 31 set.
    """
    units = [0] * 1024
    units[0] = 256 << 10
    node = 256 ^ ord(source)
    units[node] = ord(source) | 1 << 8 | 512 << 10
    units[node ^ 512] = 1 << 31 | 0
    trie = struct.pack("<1024I", *units)
    return list(struct.pack("<I", len(trie)) + trie + target.encode() + b"\0")


def test_unigram_applies_the_character_map() -> None:
    metadata = unigram_metadata() | {"tokenizer.ggml.precompiled_charsmap": character_map("Q", "t")}
    assert build(metadata).decode(build(metadata).encode("Qhe")) == "the"


@pytest.mark.parametrize("values", [[1, 2, 3], [300], [255, 255, 255, 127, 0, 0], character_map("Q", "t")[:1000]])
def test_malformed_character_maps_are_named(values: list[int]) -> None:
    """Guards against a crash outside Python's own exceptions."""
    metadata = unigram_metadata() | {"tokenizer.ggml.precompiled_charsmap": values}
    with pytest.raises(ModelFileError, match="precompiled_charsmap"):
        build(metadata)


def test_a_character_map_that_points_outside_itself_is_named() -> None:
    values = character_map("Q", "t")
    values[4 : 4 + 4] = list(struct.pack("<I", 0x1FFFFF << 10))
    tokenizer = build(unigram_metadata() | {"tokenizer.ggml.precompiled_charsmap": values})
    with pytest.raises(ModelFileError, match="points outside itself"):
        tokenizer.encode("Q")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.scores": None}, "missing"),
        ({"tokenizer.ggml.scores": [math.nan]}, "not a number"),
        ({"byte": "<0x0a>"}, "byte token 13 is spelled"),
        ({"kind": USER_DEFINED}, "255 byte tokens"),
    ],
)
def test_malformed_pieces_are_named(change: dict[str, object], message: str) -> None:
    metadata = sentence_piece_metadata()
    count = len(metadata["tokenizer.ggml.tokens"])
    if "byte" in change:
        metadata["tokenizer.ggml.tokens"][13] = change["byte"]
    elif "kind" in change:
        metadata["tokenizer.ggml.token_type"][13] = change["kind"]
    else:
        scores = change["tokenizer.ggml.scores"]
        metadata["tokenizer.ggml.scores"] = scores and scores * count
    with pytest.raises(ModelFileError, match=message):
        build(metadata)
