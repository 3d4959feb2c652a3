"""Guards against: code compiled for one instruction set that runs on CPUs without it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nybble import _native

BUILD = Path(_native.__file__).resolve().parent
OBJECTS = sorted(BUILD.glob("CMakeFiles/nybble_core.dir/native/kernels/targets/*.o"))
"""Found where the extension was linked, so for a development build only."""


def test_kernels_are_called_what_they_are() -> None:
    rows = _native.linear_kernels()
    assert len({name for name, *_ in rows}) == len(rows)
    for name, isa, weights, activations, layout in rows:
        assert name == f"linear_{weights}_{activations}_{layout}_{isa}"
        assert re.fullmatch("w[248]|f16|bf16|f32", weights)
        assert re.fullmatch("int8|f32", activations)


def test_the_registry_lists_the_best_instruction_set_first() -> None:
    order = list(dict.fromkeys(isa for _, isa, *_ in _native.linear_kernels()))
    available = _native.available_isas()
    assert [isa for isa in order if isa in available] == available
    assert order[-1] == "portable"


@pytest.mark.parametrize("object", OBJECTS, ids=lambda path: path.stem)
def test_a_target_shares_no_code_with_others(object: Path) -> None:
    """The linker keeps one copy of each inline function it may merge; that must not be the one with AVX512 in it.

    So whatever a target file defines for others to use must carry its instruction set's namespace.
    """
    if shutil.which("nm") is None:
        pytest.skip("binutils are not installed")
    # Not demangled: nm knows less of that than some compilers.
    listing = subprocess.run(["nm", object], capture_output=True, text=True, check=True).stdout
    if "__asan_" in listing or "__ubsan_" in listing:
        pytest.skip("built for sanitizers: without inlining, and not to be shipped")
    isa = object.name.partition(".")[0]
    defined = [line.split(maxsplit=2)[1:] for line in listing.splitlines() if not line.startswith(" ")]
    own = f"6nybble{len(isa)}{isa}"
    shared = [name for kind, name in defined if kind in "TWVuDBR" and own not in name]
    assert not shared
