"""Streaming text: characters split over tokens, invalid bytes, stop strings cut anywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import InvalidParameter
from nybble.tokenizer.decode_stream import DecodeStream
from nybble.tokenizer.stop_strings import StopStrings
from nybble.tokenizer.tokenizer import Tokenizer

from .small import BYTE, SPELLED, build, byte_level_metadata, sentence_piece_metadata

BYTE_LEVEL = build(byte_level_metadata(user_defined=("<tool>",)))
SENTENCE_PIECE = build(sentence_piece_metadata())
KINDS = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte level", "sentence piece"])


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    spelled = {tokenizer.token_text(token): token for token in range(tokenizer.vocabulary)}
    return [spelled.get(f"<0x{byte:02X}>", spelled.get(SPELLED[byte], -1)) for byte in data]


def pushed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = DecodeStream(tokenizer)
    return [*map(stream.push, ids), stream.finish()]


def expected_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """All bytes at once, which needs no state."""
    data = b"".join(tokenizer.token_bytes(token) for token in ids)
    return data.removeprefix(b" " if tokenizer.strips_leading_space else b"").decode("utf-8", "replace")


@KINDS
def test_any_ids_stream_to_the_decoded_whole(tokenizer: Tokenizer) -> None:
    """Guards against lost, doubled or half characters, whatever the model says."""

    @settings(max_examples=200)
    @given(st.lists(st.integers(0, tokenizer.vocabulary - 1), max_size=30))
    def check(ids: list[int]) -> None:
        parts = pushed(tokenizer, ids)
        assert "".join(parts) == tokenizer.decode(ids) == expected_text(tokenizer, ids)
        for part in parts:
            part.encode()

    check()


@KINDS
def test_valid_text_is_never_shown_broken(tokenizer: Tokenizer) -> None:
    """A thousand characters of one to four bytes, one byte a token (reports 50 and 63 of the field)."""

    @settings(max_examples=50)
    @given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd▁"), max_size=20))
    def check(text: str) -> None:
        parts = pushed(tokenizer, byte_ids(tokenizer, text.encode()))
        assert "\ufffd" not in "".join(parts)
        assert "".join(parts) == (text.removeprefix(" ") if tokenizer.strips_leading_space else text)

    check()


@KINDS
def test_an_emoji_comes_with_its_last_byte_and_an_invalid_byte_is_marked(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, "😀".encode() + b"\xffA\xf0\x9f")
    assert pushed(tokenizer, ids) == ["", "", "", "😀", "\ufffd", "A", "", "", "\ufffd"]


@KINDS
def test_an_unfinished_character_is_marked_when_the_next_one_begins(tokenizer: Tokenizer) -> None:
    assert pushed(tokenizer, byte_ids(tokenizer, b"\xe7\x8cA"))[:3] == ["", "", "\ufffdA"]


@KINDS
def test_control_tokens_show_nothing_even_inside_a_character(tokenizer: Tokenizer) -> None:
    first, second = byte_ids(tokenizer, "é".encode())
    assert pushed(tokenizer, [1, first, 1, second, 1]) == ["", "", "", "é", "", ""]


def test_a_leading_space_belongs_to_text_that_goes_on() -> None:
    """Guards against "isParis" where a raw prompt is continued."""
    ids = SENTENCE_PIECE.encode("the cat")
    assert SENTENCE_PIECE.decode(ids) == "the cat"
    assert SENTENCE_PIECE.decode(ids, after_text=True) == " the cat"
    assert "".join(map(DecodeStream(SENTENCE_PIECE, after_text=True).push, ids)) == " the cat"
    assert SENTENCE_PIECE.decode([1, *ids]) == "the cat"


def test_byte_tokens_exist_in_the_toy() -> None:
    """Guards the tests above against testing nothing."""
    kinds = sentence_piece_metadata()["tokenizer.ggml.token_type"]
    assert isinstance(kinds, list)
    assert kinds.count(BYTE) == 256
    assert -1 not in byte_ids(BYTE_LEVEL, bytes(range(256)))


def first_complete(text: str, stops: list[str]) -> str:
    """What is before the first stop string to be complete, by trying every length."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@settings(max_examples=400)
@given(st.lists(st.text("ab", max_size=4), max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_strings_do_not_depend_on_how_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    """Guards against a stop string shown in part, missed across pieces, or text never shown."""
    stream = StopStrings(stops)
    shown = ""
    stopped = False
    for piece in pieces:
        text, stopped = stream.push(piece)
        shown += text
        assert not any(stop in shown for stop in stops)
    whole = "".join(pieces)
    assert stopped == any(stop in whole for stop in stops)
    held = stream.finish()
    assert shown + held == first_complete(whole, stops)
    assert held == "" or any(stop.startswith(held) for stop in stops)


def test_text_is_shown_as_soon_as_no_stop_string_can_claim_it() -> None:
    stream = StopStrings(["</end>"])
    assert stream.push("one </e") == ("one ", False)
    assert stream.push("ar> two") == ("</ear> two", False)
    assert stream.push(" </end> three") == (" ", True)
    assert stream.push("four") == ("", True)
    assert stream.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="empty"):
        StopStrings(["a", ""])
