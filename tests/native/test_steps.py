"""Guards against: steps that should be refused and are run; caches that grow or keep what they should not."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from nybble import _native

from .programs import OpProgram, float_tensor, pack, pool
from .test_decoder import decoder, logits_of, new_cache, program, some_tokens


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 50])
def test_a_truncated_cache_forgets(length: int) -> None:
    """Appending other tokens gives what a fresh cache gives, bit for bit, whatever lay there before."""
    old, new = some_tokens(50, 1), some_tokens(45, 2)
    cache, fresh = new_cache(decoder()), new_cache(decoder())
    logits_of(program(), (cache, old))
    cache.truncate(length)
    assert cache.length == length
    if length:
        logits_of(program(), (fresh, old[:length]))
    np.testing.assert_array_equal(logits_of(program(), (cache, new))[0], logits_of(program(), (fresh, new))[0])
    assert cache.length == length + 45


def test_a_cache_is_not_truncated_to_more_than_it_holds() -> None:
    cache = new_cache(decoder())
    logits_of(program(), (cache, some_tokens(5)))
    with pytest.raises(ValueError, match="more than it holds"):
        cache.truncate(6)
    assert cache.length == 5


@pytest.mark.parametrize("capacity", [1, 31, 32, 33, 64])
def test_a_cache_holds_its_capacity_and_no_more(capacity: int) -> None:
    cache = new_cache(decoder(), capacity)
    assert cache.capacity == capacity
    with pytest.raises(ValueError, match="full"):
        logits_of(program(), (cache, some_tokens(capacity + 1)))
    assert cache.length == 0
    logits_of(program(), (cache, some_tokens(capacity)))
    with pytest.raises(ValueError, match="full"):
        logits_of(program(), (cache, [0]))
    assert cache.length == capacity


def test_the_size_of_a_cache_is_known_beforehand() -> None:
    """fp16 keys and values in blocks of 64 positions, heads padded to 16 features."""
    assert _native.KVCache.bytes_for(3, 2, 80, 65) == 3 * 2 * 80 * 128 * 2 * 2
    assert _native.KVCache.bytes_for(1, 1, 17, 1) == 64 * 32 * 2 * 2
    assert _native.KVCache.bytes_for(1, 2, 80, 65, "bf16") == 2 * 80 * 128 * 2 * 2
    assert _native.KVCache.bytes_for(1, 2, 80, 65, "int8") == 2 * (80 + 4) * 128 * 2  # an fp32 scale each
    assert _native.KVCache.bytes_for(0, 1, 2, 10) == 0
    for shape in ((1 << 40, 1 << 40, 64, 64), (1, 1, 64, (1 << 64) - 1)):
        with pytest.raises(MemoryError):
            _native.KVCache.bytes_for(*shape)
        with pytest.raises(MemoryError):
            _native.KVCache(*shape)


@pytest.mark.parametrize(
    ("tokens", "counts", "outputs", "problem"),
    [
        ([], [], [], "needs tokens"),
        ([], [0], [], "needs tokens"),
        ([1], [], [0], "do not add up"),
        ([1, 2], [1], [0], "do not add up"),
        ([1], [2], [0], "do not add up"),
        ([1, 2], [2, 0], [0], "full"),  # no new tokens: nothing fits
        ([290], [1], [0], "vocabulary"),
        ([-1], [1], [0], "vocabulary"),
        ([1], [1], [1], "output row"),
        ([1], [1], [-1], "output row"),
    ],
)
def test_what_a_step_cannot_be(tokens: list[int], counts: list[int], outputs: list[int], problem: str) -> None:
    caches = [new_cache(decoder()) for _ in counts]
    for call in (program().run, program().first_non_finite):
        with pytest.raises(ValueError, match=problem):
            call(tokens, list(zip(caches, counts, strict=True)), outputs)
    assert all(cache.length == 0 for cache in caches)


def test_one_cache_is_one_sequence() -> None:
    cache = new_cache(decoder())
    with pytest.raises(ValueError, match="twice"):
        program().run([1, 2], [(cache, 1), (cache, 1)], [])


@pytest.mark.parametrize("change", [(1, 0, 0), (0, 1, 0), (0, 0, 2)])
def test_the_cache_of_another_model_is_refused(change: tuple[int, int, int]) -> None:
    graph = decoder()
    shape = [size + more for size, more in zip((graph.layers, graph.kv_heads, graph.head_dim), change, strict=True)]
    with pytest.raises(ValueError, match="another model"):
        program().run([1], [(_native.KVCache(*shape, 8), 1)], [0])


def test_a_program_without_logits_is_refused() -> None:
    native = _native.Program(pool(), ["portable"], 4, 0, 1, 2, [0.0])
    with pytest.raises(ValueError, match="logits"):
        native.run([1], [(_native.KVCache(0, 1, 2, 8), 1)], [0])


def test_programs_that_cannot_run_are_not_built() -> None:
    """Each op checks what it is given; a program that was built runs without looking again."""
    for arguments in (
        (0, 1, 1, 2, [0.0]),
        (4, 1, 0, 2, [0.0]),
        (4, 1, 1, 0, []),
        (4, 1, 1, 2, []),
        (4, 1, 1, 2, [0, 0]),
    ):
        with pytest.raises(ValueError, match=r"program|frequency"):
            _native.Program(pool(), ["portable"], *arguments)
    with pytest.raises(ValueError, match="instruction set"):
        _native.Program(pool(), ["avx1024"], 4, 1, 1, 2, [0.0])

    made = OpProgram(4, "portable", layers=1, head_dim=32)
    native = made.native
    x, wide, selected = made.new(32), made.new(64), made.new(32, per_output=True)
    codes, coarse = made.new(32, block=32), made.new(32, block=16)
    matrix, small = pack(float_tensor(np.eye(32))), pack(float_tensor(np.ones((3, 32))))
    ones = np.ones(32, np.float32)
    kernel = "linear_f32_f32_panel32_portable"
    refused = [
        ("slot", (0, False, 0)),
        ("slot", (32, False, 24)),
        ("view", (99, 0, 1)),
        ("view", (0, 1, 32)),
        ("view", (3, 0, 16)),  # part of a quantised slot
        ("embed", ("", small, x)),  # fewer rows than tokens
        ("embed", ("", matrix, wide)),
        ("embed", ("", matrix, codes)),
        ("embed", ("", matrix, selected)),
        ("embed", ("", matrix, 99)),
        ("rms_norm", ("", x, np.ones(5, np.float32), x, 1e-5)),
        ("rms_norm", ("", x, np.ones(0, np.float32), x, 1e-5)),
        ("rms_norm", ("", x, ones, selected, 1e-5)),
        ("rms_norm", ("", codes, ones, x, 1e-5)),
        ("quantise", ("", x, wide)),
        ("quantise", ("", codes, codes)),
        ("linear", ("", x, matrix, "linear_f32", x, None, None)),
        ("linear", ("", x, matrix, "linear_f16_f32_panel32_portable", x, None, None)),
        ("linear", ("", codes, matrix, kernel, x, None, None)),
        ("linear", ("", x, matrix, kernel, wide, None, None)),
        ("linear", ("", x, matrix, kernel, selected, None, None)),
        ("linear", ("", wide, matrix, kernel, x, None, None)),
        ("linear", ("", x, matrix, kernel, x, np.ones(31, np.float32), None)),
        ("linear", ("", x, matrix, kernel, x, None, wide)),
        ("linear", ("", x, matrix, kernel, x, None, selected)),
        ("rotate_append", ("", 1, x, x, x, x, None, None, 0.0)),
        ("rotate_append", ("", 0, x, wide, wide, x, None, None, 0.0)),
        ("rotate_append", ("", 0, x, x, x, wide, None, None, 0.0)),
        ("rotate_append", ("", 0, selected, x, x, selected, None, None, 0.0)),
        ("rotate_append", ("", 0, x, x, x, codes, None, None, 0.0)),
        ("rotate_append", ("", 0, x, x, x, x, np.ones(31, np.float32), None, 0.0)),
        ("rotate_append", ("", 0, x, x, x, x, None, np.ones(33, np.float32), 0.0)),
        ("attention", ("", 1, x, x, 1, 1.0)),
        ("attention", ("", 0, x, x, 2, 1.0)),
        ("attention", ("", 0, x, wide, 1, 1.0)),
        ("attention", ("", 0, selected, selected, 1, 1.0)),
        ("attention", ("", 0, x, coarse, 1, 1.0)),
        ("swiglu", ("", x, wide, x)),
        ("swiglu", ("", x, x, selected)),
        ("add", ("", x, wide, x)),
        ("add", ("", x, x, codes)),
        ("select_outputs", ("", x, x)),
        ("select_outputs", ("", selected, selected)),
        ("select_outputs", ("", wide, selected)),
        ("set_logits", (x,)),
        ("set_logits", (codes,)),
        ("set_logits", (made.native.view(made.native.slot(64, True, 0), 0, 32),)),
    ]
    for method, arguments in refused:
        with pytest.raises(ValueError):
            getattr(native, method)(*arguments)
            pytest.fail(f"{method}{arguments}")
    odd = OpProgram(4, "portable", layers=1, head_dim=3)
    three = odd.new(3)
    with pytest.raises(ValueError, match="rotate"):
        odd.native.rotate_append("", 0, three, three, three, three, None, None, 0.0)


def in_a_process(script: str) -> None:
    """Run ``script`` where its limits and signals touch nobody else; fails if it does."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120, cwd=root)


