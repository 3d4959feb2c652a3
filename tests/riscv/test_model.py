"""Guards against: a package for riscv64 that does not run a real model as another machine does.

It is the command a user types, in a Python for riscv64 under QEMU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import nybble
from nybble.formats.open import open_checkpoint
from nybble.graph.ops import Linear
from nybble.models.build import build_graph

from .conftest import VLEN, Riscv

LONG = os.environ.get("NYBBLE_RISCV_MODEL") == "long"
KERNELS = os.environ.get("NYBBLE_RISCV_KERNELS", "rvv,ime1,ime2").split(",")
VLENS = [int(vlen) for vlen in os.environ.get("NYBBLE_RISCV_VLEN", "256").split(",")] if LONG else [256]
PROMPT, RAW, TOKENS = ("What is the capital of France?", False, 16) if LONG else ("The capital of France is", True, 2)

LOGITS = """
import sys, numpy, nybble
from nybble.engine import loading
isas = sys.argv[3].split(",")
loading.isas_of = lambda threads: isas
model = nybble.load(sys.argv[1], threads=len(isas))
numpy.save(sys.argv[2], model.logits([int(token) for token in sys.argv[4:]]))
"""
"""One thread for each instruction set that is given."""

LOGITS_ON_A_BOARD = """
import sys, numpy, nybble
from pathlib import Path
from nybble.engine import loading
from tests.machine import made_up
from tests.riscv.boards import Board
machine = made_up.k1(affinity={3, 4}) if sys.argv[3] == "k1" else made_up.k3()
loading.assemble = Board(machine, Path(sys.argv[4])).crew
crew = loading.start_threads(2)
print(*(f"{member.cpu}:{member.isas[0]}" for member in crew.members))
loading.start_threads = lambda threads: crew
numpy.save(sys.argv[2], nybble.load(sys.argv[1]).logits([int(token) for token in sys.argv[5:]]))
"""
"""Two threads: on a K1 in both clusters, on a K3 on the first two wide cores."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To PROMPT on this machine: tokens of prompt and answer, its text, and logits behind all tokens but the last."""

    prompt: list[int]
    ids: list[int]
    text: str
    logits: NDArray[np.float32]

    @property
    def read(self) -> list[int]:
        return [*self.prompt, *self.ids[:-1]]


@pytest.fixture(scope="module")
def answer(smollm2: nybble.LLM) -> Answer:
    stream = smollm2.stream(PROMPT, raw=RAW, max_tokens=TOKENS, temperature=0.0)
    text = stream.finish().text
    assert "Paris" in text
    logits = smollm2.logits([*stream.prompt, *stream.ids[:-1]])
    return Answer(list(stream.prompt), stream.ids, text, logits)


@dataclass(frozen=True, slots=True)
class Guest:
    """A riscv64 Python that keeps packed weights in ``cache``."""

    riscv: Riscv
    vlen: int
    cache: Path
    environment: Mapping[str, str]

    def python(self, *command: object, **environment: str) -> str:
        settings = {**self.environment, "XDG_CACHE_HOME": str(self.cache), **environment}
        outcome = self.riscv.python(self.vlen, *command, environment=settings)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    def check_run(self, model: Path, answer: Answer, isa: str, **environment: str) -> None:
        """`nybble run` gives the same tokens and text, on that instruction set, and leaves packed weights."""
        options = ["--json", "--temperature", "0", "--max-tokens", TOKENS, *(["--raw"] if RAW else [])]
        printed = self.python("-m", "nybble", "run", "--model", model, *options, PROMPT, **environment)
        told = json.loads(printed)
        print(f"VLEN {self.vlen}, {told['model']['isa']}: {told['text']!r}")
        assert told["ids"] == answer.ids
        assert told["text"] == answer.text
        assert told["model"]["isa"] == isa
        assert list((self.cache / "nybble" / "packed").glob("*.packed"))

    def logits(self, script: str, model: Path, answer: Answer, *arguments: object, **environment: str) -> str:
        """What a script prints that computes logits, which are those of this machine, bit for bit."""
        saved = self.cache / "logits.npy"
        printed = self.python("-c", script, model, saved, *arguments, *answer.read, **environment)
        np.testing.assert_array_equal(np.load(saved).view(np.uint32), answer.logits.view(np.uint32))
        return printed


def multiplications(counts: Path) -> int:
    """How many matrix instructions multiplied."""
    lines = (line.split("\t") for line in counts.read_text().splitlines())
    return sum(int(count) for name, count in lines if name.startswith("smt.vmadot"))


@pytest.mark.skipif("rvv" not in KERNELS, reason="other kernels are asked for")
@pytest.mark.parametrize("vlen", VLENS)
def test_answers_as_on_this_machine(
    riscv: Riscv, smollm2_path: Path, answer: Answer, tmp_path: Path, vlen: int
) -> None:
    """Then, from what that left in the packed cache, two threads that run different kernels: the same bits."""
    guest, best = Guest(riscv, vlen, tmp_path, {}), f"rvv{min(vlen, 512)}"
    guest.check_run(smollm2_path, answer, best)
    guest.logits(LOGITS, smollm2_path, answer, f"{best},rvv128")


@pytest.mark.parametrize(
    ("isa", "profile", "rows", "weights", "board", "threads"),
    [
        pytest.param("ime1", "A60", 4, 4 * 8, "k1", "3:ime1 4:rvv256", id="ime1"),
        # Of 4 bits; several rows multiply those twice, by the halves of their activations, and 8 bits are half as many.
        pytest.param("ime2", "A100", 8, 8 * 32, "k3", "8:ime2 10:ime2", id="ime2"),
    ],
)
def test_answers_with_matrix_instructions(
    riscv: Riscv,
    smollm2_path: Path,
    answer: Answer,
    tmp_path: Path,
    isa: str,
    profile: str,
    rows: int,
    weights: int,
    board: str,
    threads: str,
) -> None:
    """Each step multiplies all weights of the linears with them: an instruction as many, with so many rows. Then
    threads that are placed as on a board, from what the run left in the packed cache: on a K3 all have matrix
    instructions, on a K1 threads with and without them share the weights.
    """
    if isa not in KERNELS:
        pytest.skip("other kernels are asked for")
    guest = Guest(riscv, VLEN[profile], tmp_path, riscv.ime(profile))
    counts, gate = tmp_path / "counts", tmp_path / "set_ai_thread"
    graph = build_graph(open_checkpoint(smollm2_path))
    linears = (name for op in graph.ops if isinstance(op, Linear) for name in op.weights)
    of_a_row = sum(graph.tensors[name].elements for name in linears) // weights

    guest.check_run(smollm2_path, answer, isa, NYBBLE_IME_COUNTS=str(counts))
    print(f"{multiplications(counts)} matrix instructions, {of_a_row} at least for each of {len(answer.ids)} tokens")
    assert multiplications(counts) >= of_a_row * len(answer.ids)

    gate.touch()
    printed = guest.logits(LOGITS_ON_A_BOARD, smollm2_path, answer, board, gate, NYBBLE_IME_COUNTS=str(counts))
    tiles = -(-len(answer.read) // 8)
    expected = of_a_row * tiles * 8 // rows
    print(f"{multiplications(counts)} matrix instructions on a {board}, {expected} for {len(answer.read)} rows")
    assert printed == f"{threads}\n"
    assert gate.read_text() == ("0" if board == "k3" else "")
    if board == "k3":
        assert multiplications(counts) >= expected
    else:
        assert 0 < multiplications(counts) < expected, "both threads multiplied"
