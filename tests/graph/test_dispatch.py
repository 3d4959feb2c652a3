"""Guards against: kernels this CPU cannot run, preferences that are ignored, choices without a reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nybble import _native
from nybble.errors import InvalidParameter, KernelUnavailable
from nybble.graph.dispatch import (
    Accuracy,
    LinearKernel,
    choose_linear_kernel,
    isas_of,
    leading_isa,
    linear_kernels,
    selected_isa,
)

AVAILABLE = _native.available_isas()
STORAGE = {"w2": "W2B32", "w4": "W4B32", "w8": "W8B32", "f16": "F16", "bf16": "BF16", "f32": "F32"}


def pretend(monkeypatch: pytest.MonkeyPatch, available: list[str], *kernels: tuple[str, str, str, str, str]) -> None:
    """A CPU with ``available`` and a build with ``kernels``."""
    monkeypatch.setattr(_native, "available_isas", lambda: available)
    monkeypatch.setattr(_native, "linear_kernels", lambda: list(kernels))


def test_accuracy_by_name() -> None:
    assert [Accuracy.parse(name) for name in ("int8", "f32")] == [Accuracy.INT8, Accuracy.F32]
    with pytest.raises(InvalidParameter, match="'fp8' is not one of int8, f32"):
        Accuracy.parse("fp8")


def test_the_best_instruction_set_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NYBBLE_ISA", raising=False)
    assert selected_isa() == AVAILABLE[0]
    monkeypatch.setenv("NYBBLE_ISA", "")
    assert selected_isa() == AVAILABLE[0]
    for isa in AVAILABLE:
        monkeypatch.setenv("NYBBLE_ISA", isa)
        assert selected_isa() == isa


def test_an_instruction_set_this_cpu_lacks_is_refused_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NYBBLE_ISA", "avx1024")
    with pytest.raises(KernelUnavailable) as raised:
        selected_isa()
    assert str(raised.value) == f"NYBBLE_ISA=avx1024 is not available here; available: {', '.join(AVAILABLE)}"


class Threads:
    """A pool whose threads run on CPUs with these instruction sets, best first."""

    def __init__(self, *isas: list[str]) -> None:
        self.arrivals = [SimpleNamespace(isas=of_thread) for of_thread in isas]


def test_each_thread_runs_the_best_its_cpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where another is named, that one, on the CPUs that have it."""
    monkeypatch.delenv("NYBBLE_ISA", raising=False)
    threads = Threads(["wide", "narrow", "portable"], ["narrow", "portable"])
    assert isas_of(threads) == ("wide", "narrow")  # type: ignore[arg-type]
    for forced, expected in {"narrow": ("narrow", "narrow"), "wide": ("wide", "narrow")}.items():
        monkeypatch.setenv("NYBBLE_ISA", forced)
        assert isas_of(threads) == expected  # type: ignore[arg-type]
    monkeypatch.setenv("NYBBLE_ISA", "avx1024")
    with pytest.raises(KernelUnavailable, match="avx1024 is not available here; available: wide, narrow, portable"):
        isas_of(threads)  # type: ignore[arg-type]


