"""Guards against: reads outside the range, wrapped sizes, allocations taken from a claimed length, wrong endianness."""

from __future__ import annotations

import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nybble.errors import ModelFileError
from nybble.formats.cursor import Cursor

NUMBERS = {
    "u8": ("<B", st.integers(0, 2**8 - 1)),
    "i8": ("<b", st.integers(-(2**7), 2**7 - 1)),
    "u16": ("<H", st.integers(0, 2**16 - 1)),
    "i16": ("<h", st.integers(-(2**15), 2**15 - 1)),
    "u32": ("<I", st.integers(0, 2**32 - 1)),
    "i32": ("<i", st.integers(-(2**31), 2**31 - 1)),
    "u64": ("<Q", st.integers(0, 2**64 - 1)),
    "i64": ("<q", st.integers(-(2**63), 2**63 - 1)),
    "f32": ("<f", st.floats(width=32, allow_nan=False)),
    "f64": ("<d", st.floats(allow_nan=False)),
}


def cursor_over(octets: bytes) -> Cursor:
    return Cursor(memoryview(octets), "toy")


@pytest.mark.parametrize("method", NUMBERS)
@given(data=st.data())
def test_numbers_are_little_endian_at_any_offset_and_never_cut(method: str, data: st.DataObject) -> None:
    code, values = NUMBERS[method]
    value, before = data.draw(values), data.draw(st.binary(max_size=9))
    packed = struct.pack(code, value)
    cursor = cursor_over(before + packed)
    cursor.skip(len(before), "before")
    assert getattr(cursor, method)("value") == value
    assert cursor.remaining == 0
    for kept in range(len(packed)):
        cursor = cursor_over(before + packed[:kept])
        cursor.skip(len(before), "before")
        with pytest.raises(ModelFileError, match=rf"toy: value \(byte {len(before)}\): needs {len(packed)} bytes"):
            getattr(cursor, method)("value")
        assert cursor.position == len(before)


def test_not_a_number_passes() -> None:
    assert math.isnan(cursor_over(struct.pack("<f", math.nan)).f32("value"))


@pytest.mark.parametrize("octet", range(256))
def test_booleans_are_only_zero_or_one(octet: int) -> None:
    cursor = cursor_over(bytes([octet]))
    if octet < 2:
        assert cursor.boolean("flag") is bool(octet)
    else:
        with pytest.raises(ModelFileError, match=r"flag \(byte 0\): a boolean is 0 or 1"):
            cursor.boolean("flag")


@given(st.integers(-(2**70), 2**70))
def test_skip_stays_inside(count: int) -> None:
    cursor = cursor_over(bytes(10))
    if 0 <= count <= 10:
        assert cursor.skip(count, "gap") == 0
        assert cursor.position == count
    else:
        with pytest.raises(ModelFileError):
            cursor.skip(count, "gap")


@given(st.integers(0, 40), st.sampled_from([1, 2, 8, 32]))
def test_align_moves_to_the_next_multiple_or_fails(position: int, multiple: int) -> None:
    cursor = Cursor(memoryview(bytes(40)), "toy", position)
    target = math.ceil(position / multiple) * multiple
    if target <= 40:
        cursor.align(multiple, "padding")
        assert cursor.position == target
    else:
        with pytest.raises(ModelFileError):
            cursor.align(multiple, "padding")


def test_a_sub_range_ends_where_it_says_and_keeps_file_offsets() -> None:
    outer = cursor_over(bytes(range(20)))
    outer.skip(4, "head")
    inner = outer.sub_range(8, "field 7")
    assert outer.position == 12
    assert inner.u32("inner") == int.from_bytes(bytes(range(4, 8)), "little")
    with pytest.raises(ModelFileError, match=r"inner \(byte 8\): needs 8 bytes but field 7 ends after 4"):
        inner.u64("inner")
    with pytest.raises(ModelFileError):
        outer.sub_range(9, "too long")


def test_a_range_outside_the_data_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="not inside"):
        Cursor(memoryview(bytes(4)), "toy", 0, 5)


