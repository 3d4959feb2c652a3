"""A GGUF or safetensors model as a folder that ONNX Runtime and ONNX Runtime GenAI load.

Layout of ``genai_config.json``: https://onnxruntime.ai/docs/genai/reference/config.html
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InvalidParameter, UnsupportedFeature
from ..formats.checkpoint import Checkpoint, MetadataValue
from ..formats.folder_tokenizer import SAMPLING, TOKENIZER_FILES
from ..formats.onnx_folder import GENAI_CONFIGURATION
from ..formats.onnx_writer import GraphWriter, WeightsFile
from ..formats.open import open_checkpoint
from ..formats.whole_file import usual_mode
from ..graph.graph import Graph
from ..graph.ops import Attention, Embed
from ..models.build import build_graph
from ..tokenizer.gguf_tokenizer import tokenizer_from_gguf
from ..tokenizer.tokenizer import Tokenizer
from ..tokenizer.vocabulary import Vocabulary
from .decoder import OPSETS, PAST, PRESENT, DecoderWriter
from .tokenizer import tokenizer_config, tokenizer_json

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    """What was written, in ``folder``, and what is not as it was or could be.

    ``requantised``, ``float_zero_points`` and ``widened`` are as in :class:`DecoderWriter`. ``has_tokenizer``: whether
    there is a ``tokenizer.json``.
    """

    folder: Path
    bytes: int
    requantised: tuple[str, ...]
    float_zero_points: tuple[str, ...]
    widened: tuple[str, ...]
    has_tokenizer: bool


def to_onnx(source: Path, folder: Path, *, requantise: bool = False) -> WrittenFolder:
    """Write the model ``source``, a GGUF file or a folder of safetensors, to the new ``folder``, which appears whole or
    not at all.

    Floats of safetensors are quantised as they are for running. ``requantise`` rounds tensors with offsets to 8 bits;
    else only those of more than 4 bits are.

    Raises :class:`InvalidParameter` when ``folder`` exists or cannot be made, and whatever opening the model raises.
    """
    if folder.exists():
        raise InvalidParameter(f"{folder} is there already; name a new folder")
    if not folder.absolute().parent.is_dir():
        raise InvalidParameter(f"{folder.absolute().parent} is no folder; make it first")
    checkpoint = open_checkpoint(source)
    if checkpoint.graph is not None:
        raise UnsupportedFeature(f"{source}: is an ONNX model already")
    graph = build_graph(checkpoint)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        written = _write(checkpoint, graph, made, requantise)
        made.chmod(usual_mode(0o777))
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    size = sum(path.stat().st_size for path in folder.iterdir())
    decoder, has_tokenizer = written
    return WrittenFolder(
        folder,
        size,
        tuple(decoder.requantised),
        tuple(decoder.float_zero_points),
        tuple(decoder.widened),
        has_tokenizer,
    )


def _write(checkpoint: Checkpoint, graph: Graph, folder: Path, requantise: bool) -> tuple[DecoderWriter, bool]:
    metadata = checkpoint.metadata
    tokenizer = tokenizer_from_gguf(metadata, str(checkpoint.path))
    vocabulary = tokenizer.vocabulary_facts
    _write_json(folder / GENAI_CONFIGURATION, genai_configuration(checkpoint, graph, vocabulary))
    has_tokenizer = _write_tokenizer(checkpoint, tokenizer, folder)
    with WeightsFile(folder / WEIGHTS_FILE) as weights:
        writer = GraphWriter(weights)
        decoder = DecoderWriter(graph, writer, requantise=requantise)
        decoder.write(checkpoint.release)
    writer.write(folder / MODEL_FILE, f"nybble {__version__}", OPSETS)
    return decoder, has_tokenizer


def _write_tokenizer(checkpoint: Checkpoint, tokenizer: Tokenizer, folder: Path) -> bool:
    """Copy the tokeniser's files where the model has such, else make them; whether ``tokenizer.json`` is there then."""
    if checkpoint.path.is_dir():
        for name in TOKENIZER_FILES:
            if (checkpoint.path / name).exists():
                shutil.copyfile(checkpoint.path / name, folder / name)
        return True
    metadata = checkpoint.metadata
    described = tokenizer_json(tokenizer, metadata)
    if described is not None:
        _write_json(folder / "tokenizer.json", described)
    settings = tokenizer_config(tokenizer.vocabulary_facts, metadata.get("tokenizer.chat_template"))
    _write_json(folder / "tokenizer_config.json", settings)
    return described is not None


def genai_configuration(checkpoint: Checkpoint, graph: Graph, vocabulary: Vocabulary) -> dict[str, Any]:
    """What ``genai_config.json`` says of the model."""
    attention = next(op for op in graph.ops if isinstance(op, Attention))
    embedding = next(op for op in graph.ops if isinstance(op, Embed))
    first = vocabulary.end_of_sequence
    ends = sorted(vocabulary.end_tokens, key=lambda token: (token != first, token))
    ids: dict[str, Any] = {"eos_token_id": ends}
    if vocabulary.beginning_of_sequence is not None:
        ids["bos_token_id"] = vocabulary.beginning_of_sequence
    if ends:
        ids["pad_token_id"] = ends[0]
    return {
        "model": {
            **ids,
            "context_length": graph.context_length,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": MODEL_FILE,
                "head_size": graph.head_dim,
                "hidden_size": graph.buffers[embedding.output].width,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": PAST.format("%d", "key"),
                    "past_value_names": PAST.format("%d", "value"),
                },
                "outputs": {
                    "logits": graph.logits,
                    "present_key_names": PRESENT.format("%d", "key"),
                    "present_value_names": PRESENT.format("%d", "value"),
                },
                "num_attention_heads": attention.heads,
                "num_hidden_layers": graph.layers,
                "num_key_value_heads": graph.kv_heads,
            },
            "type": checkpoint.architecture,
            "vocab_size": graph.vocabulary,
        },
        "search": _search(checkpoint.metadata, graph.context_length),
    }


def _search(metadata: Mapping[str, MetadataValue], context_length: int) -> dict[str, Any]:
    """How the author recommends to sample."""
    recommended = {name: metadata.get(f"general.sampling.{key}") for name, key in SAMPLING.items()}
    found: dict[str, Any] = {name: value for name, value in recommended.items() if value is not None}
    found["do_sample"] = bool(found)
    penalty = metadata.get("general.sampling.penalty_repeat")
    if penalty is not None:
        found["repetition_penalty"] = penalty
    return {**found, "max_length": context_length, "past_present_share_buffer": False}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
