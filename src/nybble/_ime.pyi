"""Types of the extension that executes SpacemiT's IME instructions on any machine (native/bindings/ime.cpp)."""

import numpy as np
from numpy.typing import NDArray

def instructions() -> list[str]:
    """Mnemonic and type of all 46, as "smt.vmadot i8"."""

def name(word: int) -> str | None:
    """Which of instructions() a 32-bit word is; None for none."""

def assembly(word: int) -> str | None:
    """The word as assembly text; None where it is no IME instruction."""

def run(profile: str, word: int, vtype: int, bf16: bool, registers: NDArray[np.uint8]) -> str | None:
    """Execute a word on registers, uint8 [32, VLEN/8], in place; profile "A60" (VLEN 256) or "A100" (VLEN 1024).

    Returns why the word is illegal, in which case nothing changed, or None. bf16: 16-bit floats are bf16, not fp16.
    """
