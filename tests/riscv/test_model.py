"""Guards against: a package for riscv64 that does not run a real model as another machine does.

It is the command a user types, in a Python for riscv64 under QEMU.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import nybble

from .conftest import Riscv

LONG = os.environ.get("NYBBLE_RISCV_MODEL") == "long"
VLENS = [int(vlen) for vlen in os.environ.get("NYBBLE_RISCV_VLEN", "256").split(",")] if LONG else [256]
PROMPT, RAW, TOKENS = ("What is the capital of France?", False, 16) if LONG else ("The capital of France is", True, 4)

LOGITS = """
import sys, numpy, nybble
from nybble.engine import loading
isas = sys.argv[3].split(",")
loading.isas_of = lambda threads: isas
model = nybble.load(sys.argv[1], threads=len(isas))
numpy.save(sys.argv[2], model.logits([int(token) for token in sys.argv[4:]]))
"""
"""One thread for each instruction set that is given."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To PROMPT on this machine: the tokens of prompt and answer, and its text."""

    prompt: list[int]
    ids: list[int]
    text: str


@pytest.fixture(scope="module")
def answer(smollm2: nybble.LLM) -> Answer:
    stream = smollm2.stream(PROMPT, raw=RAW, max_tokens=TOKENS, temperature=0.0)
    text = stream.finish().text
    assert "Paris" in text
    return Answer(list(stream.prompt), stream.ids, text)


@pytest.mark.parametrize("vlen", VLENS)
def test_answers_as_on_this_machine(
    riscv: Riscv, smollm2: nybble.LLM, smollm2_path: Path, answer: Answer, tmp_path: Path, vlen: int
) -> None:
    """`nybble run` gives the same tokens. Then, from what it left in the packed cache, by two threads that run
    different kernels, as cores of a K1 do: the same bits.
    """
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    best = f"rvv{min(vlen, 512)}"
    options = ["--json", "--temperature", "0", "--max-tokens", TOKENS, *(["--raw"] if RAW else [])]
    outcome = riscv.python(vlen, "-m", "nybble", "run", "--model", smollm2_path, *options, PROMPT, environment=cache)
    assert outcome.returncode == 0, outcome.stderr
    told = json.loads(outcome.stdout)
    print(f"VLEN {vlen}, {told['model']['isa']}: {told['text']!r}")
    assert told["ids"] == answer.ids
    assert told["text"] == answer.text
    assert told["model"]["isa"] == best

    assert list((tmp_path / "nybble" / "packed").glob("*.packed"))
    ids, saved = [*answer.prompt, *answer.ids[:-1]], tmp_path / "logits.npy"
    outcome = riscv.python(vlen, "-c", LOGITS, smollm2_path, saved, f"{best},rvv128", *ids, environment=cache)
    assert outcome.returncode == 0, outcome.stderr
    np.testing.assert_array_equal(np.load(saved).view(np.uint32), smollm2.logits(ids).view(np.uint32))
