"""Guards against: weights that go through memory beside the cores and come out different, blocks of it that two have or
nobody can have any more, and steps that hang because a thread waits for its partner.

No machine these tests run on has such memory: tcm_library.c stands for the vendor's.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from nybble import _native
from nybble.quant.storage import StorageType

from .programs import ISAS, OpProgram, Rung, alarm, bits, pack, share
from .test_linear_kernels import KERNELS, case_of

K, N = 2048, 4100
"""The least features that are staged, and channels that no panel divides: above 2 MiB for 4-bit codes."""

BLOCK_BYTES = 384 << 10


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if "NYBBLE_TEST_TCM" in os.environ:
        return os.environ["NYBBLE_TEST_TCM"]
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("tcm") / "libtcm.so"
    source = Path(__file__).with_name("tcm_library.c")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", built], check=True)
    return str(built)


def staged(library: str, threads: int = 2) -> _native.ThreadPool:
    pool = _native.ThreadPool(threads)
    assert pool.stage(library, list(range(threads))) == ""
    return pool


def memory_of(library: str, block: int) -> ctypes.Array[ctypes.c_char]:
    """The library's."""

    class Block(ctypes.Structure):
        _fields_ = (
            ("id", ctypes.c_int),
            ("va", ctypes.c_void_p),
            ("size", ctypes.c_size_t),
            ("phys_addr", ctypes.c_uint64),
            ("cpus", ctypes.c_uint64),
            ("owner", ctypes.c_int),
            ("is_acquired", ctypes.c_int),
        )

    found = Block()
    assert ctypes.CDLL(library).spine_tcm_runtime_mem_info(block, ctypes.byref(found)) == 0
    return (ctypes.c_char * BLOCK_BYTES).from_address(found.va)


def names(weights: str) -> list[str]:
    return [
        name
        for name, (isa, of, activations, _) in KERNELS.items()
        if of == weights and activations == "int8" and isa in ISAS
    ]


CASES = [
    (storage, name, 4 if number % 2 else 2)
    for storage in (StorageType.Q4_0, StorageType.Q4_1, StorageType.Q8_0)
    for number, name in enumerate(names(_native.packed_format(storage.name)[0]))
]


@pytest.mark.parametrize(("storage", "kernel", "threads"), CASES)
def test_a_row_has_the_same_bits_by_way_of_memory_beside_the_cores(
    library: str, storage: StorageType, kernel: str, threads: int
) -> None:
    """And several rows, which do not go there."""
    case = case_of(storage, K, N, 3, bias=True, residual="apart")
    pool = staged(library, threads)
    blocks = [memory_of(library, block) for block in range(threads)]
    for block in blocks:
        ctypes.memset(block, 0, BLOCK_BYTES)
    for rows in ([1], [0, 1, 2]):
        expected = bits(case.run(kernel, rows=rows))
        for _ in range(3):
            np.testing.assert_array_equal(bits(case.run(kernel, pool, rows=rows)), expected)
    assert all(any(block.raw[:K]) for block in blocks), "a thread has not copied the activations"
    assert any(any(block.raw[K + 256 :]) for block in blocks), "no panel was copied"


