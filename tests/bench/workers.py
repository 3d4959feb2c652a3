"""Jobs, and Pythons that are not what a worker expects."""

from __future__ import annotations

import sys
from pathlib import Path

from nybble.bench.cases import Case
from nybble.bench.job import Job, RandomModel


def job(
    model: Path | str,
    *cases: Case,
    engine: str = "nybble",
    random: RandomModel | None = None,
    threads: int = 1,
    accuracy: str = "int8",
    repeats: int = 2,
) -> Job:
    """What a worker is to do, by default a little of everything."""
    wanted = cases or (Case(4, 0), Case(0, 3, 2, 2))
    return Job(engine, str(model), random, threads, accuracy, wanted, repeats)


def script(path: Path, text: str) -> str:
    """An executable shell script, for use as a Python."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def python_with(directory: Path, **libraries: str) -> str:
    """This Python with ``libraries`` (name and source) of its own: the Python of another engine."""
    (directory / "site").mkdir(parents=True)
    for name, source in libraries.items():
        (directory / "site" / f"{name}.py").write_text(source)
    command = f'PYTHONPATH="$PYTHONPATH:{directory / "site"}" exec "{sys.executable}" "$@"'
    return script(directory / "python", command)


FAKE_LLAMA_CPP = '''
"""As much of llama-cpp-python as a benchmark asks for; prints what it should not, as libraries do."""

from types import SimpleNamespace

__version__ = "0.0.1"
print("llama.cpp says hello on standard output")


class Table(list):
    def __init__(self, rows, columns):
        super().__init__([0] * columns for _ in range(rows))


listeners = []


def llama_log_callback(function): return function
def llama_log_set(function, data): listeners.append(function)
def llama_backend_init(): pass
def llama_model_default_params(): return SimpleNamespace(n_gpu_layers=99)
def llama_context_default_params(): return SimpleNamespace(n_ctx=0, n_batch=0, n_seq_max=0, n_threads=0)
def llama_model_get_vocab(model): return model
def llama_vocab_n_tokens(vocabulary): return 50
def llama_model_size(model): return 1234
def llama_model_n_params(model): return 567
def llama_get_memory(context): return context
def llama_synchronize(context): pass
def llama_batch_free(batch): pass
def llama_free(context): context.freed = True


def llama_model_desc(model, text, size):
    text.value = b"toy 1B Q4_0"


def llama_model_load_from_file(path, parameters):
    assert parameters.n_gpu_layers == 0
    if b"gguf" in path:
        return path
    listeners[-1](2, b"just saying", None)
    listeners[-1](4, b"unknown magic\\n", None)
    listeners[-1](4, b"failed to load model\\n", None)


def llama_init_from_model(model, parameters):
    assert parameters.n_threads == parameters.n_threads_batch == 1
    sequences = parameters.n_seq_max
    return SimpleNamespace(lengths=[0] * sequences, room=parameters.n_ctx // sequences, freed=False)


def llama_memory_seq_rm(memory, sequence, begin, end):
    assert end == -1 and begin <= memory.lengths[sequence] and not memory.freed
    memory.lengths[sequence] = begin
    return True


def llama_batch_init(tokens, embedding, sequences):
    columns = {name: [0] * tokens for name in ("token", "pos", "logits", "n_seq_id")}
    return SimpleNamespace(n_tokens=0, seq_id=Table(tokens, 1), **columns)


def llama_decode(context, batch):
    assert batch.n_tokens == len(batch.token) and not context.freed
    for token, position, (sequence,), logits in zip(batch.token, batch.pos, batch.seq_id, batch.logits):
        assert 0 <= token < 50 and position == context.lengths[sequence]
        context.lengths[sequence] += 1
        assert context.lengths[sequence] <= context.room
    assert sum(batch.logits) <= len(context.lengths)  # of all tokens they would take much longer
    return 0
'''
