"""Guards against: figures that are not what loading takes, and a machine that is filled to the brim by surprise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import nybble
from nybble import _native
from nybble.engine import loading
from nybble.engine.loading import plan_file
from nybble.engine.memory import SMALLEST_CONTEXT, memory_needed
from nybble.engine.session import STEP_TOKENS
from nybble.errors import InsufficientMemory
from nybble.graph.compile import compile_plan
from nybble.graph.dispatch import Accuracy
from nybble.machine.memory import MemoryAvailable

from .small_models import small_gguf

WIDE: dict[str, Any] = {
    "hidden": 512,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "feed_forward": 2048,
    "vocabulary": 2048,
    "context_length": 4096,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gguf(tmp_path_factory.mktemp("models") / "wide.gguf", storage="Q4_1", **WIDE)


def offer(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: MemoryAvailable(size, "a limit of this test"))


def needed(path: Path, context_length: int) -> int:
    return memory_needed(plan_file(path, Accuracy.INT8)[1].footprint, context_length, STEP_TOKENS).total


def test_too_little_is_refused_with_all_figures(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before anything is packed."""
    monkeypatch.setattr("nybble.graph.compile.compile_plan", lambda *arguments: pytest.fail("packed"))
    offer(monkeypatch, 1_000_000)
    with pytest.raises(InsufficientMemory) as caught:
        nybble.load(path)
    message = str(caught.value)
    total, weights, cache, activations, runtime, available = (int(found) for found in re.findall(r"(\d+) MB", message))
    memory = memory_needed(plan_file(path, Accuracy.INT8)[1].footprint, SMALLEST_CONTEXT, STEP_TOKENS)
    assert abs(total - weights - cache - activations - runtime) <= 2
    assert [total, weights, available] == [round(size / 1e6) for size in (memory.total, memory.weights, 1_000_000)]
    for part in (f"for {SMALLEST_CONTEXT} tokens", "a limit of this test", "--context", "smaller model"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("context", [4096, 2048, 1024, SMALLEST_CONTEXT])
def test_a_default_context_shrinks_to_fit(path: Path, monkeypatch: pytest.MonkeyPatch, context: int) -> None:
    """By halves, and to the last byte."""
    offer(monkeypatch, needed(path, context))
    model = nybble.load(path, threads=1)
    assert model.context_length == model.info.memory.context_length == context
    assert model.info.memory.total == needed(path, context)
    offer(monkeypatch, needed(path, context) - 1)
    if context == SMALLEST_CONTEXT:
        with pytest.raises(InsufficientMemory):
            nybble.load(path, threads=1)
    else:
        assert nybble.load(path, threads=1).context_length == context // 2


def test_a_context_that_was_asked_for_is_kept_or_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, needed(path, 3000))
    assert nybble.load(path, threads=1, context_length=3000).context_length == 3000
    with pytest.raises(InsufficientMemory, match="for 3100 tokens"):
        nybble.load(path, threads=1, context_length=3100)


def test_a_short_context_is_not_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_gguf(tmp_path / "short.gguf", context_length=100)
    offer(monkeypatch, needed(path, 100))
    assert nybble.load(path, threads=1).context_length == 100
    offer(monkeypatch, needed(path, 100) - 1)
    with pytest.raises(InsufficientMemory, match="for 100 tokens"):
        nybble.load(path, threads=1)


@pytest.mark.parametrize("storage", ["F32", "Q4_1", "Q8_0", "mixed"])
def test_weights_and_cache_are_as_large_as_was_said(tmp_path: Path, storage: str) -> None:
    """Each packed matrix begins on a page of its own."""
    path = small_gguf(tmp_path / "model.gguf", storage=storage)
    plan = plan_file(path, Accuracy.INT8)[1]
    memory = memory_needed(plan.footprint, 200, STEP_TOKENS)
    matrices = compile_plan(plan, _native.ThreadPool(1)).matrices
    assert memory.weights == sum(-(-matrix.bytes // 4096) * 4096 for matrix in matrices.values())
    graph = plan.graph
    assert memory.kv_cache == _native.KVCache.bytes_for(graph.layers, graph.kv_heads, graph.head_dim, 200)
    assert memory.kv_cache == graph.layers * graph.kv_heads * graph.head_dim * 256 * 2 * 2


@pytest.mark.parametrize("accuracy", ["int8", "f32"])
@pytest.mark.parametrize("storage", ["Q4_1", "mixed"])
def test_activations_are_as_large_as_was_said(tmp_path: Path, storage: str, accuracy: str) -> None:
    """The address space that a full step takes beyond that of one token, in a process that does nothing else."""
    path = small_gguf(tmp_path / "model.gguf", storage=storage, **WIDE)
    script = f"""
        import json
        from pathlib import Path
        from nybble import _native
        from nybble.engine.loading import plan_file
        from nybble.engine.memory import memory_needed
        from nybble.engine.session import STEP_TOKENS
        from nybble.graph.compile import compile_plan
        from nybble.graph.dispatch import Accuracy

        def mapped():
            return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

        plan = plan_file(Path({str(path)!r}), Accuracy({accuracy!r}))[1]
        program = compile_plan(plan, _native.ThreadPool(1)).program
        graph = plan.graph
        cache = _native.KVCache(graph.layers, graph.kv_heads, graph.head_dim, STEP_TOKENS)
        program.run([1], [(cache, 1)], [0])
        cache.truncate(0)
        before = mapped()
        program.run([1] * STEP_TOKENS, [(cache, STEP_TOKENS)], [STEP_TOKENS - 1])
        step = mapped() - before
        print(json.dumps([memory_needed(plan.footprint, STEP_TOKENS, STEP_TOKENS).activations, step]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, stdout=subprocess.PIPE, timeout=60
    )
    said, taken = json.loads(done.stdout)
    assert 0.95 * said < taken < 1.05 * said


@pytest.mark.parametrize("vocabulary", [300, 20_000])
def test_a_process_takes_no_more_than_was_said(tmp_path: Path, vocabulary: int) -> None:
    """Resident at its peak after an answer of a small model, whose runtime weighs most; and not half of it either."""
    path = small_gguf(tmp_path / "model.gguf", storage="Q8_0", vocabulary=vocabulary, context_length=2048)
    script = f"""
        import nybble
        from nybble.machine.memory import peak_resident_bytes

        model = nybble.load({str(path)!r}, threads=2)
        model.generate("hello " * 150, max_tokens=20)
        print(model.info.memory.total, peak_resident_bytes())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, stdout=subprocess.PIPE, timeout=60
    )
    said, taken = map(int, done.stdout.split())
    assert taken < said < 2 * taken


def test_logits_of_a_long_prompt_take_little_more_than_the_result(tmp_path: Path) -> None:
    """Not a second copy of it, nor a step's worth of vocabularies."""
    path = small_gguf(tmp_path / "model.gguf", storage="Q8_0", vocabulary=20_000, context_length=2048)
    script = f"""
        import nybble
        from nybble.machine.memory import peak_resident_bytes

        model = nybble.load({str(path)!r}, threads=2)
        before = peak_resident_bytes()
        result = model.logits([1] * 1000).nbytes
        print(result, peak_resident_bytes() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, stdout=subprocess.PIPE, timeout=60
    )
    result, taken = map(int, done.stdout.split())
    assert taken < 1.3 * result
