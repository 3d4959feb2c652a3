"""Small random decoders as ONNX graphs, in the forms that model builders write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

CONTEXT = 64


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a decoder is written down. ``linear``: nbits, qdq, float or gemm. ``attention``: packed, separate, outside or
    multi_head. ``norm``: fused, skip or spelled. ``head``: own or shared."""

    linear: str = "nbits"
    bits: int = 4
    block: int = 32
    zero_points: str = "absent"
    scales: Any = np.float32
    flat: bool = False
    level: int | None = None
    attention: str = "packed"
    norm: str = "skip"
    head: str = "own"
    head_norms: bool = False
    bias: bool = False
    bias_inside: bool = False
    gate: str = "sigmoid"
    pruned: bool = False
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 96
    vocabulary: int = 80
    rope_base: float = 10000.0


@dataclass
class Decoder:
    """Writes the nodes of one decoder; ``model`` is the result."""

    form: Form
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    nodes: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    count: int = 0

    def constant(self, name: str, array: Any) -> str:
        self.tensors.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, op: str, inputs: list[str], outputs: int | list[str] = 1, **attributes: Any) -> Any:
        domain, _, op = op.rpartition(".")
        self.count += 1
        names = [f"value{self.count}_{place}" for place in range(outputs)] if isinstance(outputs, int) else outputs
        node = onnx.helper.make_node(op, inputs, names, name=f"n{self.count}", domain=domain, **attributes)
        self.nodes.append(node)
        return names[0] if len(names) == 1 else names

    def ms(self, op: str, inputs: list[str], outputs: int | list[str] = 1, **attributes: Any) -> Any:
        return self.node(f"com.microsoft.{op}", inputs, outputs, **attributes)

    def linear(self, name: str, source: str, n: int, k: int, bias: bool = False) -> str:
        form = self.form
        vector = self.constant(f"{name}.bias", self.random.normal(size=n).astype(np.float32)) if bias else ""
        inside = bias and form.bias_inside
        if form.linear in ("float", "gemm"):
            weight = self.random.normal(0, 0.2, (n, k)).astype(np.float32)
            if form.linear == "gemm":
                turned = self.node("Transpose", [self.constant(name, weight)], perm=[1, 0])
                output = self.node("MatMul", [source, turned])
            else:
                output = self.node("MatMul", [source, self.constant(name, weight.T)])
        elif form.linear == "qdq":
            output = self.dequantised(name, source, n, k)
        else:
            inputs = [source, *self.blocked(name, n, k)]
            if inside:
                inputs += [""] * (5 - len(inputs)) + [vector]
            level = {} if form.level is None else {"accuracy_level": form.level}
            sizes = {"K": k, "N": n, "bits": form.bits, "block_size": form.block}
            output = self.ms("MatMulNBits", inputs, **sizes, **level)
        return self.node("Add", [output, vector]) if bias and not inside else output

    def blocked(self, name: str, n: int, k: int) -> list[str]:
        """Codes, scales and zero points as MatMulNBits has them, with rubbish in all padding."""
        form = self.form
        blocks = -(-k // form.block)
        codes = self.random.integers(0, 256, (n, blocks, form.block * form.bits // 8), np.uint8)
        # fp16 holds these, so that packing rounds nothing.
        scales = (self.random.uniform(0.5, 1, (n, blocks)).astype(np.float16) / 2 ** (form.bits + 1)).astype(
            form.scales
        )
        names = [self.constant(f"{name}.codes", codes)]
        names.append(self.constant(f"{name}.scales", scales.reshape(-1) if form.flat else scales))
        if form.zero_points == "packed":
            points = self.random.integers(0, 256, (n, -(-blocks * form.bits // 8)), np.uint8)
            names.append(self.constant(f"{name}.points", points.reshape(-1) if form.flat else points))
        elif form.zero_points == "float":
            middle = 1 << (form.bits - 1)
            points = (self.random.integers(-1, 2, (n, blocks)) + middle).astype(form.scales)
            names.append(self.constant(f"{name}.points", points))
        return names

    def dequantised(self, name: str, source: str, n: int, k: int) -> str:
        codes = onnx.helper.make_tensor(
            f"{name}.codes", onnx.TensorProto.INT4, (k, n), self.random.integers(-8, 8, (k, n)).reshape(-1).tolist()
        )
        self.tensors.append(codes)
        blocks = -(-k // self.form.block)
        scales = (self.random.uniform(0.5, 1, (blocks, n)).astype(np.float16) / 32).astype(np.float32)
        inputs = [f"{name}.codes", self.constant(f"{name}.scales", scales)]
        return self.node("MatMul", [source, self.node("DequantizeLinear", inputs, axis=0, block_size=self.form.block)])

    def norm(self, name: str, source: str, width: int) -> str:
        weight = self.constant(name, (1 + 0.2 * self.random.normal(size=width)).astype(np.float32))
        if self.form.norm != "spelled":
            return self.node("SimplifiedLayerNormalization", [source, weight], epsilon=1e-6, axis=-1, stash_type=1)
        two = self.constant(f"{name}.two", np.float32(2))
        square = self.node("Pow", [source, two])
        mean = self.node("ReduceMean", [square, self.constant(f"{name}.axes", np.array([-1]))], keepdims=1)
        total = self.node("Add", [mean, self.constant(f"{name}.epsilon", np.float32(1e-6))])
        normed = self.node("Div", [source, self.node("Sqrt", [total])])
        return self.node("Mul", [weight, normed])

    def added_and_normed(self, name: str, stream: str, change: str) -> tuple[str, str]:
        if self.form.norm == "skip":
            weight = self.constant(name, (1 + 0.2 * self.random.normal(size=self.form.hidden)).astype(np.float32))
            outputs = [f"{name}.normed", "", "", f"{name}.sum"]
            self.ms("SkipSimplifiedLayerNormalization", [stream, change, weight], outputs, epsilon=1e-6)
            return f"{name}.sum", f"{name}.normed"
        total = self.node("Add", [stream, change])
        return total, self.norm(name, total, self.form.hidden)

    def embedding(self) -> str:
        form = self.form
        if form.head == "shared":
            codes, *others = self.blocked("head", form.vocabulary, form.hidden)
            shape = self.constant("table shape", np.array([form.vocabulary, form.hidden * form.bits // 8]))
            inputs = [self.node("Reshape", [codes, shape]), "input_ids", *others]
            attributes = {"bits": form.bits, "block_size": form.block, "gather_axis": 0, "quantize_axis": 1}
            return str(self.ms("GatherBlockQuantized", inputs, **attributes))
        table = self.random.normal(size=(form.vocabulary, form.hidden)).astype(np.float32)
        return str(self.node("Gather", [self.constant("table", table), "input_ids"]))

    def lengths(self) -> tuple[str, str]:
        one = self.constant("one", np.array([1]))
        last = self.node("Sub", [self.node("ReduceSum", ["attention_mask", one], keepdims=0), one])
        total = self.node(
            "Gather", [self.node("Shape", ["attention_mask"]), self.constant("place", np.int64(1))], axis=0
        )
        return self.node("Cast", [last], to=6), self.node("Cast", [total], to=6)

    def tables(self) -> list[str]:
        half = self.form.head_dim // 2
        angles = np.arange(CONTEXT)[:, None] * self.form.rope_base ** (-np.arange(half) / half)
        return [self.constant(name, f(angles).astype(np.float32)) for name, f in (("cos", np.cos), ("sin", np.sin))]

    def attention(self, layer: int, source: str, lengths: tuple[str, str], tables: list[str]) -> str:
        form, at = self.form, f"layer{layer}"
        query, key = form.heads * form.head_dim, form.kv_heads * form.head_dim
        widths = {"q": query, "k": key, "v": key}
        if form.attention == "packed":
            packed = self.linear(f"{at}.qkv", source, query + 2 * key, form.hidden, form.bias)
            parts = [packed, "", ""]
            if form.head_norms:
                sizes = self.constant(f"{at}.sizes", np.array([query, key, key]))
                parts = self.node("Split", [packed, sizes], 3, axis=-1)
        else:
            parts = [
                self.linear(f"{at}.{name}", source, width, form.hidden, form.bias) for name, width in widths.items()
            ]
        if form.head_norms:
            for place, width in enumerate((query, key)):
                heads = self.node("Reshape", [parts[place], self.constant(f"{at}.{place}.a", np.array([0, -1, 16]))])
                normed = self.norm(f"{at}.{place}.norm", heads, form.head_dim)
                parts[place] = self.node(
                    "Reshape", [normed, self.constant(f"{at}.{place}.b", np.array([0, -1, width]))]
                )
        if form.attention in ("outside", "multi_head"):
            for place in (0, 1):
                parts[place] = self.ms("RotaryEmbedding", [parts[place], "position_ids", *tables], interleaved=0)
        past = [f"past.{layer}.key", f"past.{layer}.value"]
        present = [f"present.{layer}.key", f"present.{layer}.value"]
        if form.attention == "multi_head":
            keys = [self.joined(layer, name, parts[place + 1]) for place, name in enumerate(("key", "value"))]
            attributes = {"num_heads": form.heads, "unidirectional": 1}
            mixed = self.ms("MultiHeadAttention", [parts[0], *keys], **attributes)
        else:
            rotary = 0 if form.attention == "outside" else 1
            inputs = [*parts, *past, *lengths, *(tables if rotary else [])]
            attributes = {"num_heads": form.heads, "kv_num_heads": form.kv_heads, "do_rotary": rotary}
            mixed, *_ = self.ms("GroupQueryAttention", inputs, [f"{at}.mixed", *present], **attributes)
        return self.linear(f"{at}.o", mixed, form.hidden, query)

    def joined(self, layer: int, name: str, source: str) -> str:
        """Keys or values of all tokens, those of each KV head repeated for its query heads."""
        form = self.form
        at = f"layer{layer}.{name}"
        heads = self.node("Reshape", [source, self.constant(f"{at}.a", np.array([0, 0, form.kv_heads, -1]))])
        turned = self.node("Transpose", [heads], perm=[0, 2, 1, 3])
        total = self.node("Concat", [f"past.{layer}.{name}", turned], [f"present.{layer}.{name}"], axis=2)
        wide = self.node("Unsqueeze", [total, self.constant(f"{at}.b", np.array([2]))])
        repeats = np.array([1, 1, form.heads // form.kv_heads, 1, 1])
        repeated = self.node("Expand", [wide, self.constant(f"{at}.c", repeats)])
        flat = self.node("Reshape", [repeated, self.constant(f"{at}.d", np.array([0, form.heads, -1, form.head_dim]))])
        back = self.node("Transpose", [flat], perm=[0, 2, 1, 3])
        return str(self.node("Reshape", [back, self.constant(f"{at}.e", np.array([0, 0, -1]))]))

    def feed_forward(self, layer: int, source: str) -> str:
        form, at = self.form, f"layer{layer}"
        gate = self.linear(f"{at}.gate", source, form.feed_forward, form.hidden)
        up = self.linear(f"{at}.up", source, form.feed_forward, form.hidden)
        if form.gate == "sigmoid":
            activated = self.node("Mul", [gate, self.node("Sigmoid", [gate])])
        else:
            activated = self.ms("QuickGelu", [gate], alpha=1.0)
        return self.linear(f"{at}.down", self.node("Mul", [activated, up]), form.hidden, form.feed_forward)

    def model(self) -> Any:
        form = self.form
        outside = form.attention in ("outside", "multi_head")
        lengths = ("", "") if form.attention == "multi_head" else self.lengths()
        tables = self.tables()
        stream = self.embedding()
        normed = self.norm("first norm", stream, form.hidden)
        for layer in range(form.layers):
            change = self.attention(layer, normed, lengths, tables)
            stream, normed = self.added_and_normed(f"layer{layer}.middle", stream, change)
            change = self.feed_forward(layer, normed)
            stream, normed = self.added_and_normed(f"layer{layer}.end", stream, change)
        if form.pruned:
            last = self.node("Gather", [normed, self.constant("last", np.int64(-1))], axis=1)
            normed = self.node("Unsqueeze", [last, self.constant("axis", np.array([1]))])
        if form.head == "shared":
            names = [tensor.name for tensor in self.tensors if tensor.name.startswith("head.")]
            sizes = {"K": form.hidden, "N": form.vocabulary, "bits": form.bits, "block_size": form.block}
            self.ms("MatMulNBits", [normed, *names], ["logits"], **sizes)
        else:
            self.node("Identity", [self.linear("head", normed, form.vocabulary, form.hidden)], ["logits"])
        return self.assembled(outside)

    def assembled(self, outside: bool) -> Any:
        form, helper, types = self.form, onnx.helper, onnx.TensorProto
        names = ["input_ids"] if form.attention == "multi_head" else ["input_ids", "attention_mask"]
        inputs = [
            helper.make_tensor_value_info(name, types.INT64, ["batch", name])
            for name in (*names, *(["position_ids"] if outside else []))
        ]
        outputs = [helper.make_tensor_value_info("logits", types.FLOAT, ["batch", "tokens", form.vocabulary])]
        for layer in range(form.layers):
            for part in ("key", "value"):
                shape = ["batch", form.kv_heads, "past", form.head_dim]
                inputs.append(helper.make_tensor_value_info(f"past.{layer}.{part}", types.FLOAT, shape))
                shape = ["batch", form.kv_heads, "all", form.head_dim]
                outputs.append(helper.make_tensor_value_info(f"present.{layer}.{part}", types.FLOAT, shape))
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.tensors)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write_decoder(path: Path, form: Form) -> Path:
    """Write a decoder of ``form`` to ``path`` and return it."""
    path.write_bytes(Decoder(form).model().SerializeToString())
    return path


def runtime_logits(path: Path, ids: list[int], form: Form) -> np.ndarray:
    """What ONNX Runtime says after each of ``ids`` (or the last): fp32 (rows, vocabulary)."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # Else weights decoded before use are multiplied with int8 activations.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    count = len(ids)
    feeds = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count, dtype=np.int64)[None],
    }
    empty = np.zeros((1, form.kv_heads, 0, form.head_dim), np.float32)
    return session.run(["logits"], {value.name: feeds.get(value.name, empty) for value in session.get_inputs()})[0][0]
