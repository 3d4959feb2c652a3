"""``nybble explain``: everything in the file, each byte counted once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nybble import _native
from nybble.bench.step_times import OpTime, StepTimes, as_kinds
from nybble.conversion.folder import to_onnx
from nybble.engine import loading
from nybble.engine.loading import load, plan_file
from nybble.formats.checkpoint import Checkpoint
from nybble.formats.open import open_checkpoint
from nybble.graph.dispatch import Accuracy
from nybble.graph.kv_type import KVType
from nybble.graph.ops import Linear
from nybble.graph.plan import Plan
from nybble.machine import placement
from nybble.machine.placement import Crew, Member
from nybble.quant.error import conversion_error
from tests.cli.outcome import Nybble
from tests.machine.made_up import Arrival, Pool
from tests.models.tiny import tiny_gguf

SIZES: dict[str, Any] = {
    "hidden": 256,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "feed_forward": 256,
    "vocabulary": 320,
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied model of Q4_1, with Q6_K where common recipes have it."""
    path = tmp_path_factory.mktemp("models") / "mixed.gguf"
    return tiny_gguf(path, storage="Q4_1", storages={"attn_v": "Q6_K", "token_embd": "Q8_0"}, tied=True, **SIZES)


def facts_of(nybble: Nybble, *arguments: object) -> dict[str, Any]:
    outcome = nybble("explain", *arguments, "--plan", "--json")
    assert outcome.code == 0, outcome.remarks
    return dict(json.loads(outcome.output))


