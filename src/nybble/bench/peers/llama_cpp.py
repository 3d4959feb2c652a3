"""llama.cpp, by the low-level interface of llama-cpp-python: what its own llama-bench does, with its defaults."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

from ...errors import BenchmarkFailed
from ..job import Job
from ..subject import SteppingSubject

MOST_TOKENS = 2048
"""Tokens given to llama_decode at once, as llama-bench does."""

_ERROR = 4
"""GGML_LOG_LEVEL_ERROR."""

_ROUNDED = 256
"""llama.cpp rounds the cells of a sequence up to a multiple of this."""


def load(job: Job) -> LlamaCpp:
    """The model of ``job``; raises :class:`BenchmarkFailed` if llama.cpp cannot read it."""
    return LlamaCpp(importlib.import_module("llama_cpp"), job.model, job.threads)


class LlamaCpp(SteppingSubject):
    """A model and a context of llama.cpp."""

    def __init__(self, library: Any, path: str, threads: int) -> None:
        self._library = library
        self._threads = threads
        self._context: Any = None
        self._complaint = ""
        self._log = library.llama_log_callback(self._listen)  # llama.cpp calls it as long as it lives
        library.llama_log_set(self._log, None)
        library.llama_backend_init()
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self._model = library.llama_model_load_from_file(path.encode(), parameters)
        if not self._model:
            raise BenchmarkFailed(f"llama.cpp cannot load {path}: {self._complaint}")
        super().__init__(library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model)))
        text = ctypes.create_string_buffer(256)
        library.llama_model_desc(self._model, text, len(text))
        self.facts = {
            "version": f"llama-cpp-python {library.__version__}",
            "model_type": text.value.decode(errors="replace"),
            "model_bytes": library.llama_model_size(self._model),
            "parameters": library.llama_model_n_params(self._model),
        }

    def _listen(self, level: int, text: bytes, data: Any) -> None:
        """Keeps the first complaint: those after it follow from it."""
        if level == _ERROR and not self._complaint:
            self._complaint = text.decode(errors="replace").strip()

    def start(self, sequences: int, capacity: int) -> None:
        """A new context."""
        library = self._library
        if self._context is not None:
            library.llama_free(self._context)
        parameters = library.llama_context_default_params()
        parameters.n_ctx = -(-capacity // _ROUNDED) * _ROUNDED * sequences
        parameters.n_seq_max = sequences
        parameters.n_batch = MOST_TOKENS
        parameters.n_threads = parameters.n_threads_batch = self._threads
        self._context = library.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise BenchmarkFailed(f"llama.cpp cannot make a context of {parameters.n_ctx} tokens: {self._complaint}")
        self._lengths = [0] * sequences

    def truncate(self, length: int) -> None:
        """Remove what is behind ``length``."""
        memory = self._library.llama_get_memory(self._context)
        for sequence in range(len(self._lengths)):
            self._library.llama_memory_seq_rm(memory, sequence, length, -1)
            self._lengths[sequence] = length

    def prefill(self, sequence: int, tokens: Sequence[int]) -> None:
        """In batches, with the logits of the last token only."""
        for begin in range(0, len(tokens), MOST_TOKENS):
            chunk = tokens[begin : begin + MOST_TOKENS]
            last = len(tokens) - 1 - begin
            self._decode([(token, sequence, index == last) for index, token in enumerate(chunk)])

    def decode(self, tokens: Sequence[int]) -> None:
        """One batch for all sequences."""
        self._decode([(token, sequence, True) for sequence, token in enumerate(tokens)])

    def _decode(self, entries: Sequence[tuple[int, int, bool]]) -> None:
        """Each entry is a token, its sequence, and whether its logits are wanted."""
        library = self._library
        batch = library.llama_batch_init(len(entries), 0, 1)
        try:
            batch.n_tokens = len(entries)
            for index, (token, sequence, has_logits) in enumerate(entries):
                batch.token[index] = token
                batch.pos[index] = self._lengths[sequence]
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = sequence
                batch.logits[index] = has_logits
                self._lengths[sequence] += 1
            code = library.llama_decode(self._context, batch)
            library.llama_synchronize(self._context)
        finally:
            library.llama_batch_free(batch)
        if code != 0:
            raise BenchmarkFailed(f"llama_decode failed with code {code}")