def test_what_is_too_small_or_too_large_goes_the_usual_way(library: str) -> None:
    pool = staged(library)
    assert pool.staging_bytes == BLOCK_BYTES
    assert pool.staging_refusal(N, K, 2 << 20) == ""
    assert pool.staging_refusal(N, K - 1, 2 << 20) == "2047 features, less than 2048"
    assert pool.staging_refusal(N, K, (2 << 20) - 1) == "2097151 bytes of weights, less than 2097152"
    assert pool.staging_refusal(32, K, 2 << 20) == "1 panel of channels, less than 2"
    large = 64 * BLOCK_BYTES
    assert pool.staging_refusal(64 * 32, K, large) == (
        f"{K + 256 + BLOCK_BYTES} bytes of activations and of a panel, more than a block has: {BLOCK_BYTES}"
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"TCM_ABSENT": "1"}, "{library} finds none"),
        ({"TCM_FAKE": "1"}, "{library} has ordinary memory in its place"),
        ({"TCM_TAKEN": "1:{here}"}, "block 1 is taken by thread {here}"),
        (
            {"TCM_TAKEN": "1:{gone}", "TCM_KEEPS": "1"},
            "block 1 was left taken by thread {gone} and cannot be taken back",
        ),
    ],
)
def test_memory_that_is_not_to_be_had(
    library: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], problem: str
) -> None:
    """Nothing is left taken, and single rows go the usual way."""
    known = {"library": library, "here": str(os.getpid()), "gone": str(dead_thread())}
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(**known))
    pool = _native.ThreadPool(2)
    assert pool.stage(library, [0, 1]) == problem.format(**known)
    assert pool.staging_bytes == 0
    case = case_of(StorageType.Q4_0, K, N, 1, bias=False, residual=None)
    name = names("w4")[0]
    np.testing.assert_array_equal(bits(case.run(name, pool)), bits(case.run(name)))
    for setting in settings:
        monkeypatch.delenv(setting)
    assert pool.stage(library, [0, 1]) == ""


def dead_thread() -> int:
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return process


def test_no_library(tmp_path: Path) -> None:
    pool = _native.ThreadPool(2)
    assert "nowhere.so" in pool.stage(str(tmp_path / "nowhere.so"), [0, 1])
    other = ctypes.util.find_library("c") or "libc.so.6"
    assert pool.stage(other, [0, 1]) == f"{other} has no spine_tcm_runtime_is_available"


def test_threads_without_partners(library: str) -> None:
    pool = _native.ThreadPool(2)
    assert pool.stage(library, [0, 2]) == "no thread shares a matrix unit with that of block 0"
    assert pool.stage(library, [8, 9]) == "there is no block 8"
    for blocks in ([0], [0, 0]):
        with pytest.raises(ValueError, match="block"):
            pool.stage(library, blocks)


def test_a_block_that_a_killed_run_left_taken_is_taken_back(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TCM_TAKEN", f"1:{dead_thread()}")
    monkeypatch.setenv("TCM_LOG", str(tmp_path / "log"))
    staged(library)
    calls = (tmp_path / "log").read_text().splitlines()
    assert sorted(calls[:4]) == ["forced 1", "released 1", "taken 0", "taken 1"]
    assert sorted(calls[4:]) == ["released 0", "released 1"]


def test_two_pools_do_not_share_a_block(library: str) -> None:
    first, second = staged(library), _native.ThreadPool(2)
    assert second.stage(library, [0, 1]) in ("this process uses block 0 already", "this process uses block 1 already")
    assert second.stage(library, [2, 3]) == ""
    del first
    third = staged(library)
    assert third.staging_bytes == BLOCK_BYTES


def test_a_signal_ends_a_step_and_the_next_is_whole(library: str) -> None:
    """A thread that leaves is nobody's partner that is waited for."""
    pool = staged(library)
    case = case_of(StorageType.Q4_0, K, N, 1, bias=False, residual=None)
    kernel = names("w4")[0]
    isa, _, _, layout = KERNELS[kernel]
    program = OpProgram(1, isa, pool)
    (x,) = program.given(case.x)
    codes, output = program.new(K, 32, layout=layout), program.new(N)
    program.native.quantise("quantise", x, codes)
    weights = pack(case.tensor, layout=layout)
    for _ in range(share(2000)):
        program.native.linear("linear", codes, weights, kernel, output, None, None)
    program.outputs(output, N)

    with alarm() as ring_in:
        for delay in (0.002, 0.01, 0.03):
            ring_in(delay)
            with pytest.raises(Rung):
                program.run()
    np.testing.assert_array_equal(bits(program.run()), bits(case.run(kernel)))