def test_sums(nybble: Nybble, mixed: Path) -> None:
    """Guards against tensors that are left out or counted twice, and totals that are not those of loading."""
    facts = facts_of(nybble, mixed)
    tensors = facts["tensors"]
    assert sorted(tensor["name"] for tensor in tensors) == sorted(open_checkpoint(mixed).tensors)
    assert facts["bytes_per_token"] == sum(tensor["bytes_per_token"] for tensor in tensors)
    _, plan = plan_file(mixed, Accuracy.INT8)
    packed = sum(matrix.bytes for matrix in plan.matrices.values())
    # Besides every matrix, a token reads its row of the embedding, and each norm as fp32.
    embedding = plan.matrices[("token_embd.weight",)]
    norms = sum(4 * tensor["shape"][0] for tensor in tensors if len(tensor["shape"]) == 1)
    assert facts["bytes_per_token"] == packed + -(-embedding.bytes // embedding.n) + norms
    assert facts["packed_bits_per_weight"] == pytest.approx(
        8 * packed / sum(matrix.n * matrix.k for matrix in plan.matrices.values())
    )
    assert facts["memory"]["weights"] == load(mixed).info.memory.weights


def test_fp32_model_reads_its_fp32_bytes(nybble: Nybble, tmp_path: Path) -> None:
    """Guards against wrong counts, with a count that needs no plan: nothing is packed smaller or larger than fp32."""
    path = tiny_gguf(tmp_path / "plain.gguf", **SIZES)
    facts = facts_of(nybble, path)
    elements = {name: tensor.elements for name, tensor in open_checkpoint(path).tensors.items()}
    embedding = elements.pop("token_embd.weight")
    assert facts["bytes_per_token"] == 4 * sum(elements.values()) + 4 * embedding // SIZES["vocabulary"]
    assert facts["stored_bits_per_weight"] == facts["packed_bits_per_weight"] == 32


def test_what_each_tensor_becomes(nybble: Nybble, mixed: Path) -> None:
    """Guards against a wrong order, a wrong packing, and conversion errors that are hidden or invented."""
    facts = facts_of(nybble, mixed)
    tensors = {tensor["name"]: tensor for tensor in facts["tensors"]}
    names = list(tensors)
    linears = [name for name in names if tensors[name]["kernel"].startswith("linear_")]
    assert names[: len(linears)] == linears
    assert linears[0].startswith("blk.0.attn_") and linears[-1] == "token_embd.weight"
    assert tensors["token_embd.weight"]["used_by"] == ["embedding", "output head"]
    assert tensors["blk.0.attn_q.weight"]["packed"] == "W4B32 asymmetric"
    assert tensors["blk.0.attn_v.weight"]["packed"] == "W8B16 symmetric"
    assert tensors["blk.0.attn_norm.weight"]["packed"] == "F32"
    for name, tensor in open_checkpoint(mixed).tensors.items():
        error = conversion_error(tensor).relative_rms
        assert (tensors[name]["error"] is None) == (error == 0)
        if error:
            assert tensors[name]["error"]["relative_rms"] == pytest.approx(error)


def test_accuracy_is_the_reason(nybble: Nybble, mixed: Path) -> None:
    """Guards against an explanation that does not say why a faster kernel was refused."""
    facts = facts_of(nybble, mixed, "--accuracy", "f32")
    assert facts["accuracy"] == "f32"
    (query,) = [tensor for tensor in facts["tensors"] if tensor["name"] == "blk.0.attn_q.weight"]
    assert "_f32_" in query["kernel"]
    assert "rounds activations to int8" in query["why"]


def test_instruction_set_is_the_reason(nybble: Nybble, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NYBBLE_ISA", "portable")
    facts = facts_of(nybble, mixed)
    assert facts["isa"] == "portable"
    assert all(tensor["kernel"].endswith("_portable") for tensor in facts["tensors"])


def test_scaled_rotation_is_listed(nybble: Nybble, tmp_path: Path) -> None:
    """Guards against tensors that no op reads going missing."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    tensors = facts_of(nybble, tiny_gguf(tmp_path / "scaled.gguf", rope_scaling=scaling))["tensors"]
    (factors,) = [tensor for tensor in tensors if tensor["name"] == "rope_freqs.weight"]
    assert factors["bytes_per_token"] == 0
    assert "while the model is built" in factors["why"]


def test_text(nybble: Nybble, mixed: Path) -> None:
    """Guards against a table that says less than the data."""
    facts = facts_of(nybble, mixed)
    outcome = nybble("explain", mixed, "--plan")
    assert outcome.code == 0
    table, kernels, totals = outcome.output.split("\n\n")
    rows = {line.split()[0]: line for line in table.splitlines()[1:]}
    assert list(rows) == [tensor["name"] for tensor in facts["tensors"]]
    for tensor in facts["tensors"]:
        assert f"{tensor['bytes_per_token']:,}" in rows[tensor["name"]]
        assert tensor["stored"] in rows[tensor["name"]] and tensor["packed"] in rows[tensor["name"]]
        assert tensor["kernel"] in kernels
    assert f"weights read per token: {facts['bytes_per_token']:,} bytes" in totals


def test_offline(nybble: Nybble) -> None:
    outcome = nybble("explain", "--offline", "--plan")
    assert outcome.code == 1
    assert "offline" in outcome.error


def test_measured_steps(nybble: Nybble, mixed: Path) -> None:
    """Guards against ops that are left out of a step, and sums that are not the time it took."""
    outcome = nybble("explain", mixed, "--json", "-t", "1")
    assert outcome.code == 0
    facts = json.loads(outcome.output)
    decode, prefill = facts["steps"]
    assert decode["rows"] == 1 and prefill["rows"] > 1
    _, plan = plan_file(mixed, Accuracy.INT8)
    for step in facts["steps"]:
        assert sum(op["seconds"] for op in step["ops"]) == pytest.approx(step["wall_seconds"])
        assert sum(op["count"] for op in step["ops"]) == len(plan.graph.ops) + 1
        linears = [op for op in step["ops"] if op["kernel"]]
        assert {op["kernel"] for op in linears} == {choice.kernel.name for choice in plan.choices.values()}
        assert all(op["floor_seconds"] > 0 and op["seconds"] > 0 for op in linears)
    linears = [op for op in decode["ops"] if op["kernel"]]
    assert sum(op["products"] for op in linears) == sum(
        plan.matrices[op.weights].n * plan.matrices[op.weights].k for op in plan.graph.ops if isinstance(op, Linear)
    )
    table = nybble("explain", mixed, "-t", "1").output
    assert "a decode step: " in table and "between ops" in table


def test_measured_steps_of_onnx(nybble: Nybble, mixed: Path, tmp_path: Path) -> None:
    """Guards against facts taken from tensors that only GGUF files have, and against planning a model twice."""
    folder = to_onnx(mixed, tmp_path / "model").folder
    opened = 0
    original = loading.plan_file

    def counted(path: Path, accuracy: Accuracy, isa: str) -> tuple[Checkpoint, Plan]:
        nonlocal opened
        opened += 1
        return original(path, accuracy, isa)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "plan_file", counted)
        outcome = nybble("explain", folder, "--json", "-t", "1")
    assert outcome.code == 0, outcome.error
    assert opened == 1
    facts = json.loads(outcome.output)
    kinds = {op["kind"]: op["count"] for op in facts["steps"][0]["ops"] if op["kernel"]}
    assert kinds["layer*.gate + layer*.up"] == len([name for name in facts["tensors"] if "gate" in name["name"]])


def test_kv_cache(nybble: Nybble, mixed: Path) -> None:
    """Guards against figures and steps of another KV cache than the one asked for."""
    whole, small = (facts_of(nybble, mixed, "--kv", kv) for kv in ("fp16", "int8"))
    assert (whole["kv"], small["kv"]) == ("fp16", "int8")
    assert whole["memory"]["kv_cache"] == small["memory"]["kv_cache"] * (2 * SIZES["head_dim"]) / (
        SIZES["head_dim"] + 4
    )
    assert nybble("explain", mixed, "--kv", "q8").code == 2
    measured: list[KVType] = []

    def measure(checkpoint: Checkpoint, planned: Plan, kv: KVType, threads: int) -> list[StepTimes]:
        measured.append(kv)
        return []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("nybble.bench.step_times.measure_steps", measure)
        assert nybble("explain", mixed, "--kv", "int8").code == 0
    assert measured == [KVType.INT8]


def test_runtimes(nybble: Nybble, mixed: Path) -> None:
    for arguments in (("--runtime", "torch"), ("--runtime", "onnxruntime", "--plan")):
        assert nybble("explain", mixed, *arguments).code == 2


def test_steps_of_onnxruntime(nybble: Nybble, tmp_path: Path) -> None:
    """A model without accuracy_level is told to be so, with the command that mends it."""
    pytest.importorskip("onnxruntime")
    from tests.inspection.test_onnx import model

    path = tmp_path / "model.onnx"
    path.write_bytes(model({"accuracy_level": None}, {}).SerializeToString())
    outcome = nybble("explain", path, "--runtime", "onnxruntime", "--json", "-t", "1")
    assert outcome.code == 0, outcome.error
    for step in json.loads(outcome.output)["steps"]:
        kinds = {(op["kind"], op["kernel"]): op for op in step["ops"]}
        assert kinds["/layers.*/up", "MatMulNBits, accuracy_level 0"]["count"] == 1
        assert kinds["/layers.*/up", "MatMulNBits, accuracy_level 4"]["count"] == 1
        assert kinds["/lm_head", "MatMulNBits, accuracy_level 4"]["products"] > 0
        assert sum(op["seconds"] for op in step["ops"]) == pytest.approx(step["wall_seconds"])


@pytest.mark.parametrize(("seconds", "told"), [(4.9, False), (5.1, True)])
def test_a_wrong_path_is_told(seconds: float, told: bool) -> None:
    op = OpTime("layer 3", 1, "kernel", 1, 1, seconds, 1.0, "its cause")
    kind, rest = as_kinds([op, replace(op, kind="layer 4")], 2 * seconds + 1)
    assert (kind.kind, kind.count, kind.ratio) == ("layer *", 2, pytest.approx(seconds))
    assert kind.cause == ("its cause" if told else "")
    assert rest.seconds == pytest.approx(1)
    (small, _) = as_kinds([op], 1000)
    assert small.cause == ""  # nobody would notice


def test_cores_that_differ(nybble: Nybble, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a kernel told as everybody's that half of the cores do not run."""
    fast, slow = _native.available_isas()[0], _native.available_isas()[-1]
    if fast == slow:
        pytest.skip("this CPU has one instruction set")
    arrivals = [Arrival(0, 256, "ime1", (fast, slow)), Arrival(4, 256, "none", (slow,))]
    members = tuple(Member(found.cpu, "X60", 256, found.matrix_unit, found.isas) for found in arrivals)
    crew = Crew(Pool(arrivals), members, "as an example", ("not elsewhere: no",))  # type: ignore[arg-type]
    monkeypatch.setattr(placement, "assemble", lambda threads: crew)
    lines = nybble("explain", mixed, "--plan").output.splitlines()
    begin = lines.index("threads: 2, as an example")
    assert lines[begin + 1 : begin + 4] == [
        f"  {fast}: 0 on CPU 0 (X60, VLEN 256, ime1 tried out)",
        f"  {slow}: 1 on CPU 4 (X60, VLEN 256)",
        "  not elsewhere: no",
    ]
    assert f"  {slow}: linear_w4_int8_panel32_{slow} where the others run linear_w4_int8_panel32_{fast}" in lines
    facts = facts_of(nybble, mixed)
    assert facts["isa"] == fast
    assert [member["runs"] for member in facts["threads"]["members"]] == [fast, slow]
    assert facts["threads"]["notes"] == ["not elsewhere: no"]


def test_what_goes_through_tightly_coupled_memory(
    nybble: Nybble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guards against linears that are not told of, or told to go where they do not."""
    isa = _native.available_isas()[0]
    model = tiny_gguf(
        tmp_path / "tiny.gguf", storage="Q4_0", storages={"token_embd": "F32"}, **SIZES | {"feed_forward": 512}
    )
    pool = Pool([Arrival(8, 1024, "ime2", (isa,))] * 2)
    members = tuple(Member(found.cpu, "A100", 1024, found.matrix_unit, found.isas) for found in pool.arrivals)
    monkeypatch.setattr(placement, "assemble", lambda threads: Crew(pool, members, "as an example", (), "as told"))  # type: ignore[arg-type]
    told = "  tightly coupled memory: as told"
    lines = nybble("explain", model, "--plan").output.splitlines()
    assert not any("linears of a decode step" in line for line in lines[lines.index(told) :])
    assert facts_of(nybble, model)["not_through_tcm"] == {}
    pool.stage("", [0, 1])
    lines = nybble("explain", model, "--plan").output.splitlines()
    begin = lines.index(told)
    facts = facts_of(nybble, model)
    refusals = facts["not_through_tcm"]
    _, plan = plan_file(model, Accuracy.INT8, isa)
    linears = [op for op in plan.graph.ops if isinstance(op, Linear)]
    assert list(refusals) == [op.label for op in linears]
    assert facts["threads"]["tcm"] == "as told"
    for op in linears:
        matrix = plan.matrices[op.weights]
        assert refusals[op.label] == (
            "its activations stay fp32" if matrix.weights == "f32" else "" if matrix.k > 256 else f"{matrix.k} features"
        )
    staged = sum(not refusal for refusal in refusals.values())
    assert 0 < staged < len(linears)
    assert lines[begin + 1] == f"    {staged} of {len(linears)} linears of a decode step take their weights through it"
    narrow = [label for label, refusal in refusals.items() if refusal == "256 features"]
    assert f"    not {narrow[0]} and {len(narrow) - 1} more: 256 features" in lines[begin:]
