"""Guards against: an IME instruction decoded as another, or computing what the specification does not say."""

from __future__ import annotations

import numpy as np
import pytest

from nybble import _ime

from . import oracle

E8, E16, E32 = 0, 1 << 3, 2 << 3

# As LLVM's assembler encodes them, and binutils disassembles them.
GOLDEN = {
    0xE280382B: "smt.vmadot v16, v0, v8, i8",
    0xE290892B: "smt.vmadotu v18, v1, v9, i8",
    0xE2A12A2B: "smt.vmadotsu v20, v2, v10, i8",
    0xE2B19B2B: "smt.vmadotus v22, v3, v11, i8",
    0xE6C83C2B: "smt.vmadot1 v24, v16, v12, i8",
    0xE64C702B: "smt.vmadot2 v0, v24, v4, i8",
    0xE680B12B: "smt.vmadot3 v2, v0, v8, i8",
    0xE210382B: "smt.vmadot v16, v0, v1, i8",
    0xE210312B: "smt.vmadot v2, v0, v1, i8",
    0xC22FB02B: "smt.vmadot v0, v31, v2, i4",
    0xE22FB02B: "smt.vmadot v0, v31, v2, i8",
    0xC88138AB: "smt.vmadot.sp v16, v2, v8, v0, 1, i4",
    0xEA81B82B: "smt.vmadot.sp v16, v2, v8, v1, 2, i8",
    0xD081382B: "smt.vmadot.hp v16, v2, v8, v0, 3, i4",
    0xF281482B: "smt.vmadot.hp v16, v2, v8, v1, 4, i8",
    0x9E62412B: "smt.vfwmadot v2, v4, v6",
    0x625190AB: "smt.vnpack.vv v1, v3, v5, 1",
    0x425190AB: "smt.vnpack4.vv v1, v3, v5, 1",
    0x4251D0AB: "smt.vnspack4.vv v1, v3, v5, 1",
    0x6652112B: "smt.vpack.vv v2, v4, v5, 1",
    0x6652512B: "smt.vupack.vv v2, v4, v5, 1",
    0xC304312B: "smt.vmadot v2, v8, v16, i4",
    0xE704012B: "smt.vmadot1u v2, v8, v16, i8",
    0xE704512B: "smt.vmadot2us v2, v8, v16, i8",
    0xE704A12B: "smt.vmadot3su v2, v8, v16, i8",
    0xC904212B: "smt.vmadotsu.sp v2, v8, v16, v0, 0, i4",
    0xCD04012B: "smt.vmadotu.hp v2, v8, v16, v0, 0, i4",
    0xD504012B: "smt.vmadotsu.hp v2, v8, v16, v0, 0, i4",
    0xF904012B: "smt.vmadotus.hp v2, v8, v16, v0, 0, i8",
    0x9F04712B: "smt.vfwmadot3 v2, v8, v16",
    0x6304412B: "smt.vnspack.vv v2, v8, v16, 0",
    0x4304412B: "smt.vnspack4.vv v2, v8, v16, 0",
}


def registers(profile: str) -> oracle.Registers:
    return np.zeros((32, 32 if profile == "A60" else 128), np.uint8)


def put(into: oracle.Registers, first: int, values: object, dtype: str) -> None:
    data = np.asarray(values).astype(dtype).reshape(-1).view(np.uint8)
    into.reshape(-1)[first * into.shape[1] :][: data.size] = data


def both(profile: str, word: int, state: oracle.Registers, vtype: int = E8) -> oracle.Registers:
    """The registers after the word, when C++ and numpy agree."""
    ours, theirs = state.copy(), state.copy()
    assert _ime.run(profile, word, vtype, False, ours) is None
    oracle.run(profile, word, vtype, False, theirs)
    assert np.array_equal(ours, theirs)
    return ours


@pytest.mark.parametrize(
    ("word", "text"), GOLDEN.items(), ids=lambda value: f"{value:x}" if isinstance(value, int) else ""
)
def test_words_are_what_assemblers_make_of_them(word: int, text: str) -> None:
    assert _ime.assembly(word) == text


def test_there_are_46_instructions() -> None:
    assert len(set(_ime.instructions())) == 46
    assert {row.name for row in oracle.ENCODINGS} == set(_ime.instructions())


def test_any_word_of_the_opcode_is_the_same_instruction_to_both() -> None:
    """Every class of the encoding, with random registers; and words of other opcodes are none."""
    random = np.random.default_rng(1)
    seen = set()
    for upper in range(1 << 7):
        for funct3 in range(8):
            for fields in random.integers(0, 1 << 15, 24).tolist():
                word = upper << 25 | (fields >> 5) << 15 | funct3 << 12 | (fields & 31) << 7 | 0x2B
                row = oracle.decode(word)
                assert _ime.name(word) == (row.name if row else None), f"{word:#x}"
                seen.add(_ime.name(word))
    assert len(seen) == 47
    assert all(_ime.name(word) is None for word in random.integers(0, 1 << 32, 1000).tolist() if word & 0x7F != 0x2B)


