"""Stock ONNX Runtime against the same with nybble's kernels, on the same decoder made by GenAI's model builder.

python benchmarks/onnxruntime_kernels.py FOLDER [--threads 1 2] [--rounds 5] [--output results.json]

Models are those of make_onnx_models.sh. Every figure comes from a fresh process of its own, in turns. The error is that
of the logits behind a prompt, relative to their root mean square, from those of the same file at accuracy level 1: fp32
activations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

CONTENDERS = ("stock", "nybble")
FIGURES = ("prefill", "decode")
KEY = ("model", "threads", "prompt", "generated")


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
    """Tokens per second of a prompt and of generating behind one token, the logits behind the prompt, and how many CPUs
    other processes kept busy meanwhile.
    """
    from nybble.bench.neighbours import NeighbourWatch

    session = session_for(contender, model, threads)
    config = json.loads(model.with_name("genai_config.json").read_text(encoding="utf-8"))
    shape = config["model"]["decoder"]
    tokens = [int(token) for token in np.random.default_rng(1).integers(100, 30000, prompt)]
    Decoder(session, shape).step(tokens)
    watch, start = NeighbourWatch(), time.perf_counter()
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
    others = watch.others_seconds() / (time.perf_counter() - start)
    import onnxruntime

    return {
        "prefill": max(prefill),
        "decode": decode,
        "others": others,
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


def errors(model: Path, prompt: int) -> dict[str, float]:
    """The error of each contender's logits behind the prompt."""
    from nybble.formats.onnx_accuracy_level import patch_accuracy_level

    exact_model = model.with_name("accuracy_level_1.onnx")  # its external data lies beside
    patch_accuracy_level(model, exact_model, 1, None)
    try:
        exact = in_a_process("exact", exact_model, 2, prompt, 1)["logits"]
    finally:
        exact_model.unlink()
    found = {contender: in_a_process(contender, model, 2, prompt, 1)["logits"] for contender in CONTENDERS}
    return {contender: round(error(logits, exact), 6) for contender, logits in found.items()}


def add_round(row: dict[str, Any], model: Path) -> None:
    """Measure both contenders once more, in turn, and add it to ``row``."""
    for contender in CONTENDERS:
        run = in_a_process(contender, model, row["threads"], row["prompt"], row["generated"])
        if row.setdefault("onnxruntime", run["onnxruntime"]) != run["onnxruntime"]:
            raise SystemExit(f"ONNX Runtime is {run['onnxruntime']}, the rounds before were with {row['onnxruntime']}")
        for figure in (*FIGURES, "others"):
            row[contender].setdefault(figure, []).append(round(run[figure], 2))
    for figure in FIGURES:
        ours, theirs = (statistics.median(row[contender][figure]) for contender in ("nybble", "stock"))
        row[f"{figure}_ratio"] = round(ours / theirs, 3)


def told(row: dict[str, Any]) -> str:
    """A row for people."""
    stock, ours = row["stock"], row["nybble"]
    figures = (
        f"{figure} {statistics.median(stock[figure]):.1f} -> {statistics.median(ours[figure]):.1f} tok/s, "
        f"{row[f'{figure}_ratio']:.2f} x"
        for figure in FIGURES
    )
    rounds = len(stock["prefill"])
    about = f"{row['model']} T={row['threads']}, {rounds} rounds: {'; '.join(figures)}"
    return f"{about}; error {stock['error']:.4f} and {ours['error']:.4f}"


def main() -> None:
    """Compare on the models of the folders given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generated", type=int, default=64)
    parser.add_argument("--output", type=Path, help="JSON; rounds are added to those that are there")
    chosen = parser.parse_args()
    from nybble.bench.provenance import provenance

    rows = json.loads(chosen.output.read_text("utf-8")) if chosen.output and chosen.output.exists() else []
    by_key = {tuple(row[name] for name in KEY): row for row in rows}
    for folder in chosen.folders:
        for count in chosen.threads:
            key = (folder.name, count, chosen.prompt, chosen.generated)
            if key not in by_key:
                of_model = next((row for row in rows if row["model"] == folder.name), None)
                found = {name: of_model[name]["error"] for name in CONTENDERS} if of_model else None
                found = found or errors(folder / "model.onnx", chosen.prompt)
                by_key[key] = dict(zip(KEY, key, strict=True)) | asdict(provenance())
                by_key[key] |= {name: {"error": found[name]} for name in CONTENDERS}
                rows.append(by_key[key])
            for _ in range(chosen.rounds):
                add_round(by_key[key], folder / "model.onnx")
            print(told(by_key[key]), flush=True)
    if chosen.output:
        chosen.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        contender, model, *counts = sys.argv[2:]
        print(json.dumps(measure(contender, Path(model), *map(int, counts))))
    else:
        main()
