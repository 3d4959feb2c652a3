"""How much a model has to read and multiply, and so how fast it could be at best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import _native
from ..engine.session import STEP_TOKENS
from ..graph.kv_type import KVType
from ..graph.ops import Linear
from ..graph.plan import Plan
from .cases import Case


@dataclass(frozen=True, slots=True)
class LinearWork:
    """Some linears: their packed ``bytes``, and multiply-adds for each row, of int8 and of fp32 activations."""

    bytes: int
    int8_products: int
    fp32_products: int

    def __add__(self, other: LinearWork) -> LinearWork:
        return LinearWork(
            self.bytes + other.bytes,
            self.int8_products + other.int8_products,
            self.fp32_products + other.fp32_products,
        )


NO_WORK = LinearWork(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of ``rows`` tokens, with logits of ``outputs`` of them, that reads ``positions`` of the KV cache."""

    rows: int
    outputs: int
    positions: float


@dataclass(frozen=True, slots=True)
class Work:
    """The linears of all layers (``body``), and the output ``head`` that is computed for outputs only.

    That the last layer leaves out what no output needs is not taken into account: it is our gain. ``kv_bytes`` is what
    one position of the KV cache takes. Embedding rows and norms do not count. ``step_rows`` is
    the most tokens of a prompt computed in one step.
    """

    body: LinearWork
    head: LinearWork
    kv_bytes: float
    step_rows: int = STEP_TOKENS

    def seconds(self, case: Case, ceilings: Mapping[str, float], *, with_kv: bool) -> float:
        """The least time for ``case``: each step's reading or multiplying, whichever takes longer.

        ``ceilings`` has the names of :class:`~nybble.bench.ceilings.Ceilings`. Attention and all that is not linear is
        taken to cost nothing, but for the KV cache read while generating if ``with_kv``.
        """
        return sum(count * max(self._times(step, ceilings, with_kv)) for step, count in steps(case, self.step_rows))

    def bound(self, case: Case, ceilings: Mapping[str, float]) -> str:
        """What takes more of the least time for ``case``: ``memory`` or ``arithmetic``."""
        times = [(*self._times(step, ceilings, False), count) for step, count in steps(case, self.step_rows)]
        reading = sum(count * read for read, multiplied, count in times if read >= multiplied)
        multiplying = sum(count * multiplied for read, multiplied, count in times if read < multiplied)
        return "memory" if reading >= multiplying else "arithmetic"

    def weight_bytes(self, case: Case) -> float:
        """Packed bytes read for ``case``, per token."""
        return sum(count * self._bytes(step, False) for step, count in steps(case, self.step_rows)) / case.tokens

    def cache_bytes(self, case: Case) -> float:
        """Bytes of the KV cache read while generating, per token."""
        return sum(count * self.kv_bytes * step.positions for step, count in steps(case, self.step_rows)) / case.tokens

    def products(self, case: Case) -> float:
        """Multiply-adds of the linears, per token."""
        total = 0
        for step, count in steps(case, self.step_rows):
            products = self._products(step)
            total += count * (products.int8_products + products.fp32_products)
        return total / case.tokens

    def _times(self, step: Step, ceilings: Mapping[str, float], with_kv: bool) -> tuple[float, float]:
        """Seconds of reading and of multiplying."""
        products = self._products(step)
        multiplying = products.int8_products / ceilings["int8_peak"] + products.fp32_products / ceilings["fp32_peak"]
        return self._bytes(step, with_kv) / ceilings["read_bandwidth"], multiplying

    def _bytes(self, step: Step, with_kv: bool) -> float:
        weights = self.body.bytes + (self.head.bytes if step.outputs else 0)
        return weights + (self.kv_bytes * step.positions if with_kv else 0)

    def _products(self, step: Step) -> LinearWork:
        return LinearWork(
            0,
            step.rows * self.body.int8_products + step.outputs * self.head.int8_products,
            step.rows * self.body.fp32_products + step.outputs * self.head.fp32_products,
        )


def steps(case: Case, step_rows: int) -> Iterator[tuple[Step, int]]:
    """The steps of ``case``, each with how often it occurs; the KV positions are those of the mean step.

    Those a prompt reads are not counted: each is used for many rows.
    """
    for begin in range(0, case.prompt, step_rows):
        rows = min(step_rows, case.prompt - begin)
        yield Step(rows, 1 if begin + rows == case.prompt else 0, 0), 1
    if case.generated:
        positions = case.depth + case.prompt + (case.generated + 1) / 2
        yield Step(case.batch, case.batch, case.batch * positions), case.generated


def work_of(plan: Plan, kv: KVType = KVType.FP16) -> Work:
    """The work of a planned model."""
    body = head = NO_WORK
    for op in plan.graph.ops:
        if not isinstance(op, Linear):
            continue
        matrix = plan.matrices[op.weights]
        products = matrix.n * matrix.k
        is_int8 = plan.choices[op.label].kernel.activations == "int8"
        work = LinearWork(matrix.bytes, products if is_int8 else 0, 0 if is_int8 else products)
        if op.output == plan.graph.logits:
            head += work
        else:
            body += work
    graph, positions = plan.graph, 1 << 12
    cache_bytes = _native.KVCache.bytes_for(graph.layers, graph.kv_heads, graph.head_dim, positions, kv.value)
    return Work(body, head, cache_bytes / positions)