def test_the_specifications_example_of_vmadot_and_its_slides() -> None:
    state = registers("A60")
    a = [[start + k for k in range(8)] for start in (0, 1, 2, 4, 5, 6)]
    put(state, 0, a, "i1")
    put(state, 8, [[0, 1, 2, 3, 4, 5, 6, 7], range(1, 9), range(2, 10), [11, 4, 5, 6, 7, 8, 9, 10]], "i1")
    state = both("A60", 0xE280382B, state)
    rows = [[140, 168, 196, 224], [168, 204, 240, 284], [196, 240, 284, 344], [252, 312, 372, 464]]
    assert state[16:18].view(np.int32).reshape(4, 4).tolist() == rows
    state = both("A60", 0xE680382B, state)  # vmadot1 v16, v0, v8
    # The document prints 224 in the upper right corner, where its other cells imply 508.
    rows = [[308, 372, 436, 508], [364, 444, 524, 628], [448, 552, 656, 808], [532, 660, 788, 988]]
    assert state[16:18].view(np.int32).reshape(4, 4).tolist() == rows
    state = both("A60", 0xE680782B, state)  # vmadot2 v16, v0, v8
    rows = [[504, 612, 720, 852], [616, 756, 896, 1092], [728, 900, 1072, 1332], [840, 1044, 1248, 1572]]
    assert state[16:18].view(np.int32).reshape(4, 4).tolist() == rows


def test_the_specifications_example_of_block_scales() -> None:
    state = registers("A100")
    tile = np.arange(16) + np.arange(8)[:, None]
    put(state, 2, tile, "i1")
    put(state, 8, tile, "i1")
    put(state, 0, np.arange(1, 9), "f2")
    after = both("A100", 0xF081082B, state)  # vmadot.hp v16, v2, v8, v0, 0, i8
    result = after[16].view(np.float16).reshape(8, 8)
    assert result[0].tolist() == [1240, 2720, 4440, 6400, 8600, 11040, 13720, 16640]
    assert np.array_equal(result, ((tile @ tile.T) * np.arange(1, 9)).astype(np.float16))


def test_the_specifications_example_of_sparse_matrices() -> None:
    state = registers("A100")
    starts = [0, 16, 1, 17, 2, 18, 3, 18, 4, 19, 5, 20, 6, 21, 7, 22]
    put(state, 2, [[start + k for k in range(16)] for start in starts], "i1")
    right = np.arange(16) + np.arange(8)[:, None]
    right[7, 3] = 0  # as in the document's program, which made its results
    put(state, 8, right, "i1")
    put(state, 0, np.repeat([0x99, 0xAA, 0xCC, 0x55, 0x66, 0x33, 0x99, 0xAA], 4), "u1")
    after = both("A100", 0xE881382B, state)  # vmadot.sp v16, v2, v8, v0, 0, i8
    rows = after[16:18].view(np.int32).reshape(8, 8)
    assert rows[0].tolist() == [2544, 2856, 3184, 3200, 3528, 3576, 4032, 4322]
    assert rows[3].tolist() == [2812, 3164, 3532, 3588, 3956, 4044, 4540, 4840]
    assert rows[7].tolist() == [3292, 3708, 4140, 4260, 4692, 4844, 5404, 5728]


def test_published_kernels_split_activations_as_we_pack() -> None:
    """vnpack4 and vupack as SpacemiT chains them: low nibbles of bytes in one register, high in another."""
    state = registers("A100")
    values = np.random.default_rng(2).integers(0, 256, 128, np.uint8)
    put(state, 0, values, "u1")
    put(state, 1, values >> 4, "u1")
    state = both("A100", 0x4210362B, state)  # vnpack4.vv v12, v0, v1, 3
    state = both("A100", 0x66C6612B, state)  # vupack.vv v2, v12, v12, 2
    low, high = values & 15, values >> 4
    for register, nibbles in ((2, low), (3, high)):
        assert np.array_equal(state[register, :64], nibbles[0::2] | nibbles[1::2] << 4)


@pytest.mark.parametrize("profile", ["A60", "A100"])
@pytest.mark.parametrize("row", oracle.ENCODINGS, ids=lambda row: row.name.replace(" ", "-"))
def test_random_words(profile: str, row: oracle.Encoding) -> None:
    """Any fields, any vtype, any data, floats included: both refuse, or both compute the same bits."""
    random = np.random.default_rng(sum(map(ord, row.name + profile)))
    legal = 0
    for turn in range(60):
        word = row.fixed | int(random.integers(0, 1 << 32)) & ~row.mask
        vtype = int(random.choice([E8, E16, E32, 3 << 3]))
        if turn % 8 == 0:
            vtype = int(random.choice([vtype | 1, vtype | 5, 1 << 63]))
        if turn % 2 and row.family not in ("vpack", "vupack", "vnpack", "vnspack", "vnpack4", "vnspack4"):
            # No overlap: vd in v16..v31, the others below.
            word = (word | 1 << 11) & ~(1 << 24 | 1 << 19)
            if row.family != "sparse":
                word &= ~(1 << 7)
        state = random.integers(0, 256, registers(profile).shape, np.uint8)
        ours, theirs = state.copy(), state.copy()
        bf16 = bool(turn & 4)
        reason = _ime.run(profile, word, vtype, bf16, ours)
        try:
            oracle.run(profile, word, vtype, bf16, theirs)
        except oracle.Illegal:
            assert reason is not None, f"{word:#x} {vtype:#x}"
        else:
            assert reason is None, f"{word:#x} {vtype:#x}"
            legal += 1
        assert np.array_equal(ours, theirs), f"{word:#x} {vtype:#x}"
    assert legal > 10 if profile == "A100" or (row.family == "matrix" and row.bits == 8) else legal == 0


def test_sums_wrap_around() -> None:
    state = registers("A60")
    put(state, 0, [-128] * 32, "i1")
    put(state, 8, [-128] * 32, "i1")
    put(state, 16, [2**31 - 1] * 16, "i4")
    after = both("A60", 0xE280382B, state)
    assert set(after[16:18].view(np.int32).reshape(-1).tolist()) == {8 * 128 * 128 + 2**31 - 1 - 2**32}