@given(st.binary(max_size=40), st.integers(0, 2**64 - 1), st.integers(0, 30))
def test_text_is_valid_utf8_within_length_and_limit(octets: bytes, claimed: int, limit: int) -> None:
    for length in {claimed, len(octets), limit}:
        cursor = cursor_over(struct.pack("<Q", length) + octets)
        try:
            expected = octets[:length].decode() if length <= min(len(octets), limit) else None
        except UnicodeDecodeError:
            expected = None
        if expected is None:
            with pytest.raises(ModelFileError):
                cursor.prefixed_text("name", limit)
        else:
            assert cursor.prefixed_text("name", limit) == expected


@given(st.lists(st.text(max_size=6), max_size=20), st.integers(0, 60))
def test_many_texts_read_as_each_one_would(texts: list[str], flipped: int) -> None:
    packed = bytearray(b"".join(struct.pack("<Q", len(text.encode())) + text.encode() for text in texts))
    cursor = cursor_over(bytes(packed))
    assert cursor.prefixed_texts(len(texts), "tokens", 24) == texts
    assert cursor.remaining == 0
    if flipped < len(packed):
        packed[flipped] ^= 0xFF
        one_by_one, together = cursor_over(bytes(packed)), cursor_over(bytes(packed))
        try:
            expected: list[str] | None = [one_by_one.prefixed_text("token", 24) for _ in texts]
        except ModelFileError:
            expected = None
        if expected is None:
            with pytest.raises(ModelFileError, match="token"):
                together.prefixed_texts(len(texts), "tokens", 24)
        else:
            assert together.prefixed_texts(len(texts), "tokens", 24) == expected


def test_the_error_of_many_texts_names_the_element_and_its_byte() -> None:
    packed = struct.pack("<Q", 2) + b"ok" + struct.pack("<Q", 3) + b"a\xffz"
    with pytest.raises(ModelFileError, match=r"tokens\[1\] \(byte 19\): not valid UTF-8"):
        cursor_over(packed).prefixed_texts(2, "tokens", 100)


def test_the_limit_holds_for_each_of_many_texts() -> None:
    packed = b"".join(struct.pack("<Q", size) + b"x" * size for size in (5, 6))
    assert cursor_over(packed).prefixed_texts(2, "tokens", 6) == ["xxxxx", "xxxxxx"]
    with pytest.raises(ModelFileError, match=r"tokens\[1\] .*a string of 6 bytes is longer than the 5 allowed"):
        cursor_over(packed).prefixed_texts(2, "tokens", 5)


@pytest.mark.parametrize("count", [3, 2**31, 2**61, 2**63, 2**64 - 1])
def test_counts_are_checked_before_anything_is_allocated(count: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=f"{count} elements of at least 8 bytes each"):
            cursor_over(bytes(17)).numbers("<f8", count, "array")
        with pytest.raises(ModelFileError, match=f"{count} elements of at least 8 bytes each"):
            cursor_over(bytes(17)).prefixed_texts(count, "array", 100)
        with pytest.raises(ModelFileError, match=f"needs {8 * count} bytes"):
            cursor_over(bytes(17)).raw(8 * count, "array")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_numbers_view_the_file() -> None:
    octets = struct.pack("<x3i", -1, 0, 2**31 - 1)
    cursor = cursor_over(octets)
    cursor.skip(1, "gap")
    numbers = cursor.numbers("<i4", 3, "array")
    assert numbers.tolist() == [-1, 0, 2**31 - 1]
    assert not numbers.flags.writeable
    assert np.shares_memory(numbers, np.frombuffer(octets, np.uint8))


@given(st.lists(st.integers(0, 2**64), max_size=5), st.sampled_from([100, 2**63 - 1, 2**64 - 1]))
def test_products_and_sums_do_not_pass_their_limit(terms: list[int], limit: int) -> None:
    cursor = cursor_over(b"")
    for operation, expected in ((cursor.multiply, math.prod(terms)), (cursor.add, sum(terms))):
        # A product may pass the limit on the way and return to zero; native code would have wrapped by then.
        if expected <= limit and 0 not in terms:
            assert operation("size", *terms, limit=limit) == expected
        elif expected > limit:
            with pytest.raises(ModelFileError, match="is not within"):
                operation("size", *terms, limit=limit)