def test_the_first_of_the_registry_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are packed for it, whichever thread it is that runs it."""
    kernels = [(f"linear_w4_int8_panel32_{isa}", isa, "w4", "int8", "panel32") for isa in ("wide", "narrow")]
    pretend(monkeypatch, ["narrow"], *kernels)
    assert leading_isa(["narrow", "wide", "narrow"]) == "wide"
    assert leading_isa(["narrow"]) == "narrow"
    assert choose_linear_kernel("W4B32", Accuracy.INT8, "wide").kernel.isa == "wide"


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("weights", STORAGE)
@pytest.mark.parametrize("accuracy", Accuracy)
def test_every_weight_type_has_a_kernel(isa: str, weights: str, accuracy: Accuracy) -> None:
    """int8 activations where the weights are quantised and nobody asked for fp32."""
    choice = choose_linear_kernel(STORAGE[weights], accuracy, isa)
    activations = "int8" if weights in ("w2", "w4", "w8") and accuracy is Accuracy.INT8 else "f32"
    name = f"linear_{weights}_{activations}_panel32_{isa}"
    assert choice.kernel == LinearKernel(name, isa, weights, activations, "panel32")
    assert choice.kernel in linear_kernels()


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("accuracy", Accuracy)
def test_every_better_kernel_was_refused_for_a_reason(isa: str, accuracy: Accuracy) -> None:
    choice = choose_linear_kernel("W4B32", accuracy, isa)
    better = [kernel for kernel in linear_kernels() if kernel.weights == "w4"]
    better = better[: better.index(choice.kernel)]
    assert [name for name, _ in choice.refused] == [kernel.name for kernel in better]
    for kernel, (_, reason) in zip(better, choice.refused, strict=True):
        if kernel.isa not in AVAILABLE:
            assert reason == f"this CPU has no {kernel.isa}"
        elif kernel.isa != isa:
            assert reason == f"NYBBLE_ISA={isa}"
        else:
            assert reason == "rounds activations to int8; f32 is asked for"


def test_the_first_that_fits_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(
        monkeypatch,
        ["middle", "plain"],
        ("a", "best", "w4", "int8", "panel32"),
        ("b", "middle", "w8", "int8", "panel32"),
        ("c", "middle", "w4", "int8", "panel32"),
        ("d", "middle", "w4", "f32", "panel32"),
        ("e", "plain", "w4", "int8", "panel32"),
    )
    choice = choose_linear_kernel("W4B32", Accuracy.INT8, "middle")
    assert (choice.kernel.name, choice.refused) == ("c", (("a", "this CPU has no best"),))
    choice = choose_linear_kernel("W4B32", Accuracy.F32, "middle")
    assert choice.kernel.name == "d"
    assert choice.refused[1] == ("c", "rounds activations to int8; f32 is asked for")
    choice = choose_linear_kernel("W4B32", Accuracy.INT8, "plain")
    assert choice.kernel.name == "e"
    assert [reason for _, reason in choice.refused] == ["this CPU has no best", *["NYBBLE_ISA=plain"] * 2]


def test_an_extension_falls_back_on_what_it_extends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix instructions multiply some weights, in a layout of their own; all else is for the vectors beside them."""
    pretend(
        monkeypatch,
        ["matrix", "vectors", "plain"],
        ("a", "matrix", "w4", "int8", "panel32k8"),
        ("b", "vectors", "w4", "int8", "panel32"),
        ("c", "vectors", "w4", "f32", "panel32"),
        ("d", "vectors", "w4", "f32", "panel32k8"),
        ("e", "vectors", "w2", "int8", "panel32"),
        ("f", "plain", "f16", "f32", "panel32"),
    )
    monkeypatch.setattr(_native, "base_isa", lambda isa: "vectors" if isa == "matrix" else isa)

    def chosen(storage: str, accuracy: Accuracy, layout: str | None = None) -> str:
        return choose_linear_kernel(storage, accuracy, "matrix", layout).kernel.name

    assert chosen("W4B32", Accuracy.INT8) == "a"
    assert chosen("W4B32", Accuracy.F32) == "c"
    assert chosen("W4B32", Accuracy.F32, "panel32k8") == "d"
    assert chosen("W2B16", Accuracy.INT8) == "e"
    with pytest.raises(KernelUnavailable, match="f16 weights on matrix"):
        chosen("F16", Accuracy.INT8)
    refused = choose_linear_kernel("W4B32", Accuracy.F32, "matrix", "panel32k8").refused
    assert refused[-1] == ("c", "another linear of these weights needs them as panel32k8")


def test_blocks_that_are_no_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [("a", "plain", "w2", "int8", "panel32k8"), ("b", "plain", "w2", "int8", "panel32")]
    pretend(monkeypatch, ["plain"], *kernels)
    choice = choose_linear_kernel("W2B16", Accuracy.INT8, "plain")
    assert choice.kernel.name == "b"
    assert choice.refused == (("a", "panel32k8 has no room for blocks as small as those of W2B16"),)
    assert choose_linear_kernel("W2B32", Accuracy.INT8, "plain").kernel.name == "a"


def test_weights_that_no_kernel_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelUnavailable, match="no kernel of this build reads w2 weights on avx1024"):
        choose_linear_kernel("W2B32", Accuracy.INT8, "avx1024")
    pretend(monkeypatch, ["plain"], ("a", "plain", "w4", "int8", "panel32"))
    with pytest.raises(KernelUnavailable, match="w4 weights on plain"):
        choose_linear_kernel("W4B32", Accuracy.F32, "plain")
