"""Stock ONNX Runtime against the same with nybble's kernels, on the same decoder made by GenAI's model builder.

python benchmarks/onnxruntime_kernels.py FOLDER [--threads 1 2] [--rounds 5] [--output results.json]

Every figure comes from a fresh process of its own, in turns. The error is that of the logits behind a prompt, relative
to their root mean square, from those of the same file at accuracy level 1: stock ONNX Runtime on fp32 activations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CONTENDERS = ("stock", "nybble")


def session_for(contender: str, model: Path, threads: int) -> Any:
    """A session on ``model``: of stock ONNX Runtime, or with nybble's provider."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if contender != "nybble":
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    import nybble.ort

    return onnxruntime.InferenceSession(str(model), nybble.ort.session_options(options))


class Decoder:
    """A sequence on a decoder with inputs and outputs as GenAI's builder names them."""

    def __init__(self, session: Any, shape: dict[str, int]) -> None:
        import onnxruntime

        self._session = session
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy
        self._inputs = {given.name for given in session.get_inputs()}
        self._outputs = [made.name for made in session.get_outputs()]
        self._past: dict[str, Any] = {}
        for given in session.get_inputs():
            if given.name.startswith("past_key_values"):
                empty = np.zeros((1, shape["num_key_value_heads"], 0, shape["head_size"]), np.float32)
                self._past[given.name] = self._value(empty)
        self._length = 0

    def step(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """The logits behind ``tokens``, (vocabulary,)."""
        first, self._length = self._length, self._length + len(tokens)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            "position_ids": np.arange(first, self._length, dtype=np.int64)[None],
        }
        values = {name: self._value(feed) for name, feed in feeds.items() if name in self._inputs}
        made = self._session.run_with_ort_values(self._outputs, values | self._past)
        results = dict(zip(self._outputs, made, strict=True))
        self._past = {name: results[name.replace("past_key_values", "present")] for name in self._past}
        return np.asarray(results["logits"].numpy()[0, -1])


def measure(contender: str, model: Path, threads: int, prompt: int, generated: int) -> dict[str, Any]:
    """Tokens per second of a prompt and of generating behind one token, and the logits behind the prompt."""
    session = session_for(contender, model, threads)
    config = json.loads(model.with_name("genai_config.json").read_text(encoding="utf-8"))
    shape = config["model"]["decoder"]
    tokens = [int(token) for token in np.random.default_rng(1).integers(100, 30000, prompt)]
    Decoder(session, shape).step(tokens)
    prefill = []
    for _ in range(2):
        decoder = Decoder(session, shape)
        begin = time.perf_counter()
        logits = decoder.step(tokens)
        prefill.append(prompt / (time.perf_counter() - begin))
    decoder = Decoder(session, shape)
    for token in tokens[:4]:
        decoder.step([token])
    begin = time.perf_counter()
    for token in tokens[:generated]:
        decoder.step([token])
    decode = generated / (time.perf_counter() - begin)
    import onnxruntime

    return {
        "prefill": max(prefill),
        "decode": decode,
        "logits": logits.astype(float).tolist(),
        "onnxruntime": onnxruntime.__version__,
    }


def in_a_process(*arguments: object) -> dict[str, Any]:
    """What ``measure`` of these arguments says in a fresh process."""
    command = [sys.executable, __file__, "--measure", *map(str, arguments)]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def error(logits: list[float], exact: list[float]) -> float:
    """The mean absolute difference, relative to the root mean square of ``exact``."""
    return float(np.abs(np.subtract(logits, exact)).mean() / np.sqrt(np.square(exact).mean()))


def compare(model: Path, threads: list[int], rounds: int, prompt: int, generated: int) -> list[dict[str, Any]]:
    """A row for each number of threads, with all that was measured in it."""
    from nybble.formats.onnx_accuracy_level import patch_accuracy_level

    exact_model = model.with_name("accuracy_level_1.onnx")  # its external data lies beside
    patch_accuracy_level(model, exact_model, 1, None)
    try:
        exact = in_a_process("exact", exact_model, 2, prompt, 1)["logits"]
    finally:
        exact_model.unlink()
    rows = []
    for count in threads:
        runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in CONTENDERS}
        for _ in range(rounds):
            for contender in CONTENDERS:
                runs[contender].append(in_a_process(contender, model, count, prompt, generated))
        row: dict[str, Any] = {"model": model.parent.name, "threads": count, "prompt": prompt, "generated": generated}
        for contender, measured in runs.items():
            row["onnxruntime"] = measured[0]["onnxruntime"]
            row[contender] = {
                "prefill": [round(run["prefill"], 2) for run in measured],
                "decode": [round(run["decode"], 2) for run in measured],
                "error": round(error(measured[0]["logits"], exact), 6),
            }
        for figure in ("prefill", "decode"):
            ours, theirs = (statistics.median(row[contender][figure]) for contender in ("nybble", "stock"))
            row[f"{figure}_ratio"] = round(ours / theirs, 3)
            print(f"{row['model']} T={count} {figure}: {theirs:.1f} -> {ours:.1f} tok/s, {ours / theirs:.2f} x")
        print(f"  error: stock {row['stock']['error']:.4f}, nybble {row['nybble']['error']:.4f}", flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Compare on the models of the folders given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generated", type=int, default=64)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    rows = []
    for folder in chosen.folders:
        rows += compare(folder / "model.onnx", chosen.threads, chosen.rounds, chosen.prompt, chosen.generated)
    if chosen.output:
        chosen.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        contender, model, *counts = sys.argv[2:]
        print(json.dumps(measure(contender, Path(model), *map(int, counts))))
    else:
        main()
