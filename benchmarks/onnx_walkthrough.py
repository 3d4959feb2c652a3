"""From a transformers folder to a fast ONNX model, command by command, with all that they print: for docs/onnx.md.

python onnx_walkthrough.py MODELS > results/onnx_walkthrough.json, with the MODELS of make_onnx_models.sh. One thread is
used, so that nothing depends on what else the machine does. Needs onnxruntime.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from nybble.bench.provenance import provenance

QUESTION = "What is the capital of France?"
COMMANDS = {
    "run": ["run", "--model", "SmolLM2-135M-Instruct", QUESTION],
    "convert": ["convert", "SmolLM2-135M-Instruct", "smollm2-onnx"],
    "inspect": ["inspect", "smollm2-onnx"],
    "inspect exported": ["inspect", "exported/model.onnx"],
    "explain before": ["explain", "exported/model.onnx", "--runtime", "onnxruntime", "-t", "1"],
    "patch": ["patch", "exported/model.onnx", "exported/fast.onnx", "--accuracy-level", "4"],
    "explain after": ["explain", "exported/fast.onnx", "--runtime", "onnxruntime", "-t", "1"],
    "explain nybble": ["explain", "exported/fast.onnx", "-t", "1"],
}


def run(words: list[str], folder: Path) -> dict[str, str]:
    """A command as a person types it, and what it printed on each stream."""
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "nybble", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    typed = " ".join(f'"{word}"' if " " in word else word for word in ["nybble", *words])
    return {"command": typed, "output": done.stdout.rstrip(), "remarks": done.stderr.rstrip()}


def main(models: Path) -> None:
    """Print what each command printed, as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "SmolLM2-135M-Instruct").symlink_to(models / "transformers" / "smollm2")
        (folder / "exported").mkdir()
        for file in (models / "smollm2-level0").iterdir():
            os.link(file, folder / "exported" / file.name)
        steps = {step: run(words, folder) for step, words in COMMANDS.items()}
    json.dump({**asdict(provenance()), "steps": steps}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
