"""Other engines: what of their answers is timed, by stand-ins for their libraries."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nybble.bench.cases import Case
from nybble.bench.peers import PEERS
from nybble.bench.peers.generating import GeneratingSubject
from nybble.bench.worker import load_subject
from nybble.errors import BenchmarkFailed
from tests.bench.workers import job

PROMPT, PROMPT_AND_MORE, GENERATION = Case(6, 0), Case(6, 3), Case(0, 3)


class Answers(GeneratingSubject):
    """A second for each token of a prompt, ten for each generated one."""

    def __init__(self) -> None:
        super().__init__({}, 100)
        self.asked: list[tuple[Sequence[int], int]] = []

    def answer(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        self.asked.append((prompt, generated))
        return float(len(prompt)), 10.0 * generated


@pytest.mark.parametrize(
    ("case", "seconds", "prompt"),
    [(PROMPT, 6, 6), (GENERATION, 30, 1), (Case(0, 3, depth=9), 30, 9), (PROMPT_AND_MORE, 36, 6)],
)
def test_what_is_timed(case: Case, seconds: float, prompt: int) -> None:
    """Guards against a depth that is timed, or generation without any token before it."""
    subject = Answers()
    assert subject.refusal(case) is None
    subject.prepare(case)
    assert subject.sample(case) == seconds
    (tokens, generated), *_ = subject.asked
    assert len(tokens) == prompt and set(tokens) <= set(range(100)) and generated == case.generated
    assert subject.ceilings() is None


@pytest.mark.parametrize(("case", "why"), [(Case(0, 3, batch=2), "one sequence"), (Case(6, 0, depth=1), "before it")])
def test_what_is_refused(case: Case, why: str) -> None:
    assert why in (Answers().refusal(case) or "")


class Clock:
    """Time that passes only when an engine computes."""

    now = 0.0

    def run(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


def library(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def test_every_peer_has_a_module() -> None:
    """Guards against an engine that is offered but cannot be measured."""
    folder = Path(sys.modules[GeneratingSubject.__module__].__file__ or "").parent
    assert {name.replace("-", "_") for name in PEERS} == {path.stem for path in folder.glob("*.py")} - {
        "__init__",
        "generating",
    }


def test_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipeline:
        def __init__(self, path: str, device: str, **properties: Any) -> None:
            assert (path, device, properties) == ("model.gguf", "CPU", {"INFERENCE_NUM_THREADS": 2})

        def generate(self, inputs: Any, configuration: Any) -> Any:
            assert configuration.ignore_eos and not configuration.do_sample
            assert configuration.max_new_tokens == configuration.min_new_tokens
            of_prompt = SimpleNamespace(mean=1000.0 * inputs[0].shape[1])
            of_each = SimpleNamespace(mean=10_000.0 if configuration.max_new_tokens > 1 else float("nan"))
            metrics = SimpleNamespace(get_ttft=lambda: of_prompt, get_tpot=lambda: of_each)
            return SimpleNamespace(perf_metrics=metrics)

    contents = {"LLMPipeline": Pipeline, "GenerationConfig": SimpleNamespace, "__version__": "9"}
    library(monkeypatch, "openvino_genai", TokenizedInputs=lambda ids, mask: (ids, mask), **contents)
    library(monkeypatch, "openvino", Tensor=lambda array: array)
    subject = load_subject(job("model.gguf", engine="openvino-genai", threads=2))
    assert subject.facts == {"version": "openvino-genai 9"}
    assert [subject.sample(case) for case in (PROMPT, GENERATION, PROMPT_AND_MORE)] == [6, 30, 36]


def test_onnxruntime(monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"vocab_size": 77}}))
    overlays: list[str] = []

    class Parameters:
        def __init__(self, model: Any) -> None:
            self.options: dict[str, Any] = {}

        def set_search_options(self, **options: Any) -> None:
            self.options = options

    class Generator:
        def __init__(self, model: Any, parameters: Parameters) -> None:
            self.room, self.has_logits = parameters.options["max_length"], False

        def append_tokens(self, ids: Any) -> None:
            assert ids.max() < 77
            self.room -= len(ids)
            self.has_logits = True
            clock.run(len(ids))

        def generate_next_token(self) -> None:
            if not self.has_logits:
                clock.run(10)
            self.has_logits = False
            self.room -= 1
            assert self.room >= 0

    configuration = SimpleNamespace(overlay=overlays.append)
    contents = {"GeneratorParams": Parameters, "Generator": Generator, "__version__": "9"}
    library(monkeypatch, "onnxruntime_genai", Config=lambda path: configuration, Model=lambda made: made, **contents)
    subject = load_subject(job(tmp_path, engine="onnxruntime-genai", threads=2))
    assert '"intra_op_num_threads": 2' in overlays[0]
    assert [subject.sample(case) for case in (PROMPT, GENERATION, PROMPT_AND_MORE)] == [6, 30, 36]


def test_ctranslate2(monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "vocabulary.json").write_text(json.dumps(["a", "b", "c"]))

    class Generator:
        def __init__(self, path: str, **options: Any) -> None:
            assert options == {"device": "cpu", "intra_threads": 2, "inter_threads": 1}

        def generate_batch(self, prompts: list[list[str]], **options: Any) -> None:
            assert options["min_length"] == options["max_length"] and options["end_token"] == []
            assert {word for prompt in prompts for word in prompt} <= {"a", "b", "c"}
            clock.run(len(prompts[0]) + 10 * (options["max_length"] - 1))

    library(monkeypatch, "ctranslate2", Generator=Generator, __version__="9")
    subject = load_subject(job(tmp_path, engine="ctranslate2", threads=2))
    assert [subject.sample(case) for case in (PROMPT, GENERATION, PROMPT_AND_MORE)] == [6, 30, 36]
    with pytest.raises(BenchmarkFailed, match=r"vocabulary\.json"):
        load_subject(job(tmp_path / "none", engine="ctranslate2"))


def test_mnn(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    settings: dict[str, Any] = {}

    class Model:
        def set_config(self, wanted: dict[str, Any]) -> None:
            settings.update(wanted)

        def load(self) -> None:
            self.length = 0

        def reset(self) -> None:
            self.length = 0

        def forward(self, ids: list[int]) -> Any:
            clock.run(len(ids) if self.length == 0 else 10)
            self.length += len(ids)
            return SimpleNamespace(read=lambda: None)

    library(monkeypatch, "MNN", version=lambda: "9")
    library(monkeypatch, "MNN.llm", create=lambda path: Model())
    subject = load_subject(job("config.json", engine="mnn", threads=2))
    assert settings["thread_num"] == 2
    assert [subject.sample(case) for case in (PROMPT, GENERATION, PROMPT_AND_MORE)] == [6, 30, 36]
