"""Greedy answers of ONNX Runtime GenAI's loop: on its CPU provider, and with nybble's kernels through both doors.

python genai_greedy.py MODEL_FOLDER > results/genai_greedy.json, in a Python with onnxruntime-genai and nybble. Printed
as JSON: whether both doors give equal logits; and for each prompt the first token that differs between the providers,
how far apart its two best logits were on the CPU provider, and how far the providers' logits are from each other.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = ("What is the capital of France?", "Write a haiku about rain.", "Explain what a CPU cache is.")
TOKENS = 48
STOCK, PROVIDER, OPERATOR = "CPU provider", "provider", "custom operator"


def answers(way: str, folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """For each prompt the tokens and, before each, the logits."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    if way == PROVIDER:
        import nybble.ort

        genai.register_execution_provider_library("nybble", str(nybble.ort.plugin_path()))
        config.clear_providers()
        config.append_provider("nybble")
    model = genai.Model(config)
    tokenizer = genai.Tokenizer(model)
    found = {}
    for place, prompt in enumerate(PROMPTS):
        messages = json.dumps([{"role": "user", "content": prompt}])
        ids = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=len(ids) + TOKENS)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(ids)
        tokens, logits = [], []
        while not generator.is_done():
            logits.append(np.array(generator.get_logits())[0, -1])
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        found |= {f"tokens{place}": np.array(tokens), f"logits{place}": np.stack(logits)}
    return found


def in_a_process(way: str, folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """``answers`` of a fresh process: providers stay registered."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        subprocess.run([sys.executable, __file__, "--answers", way, str(folder), file.name], check=True)
        with np.load(file.name) as arrays:
            return dict(arrays)


def on_custom_operator(source: Path, folder: Path) -> Path:
    """A copy of the model on the custom operator; GenAI loads libraries from the model's folder only."""
    import nybble.ort
    from nybble.formats.onnx_custom_op import move_to_custom_op

    shutil.copytree(source, folder)
    shutil.copy(nybble.ort.plugin_path(), folder)
    move_to_custom_op(folder / "model.onnx", folder / "custom.onnx")
    config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
    decoder = config["model"]["decoder"]
    decoder["filename"] = "custom.onnx"
    decoder["session_options"]["custom_ops_library"] = nybble.ort.plugin_path().name
    (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def main(folder: Path) -> None:
    """Print the comparison as JSON."""
    import onnxruntime_genai as genai

    from nybble.bench.provenance import provenance

    stock, ours = (in_a_process(way, folder) for way in (STOCK, PROVIDER))
    with tempfile.TemporaryDirectory() as name:
        operator = in_a_process(OPERATOR, on_custom_operator(folder, Path(name) / "model"))
    prompts = []
    for place, prompt in enumerate(PROMPTS):
        pairs = zip(stock[f"tokens{place}"], ours[f"tokens{place}"], strict=False)
        first = next((at for at, (left, right) in enumerate(pairs) if left != right), None)
        row: dict[str, Any] = {"prompt": prompt, "first_difference": first}
        if first is not None:
            left, right = stock[f"logits{place}"][first], ours[f"logits{place}"][first]
            best = np.sort(left)
            row |= {"best_logits_apart": float(best[-1] - best[-2]), "providers_apart": float(abs(left - right).max())}
        prompts.append(row)
    found = {
        "onnxruntime_genai": genai.__version__,
        "model": folder.name,
        "doors_are_equal": all(np.array_equal(ours[key], operator[key]) for key in ours),
        **asdict(provenance()),
        "prompts": prompts,
    }
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    if sys.argv[1] == "--answers":
        np.savez(sys.argv[4], **answers(sys.argv[2], Path(sys.argv[3])))
    else:
        main(Path(sys.argv[1]).resolve())
