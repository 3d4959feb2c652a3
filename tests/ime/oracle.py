"""What each IME instruction computes, in numpy: written from the specification, apart from the C++.

Encodings are told by a table of masks, tiles are matrices, products are matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Registers = NDArray[np.uint8]

SIGNS = {"u": (False, False), "us": (False, True), "su": (True, False), "": (True, True)}
ORDER = ["u", "us", "su", ""]


@dataclass(frozen=True)
class Encoding:
    name: str
    """Mnemonic and type."""
    family: str
    fixed: int
    """The word with all fields zero."""
    mask: int
    """The bits that tell it from others."""
    bits: int = 8
    signs: tuple[bool, bool] = (True, True)
    slide: int = 0


def _encodings() -> list[Encoding]:
    rows = []
    for order, suffix in enumerate(ORDER):
        signs = SIGNS[suffix]
        for bits, type_field in ((8, 0xE0000000), (4, 0xC0000000)):
            kind = f"i{bits}"
            rows.append(
                Encoding(
                    f"smt.vmadot{suffix} {kind}",
                    "matrix",
                    type_field | 0x0200002B | order << 12,
                    0xFE00707F,
                    bits,
                    signs,
                )
            )
            rows.append(
                Encoding(
                    f"smt.vmadot{suffix}.sp {kind}",
                    "sparse",
                    type_field | 0x0800002B | order << 12,
                    0xFC00707F | (0x8000 if bits == 4 else 0),
                    bits,
                    signs,
                )
            )
            group = {"u": 3, "": 4, "su": 5, "us": 6}[suffix]
            rows.append(
                Encoding(
                    f"smt.vmadot{suffix}.hp {kind}", "scaled", type_field | group << 26 | 0x2B, 0xFC00007F, bits, signs
                )
            )
        for slide in (1, 2, 3):
            fixed = 0xE600002B | (slide - 1) << 14 | order << 12
            rows.append(Encoding(f"smt.vmadot{slide}{suffix} i8", "matrix", fixed, 0xFE00F07F, 8, signs, slide))
    for slide in range(4):
        name = f"smt.vfwmadot{slide or ''}"
        rows.append(Encoding(name, "floats", 0x9E00402B | slide << 12, 0xFE00707F, 16, slide=slide))
    for name, fixed in (
        ("vpack", 0x6600002B),
        ("vupack", 0x6600402B),
        ("vnpack", 0x6200002B),
        ("vnspack", 0x6200402B),
        ("vnpack4", 0x4200002B),
        ("vnspack4", 0x4200402B),
    ):
        rows.append(Encoding(f"smt.{name}.vv", name, fixed, 0xFE00407F))
    return rows


ENCODINGS = _encodings()


def decode(word: int) -> Encoding | None:
    found = [row for row in ENCODINGS if word & row.mask == row.fixed]
    assert len(found) <= 1, "encodings overlap"
    return found[0] if found else None


def numbers(data: Registers, bits: int, signed: bool) -> NDArray[np.int64]:
    """The elements of some bytes, in order."""
    values = data.reshape(-1).astype(np.int64)
    if bits == 4:
        values = np.stack([values % 16, values // 16], axis=-1).reshape(-1)
    return np.where(signed & (values >= 1 << (bits - 1)), values - (1 << bits), values)


def floats(data: Registers, bf16: bool) -> NDArray[np.float32]:
    raw = np.ascontiguousarray(data).reshape(-1)
    if not bf16:
        return raw.view(np.float16).astype(np.float32)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def rounded(values: NDArray[np.float32], bf16: bool) -> NDArray[np.uint16]:
    """To nearest, ties to even; any NaN becomes the canonical one."""
    with np.errstate(over="ignore"):
        if not bf16:
            bits = values.astype(np.float16).view(np.uint16)
            return np.where(np.isnan(values), np.uint16(0x7E00), bits)
    wide = values.view(np.uint32).astype(np.uint64)
    even = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), even)


class Illegal(Exception):
    pass


def run(profile: str, word: int, vtype: int, bf16: bool, registers: Registers) -> None:
    """Executes in place on registers [32, VLEN/8]; raises Illegal, leaving them as they were."""
    encoding = decode(word)
    if encoding is None:
        raise Illegal
    family = encoding.family
    if profile == "A60" and (family != "matrix" or encoding.bits != 8):
        raise Illegal
    if vtype >> 63 or vtype & 7:
        raise Illegal
    vd, vs1, vs2 = word >> 7 & 31, word >> 15 & 31, word >> 20 & 31
    parameter = word >> 25 & 1
    if encoding.slide and family == "matrix":
        vs1 &= ~1
    segment = (vs1 & 1) * 2 + (vd & 1)
    if family == "sparse":
        vs1, vd = vs1 & ~1, vd & ~1
    double_a = family == "sparse" or encoding.slide > 0
    double_d = family in ("matrix", "sparse", "floats", "vpack", "vupack")
    if (double_d and vd % 2) or (double_a and vs1 % 2):
        raise Illegal
    written = {vd, vd + 1} if double_d else {vd}
    read = ({vs1, vs1 + 1} if double_a else {vs1}) | {vs2}
    if family == "sparse":
        read.add(parameter)
    if family in ("matrix", "sparse", "scaled", "floats") and written & read:
        raise Illegal

    a = registers[vs1 : vs1 + 1 + double_a].copy()
    b = registers[vs2].copy()
    target = registers[vd : vd + 1 + double_d]
    rows = 4 if profile == "A60" else 8
    if family == "matrix":
        left = numbers(a, encoding.bits, encoding.signs[0])
        right = numbers(b, encoding.bits, encoding.signs[1]).reshape(rows, -1)
        depth = right.shape[1]
        left = left[encoding.slide * depth :][: rows * depth].reshape(rows, depth)
        _add(target, left @ right.T)
    elif family == "sparse":
        left = numbers(a, encoding.bits, encoding.signs[0]).reshape(8, -1, 4)
        right = numbers(b, encoding.bits, encoding.signs[1]).reshape(8, -1, 2)
        groups = left.shape[1]
        masks = numbers(registers[parameter], 4, False).reshape(-1, 8, groups)[segment]
        recovered = np.zeros((8, groups, 4), np.int64)
        for column in range(8):
            for group in range(groups):
                at = [bit for bit in range(4) if masks[column, group] >> bit & 1]
                if len(at) == 2:
                    recovered[column, group, at] = right[column, group]
        _add(target, left.reshape(8, -1) @ recovered.reshape(8, -1).T)
    elif family == "scaled":
        left = numbers(a, encoding.bits, encoding.signs[0]).reshape(8, -1)
        right = numbers(b, encoding.bits, encoding.signs[1]).reshape(8, -1)
        scales = floats(registers[parameter], bf16).reshape(8, 8)[word >> 12 & 7]
        before = floats(target, bf16).reshape(8, 8)
        sums = floats(rounded((left @ right.T).astype(np.float32), bf16).view(np.uint8), bf16).reshape(8, 8)
        with np.errstate(all="ignore"):
            after = sums * scales + before
        target[:] = rounded(after, bf16).view(np.uint8).reshape(target.shape)
    elif family == "floats":
        left = floats(a, bf16)[encoding.slide * 8 :][:64].reshape(8, 8)
        right = floats(b, bf16).reshape(8, 8)
        total = np.ascontiguousarray(target).view(np.float32).reshape(8, 8)
        with np.errstate(all="ignore"):
            for k in range(8):
                total = total + left[:, k, None] * right[None, :, k]
        bits = np.where(np.isnan(total), np.uint32(0x7FC00000), total.view(np.uint32))
        target[:] = bits.view(np.uint8).reshape(target.shape)
    else:
        _pack(encoding.name, word >> 12 & 3, 1 << (vtype >> 3 & 7), a.reshape(-1), b, target)


def _add(target: Registers, product: NDArray[np.int64]) -> None:
    before = np.ascontiguousarray(target).view(np.uint32).reshape(-1)
    after = (before + product.reshape(-1)) % (1 << 32)
    target[:] = after.astype(np.uint32).view(np.uint8).reshape(target.shape)


def _pack(name: str, unit: int, element: int, a: Registers, b: Registers, target: Registers) -> None:
    if name in ("smt.vpack.vv", "smt.vupack.vv"):
        piece = [element, 16, 32, 64][unit]
        if name == "smt.vpack.vv":
            target[:] = np.stack([a.reshape(-1, piece), b.reshape(-1, piece)], axis=1).reshape(target.shape)
        else:
            pieces = np.concatenate([a, b]).reshape(-1, 2, piece)
            target[:] = pieces.transpose(1, 0, 2).reshape(target.shape)
        return
    unit_bytes = 4 << unit
    saturating = "vns" in name
    if "4" in name:
        halves = [_narrowed(source.view(np.int8), 4, saturating) & 15 for source in (a, b)]
        joined = [(half[0::2] | half[1::2] << 4).astype(np.uint8).reshape(-1, unit_bytes) for half in halves]
    else:
        if element > 4 or 2 * element > unit_bytes:
            raise Illegal
        source_type, result_type = np.dtype(f"i{2 * element}"), np.dtype(f"u{element}")
        wide = [source.view(source_type).astype(np.int64) for source in (a, b)]
        narrow = [_narrowed(values, 8 * element, saturating).astype(result_type) for values in wide]
        joined = [values.view(np.uint8).reshape(-1, unit_bytes // 2) for values in narrow]
    target[:] = np.stack(joined, axis=1).reshape(target.shape)


def _narrowed(values: NDArray[np.signedinteger], bits: int, saturating: bool) -> NDArray[np.signedinteger]:
    most = (1 << (bits - 1)) - 1
    return np.clip(values, -most - 1, most) if saturating else values