def test_a_step_that_does_not_fit_into_memory_can_be_followed_by_one_that_does() -> None:
    """An address space limit stands for a machine without memory to overcommit."""
    script = """
        import resource
        import numpy as np
        from tests.native.programs import OpProgram

        program = OpProgram(2, "portable")
        (x,) = program.given(np.ones((2, 4096)))
        program.outputs(x, 4096)
        expected = program.run([0, 1])
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
        for rows in (50_000, 2, 50_000):
            cache = program.cache(rows)
            try:
                found = program.native.run([1] * rows, [(cache, rows)], [0])
            except MemoryError:
                assert rows > 2
                assert cache.length == 0
            else:
                assert rows == 2
                np.testing.assert_array_equal(found, expected[1:])
        np.testing.assert_array_equal(program.run([0, 1]), expected)
    """
    in_a_process(script)


def test_an_interrupt_ends_a_long_step() -> None:
    """Ctrl-C during a step of many seconds raises KeyboardInterrupt soon; the step leaves no trace."""
    script = """
        import os, signal, threading, time
        import numpy as np
        from tests.native.programs import OpProgram

        rows, width = 1024, 4096
        program = OpProgram(rows, "portable", threads=2)
        (x,) = program.given(np.ones((rows, width)))
        y = program.new(width)
        for _ in range(4000):
            program.native.add("add", x, x, y)
        program.outputs(y, width)
        expected = program.run([3])
        cache = program.cache(rows)
        program.run([1, 2], cache)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            program.run(range(1000), cache)
        except KeyboardInterrupt:
            took = time.monotonic() - began
        else:
            raise SystemExit(f"not interrupted within {time.monotonic() - began:.1f} s")
        assert took < 3, f"only after {took:.1f} s"
        assert cache.length == 2
        np.testing.assert_array_equal(program.run([3]), expected)
        assert program.run([3, 4], cache).shape == (2, width)
        assert cache.length == 4
    """
    in_a_process(script)
