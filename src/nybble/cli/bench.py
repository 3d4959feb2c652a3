"""``nybble bench``: how fast, beside what the machine could do and what others do."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BenchmarkFailed, InvalidParameter
from . import bench_options, options
from .bench_report import print_comparison, print_rivals, print_rows, sample_progress
from .output import note, work_progress

if TYPE_CHECKING:
    from ..bench.benchmark import Contender
    from ..bench.job import Operation, RandomModel, WeightFormat

EXAMPLES = (
    "nybble bench",
    "nybble bench MODEL.gguf -p 512 -n 128 -t 1,2 --depth 0,4096 --batch 1,8",
    "nybble bench --save before.json",
    "nybble bench --compare before.json",
    "nybble bench --against llama-cpp --peer-python llama-cpp=venv/bin/python",
    "nybble bench --shape qwen2.5-0.5b --bits 4 --block 128",
    "nybble bench --op linear -M 1,4,512 -K 2048 -N 6144 --bits 4 --block 32 --asym",
)


# What each kind of measurement alone understands; an option of another kind would be ignored in silence.
OF_AN_OPERATION = ("rows", "features", "outputs")
OF_BLOCKS = ("block", "asymmetric")
OF_RANDOM_WEIGHTS = ("bits", *OF_BLOCKS)
OF_A_MODEL = ("prompts", "generated", "pairs", "depths", "batches", "peer_python", "peer_model", "offline")


def bench(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)] = None,
    prompts: bench_options.Prompts = "512",
    generated: bench_options.Generated = "128",
    pairs: bench_options.Pairs = None,
    repeats: bench_options.Repeats = 5,
    threads: bench_options.Threads = None,
    processes: bench_options.Processes = 3,
    depths: bench_options.Depths = "0",
    batches: bench_options.Batches = "1",
    output_format: bench_options.Format = "table",
    save: bench_options.Save = None,
    compare: bench_options.Compare = None,
    plot: bench_options.Plot = None,
    against: bench_options.Against = None,
    peer_python: bench_options.PeerPython = None,
    peer_model: bench_options.PeerModel = None,
    shape: bench_options.Shape = None,
    operation: bench_options.Op = None,
    rows: bench_options.OpRows = "1,4,16,512",
    features: bench_options.OpFeatures = 2048,
    outputs: bench_options.OpOutputs = 6144,
    bits: bench_options.Bits = 4,
    block: bench_options.Block = 32,
    asymmetric: bench_options.Asymmetric = False,
    accuracy: options.Accuracy = "int8",
    kv: options.KV = "fp16",
    offline: options.Offline = False,
) -> None:
    """Measure how fast a model reads prompts and generates, and what part of the machine's best that is.

    Rows are medians over several fresh processes. The ceiling of a row is what reading the packed weights, or
    multiplying them if that takes longer, would allow: at the bandwidth of the memory that holds them and at the peak
    of the instruction set, both measured in the same process just before and after. Samples during which other
    processes were busy do not count, unless all are such.
    """
    from ..bench import formats
    from ..bench.benchmark import Settings, benchmark
    from ..bench.cases import MOST_SEQUENCES, MOST_TOKENS, Case, cross_product, parse_counts, parse_pairs
    from ..bench.job import Operation, WeightFormat
    from ..graph.dispatch import Accuracy, selected_isa
    from ..graph.kv_type import KVType

    # Mistakes are told before anything is fetched or measured.
    formats.check_format(output_format)
    _refuse_options_without_effect(context, operation, shape, bits)
    counts = _thread_counts(threads)
    old = None if compare is None else formats.read_rows(compare)
    Accuracy.parse(accuracy)
    KVType.parse(kv)
    selected_isa()
    if plot is not None:
        from ..bench.plot import check_plot

        check_plot(plot)
    random, alone = None, None
    weights = WeightFormat(16, 1) if bits == 16 else WeightFormat(bits, block, asymmetric)
    with contextlib.ExitStack() as held:
        if operation is not None:
            _check_alone(operation, model, shape, against)
            cases = tuple(Case(count, 0, is_operation=True) for count in parse_counts(rows, "--rows", 1, MOST_TOKENS))
            alone = Operation(outputs, features, weights)
            contenders = _kernels(alone)
        else:
            cases = cross_product(
                parse_counts(prompts, "--prompt", 0, MOST_TOKENS),
                parse_counts(generated, "--generate", 0, MOST_TOKENS),
                parse_pairs(pairs or ()),
                parse_counts(depths, "--depth", 0, MOST_TOKENS),
                parse_counts(batches, "--batch", 1, MOST_SEQUENCES),
            )
            random = _random_model(model, shape, weights)
            directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="nybble-bench-")))
            contenders = _contenders(
                model, random, kv, offline, against, peer_python or (), peer_model or (), directory
            )
        settings = Settings(contenders, random, cases, counts, repeats, processes, accuracy, alone, kv)
        with sample_progress() as progress:
            report = benchmark(settings, progress)
    for line in report.notes:
        note(line)
    print_rows(report.rows, output_format)
    print_rivals(report.rows, output_format)
    if old is not None:
        print_comparison(old, report.rows, output_format)
    if save is not None:
        save.write_text(formats.to_json(report.rows) + "\n", encoding="utf-8")
    if plot is not None:
        from ..bench.plot import draw

        draw(report.rows, plot)


def _refuse_options_without_effect(context: typer.Context, operation: str | None, shape: str | None, bits: int) -> None:
    given = [
        parameter
        for parameter in context.command.params
        if (source := context.get_parameter_source(parameter.name or "")) is not None and source.name == "COMMANDLINE"
    ]

    def refuse(ineffective: Sequence[str], subject: str) -> None:
        for parameter in given:
            if parameter.name in ineffective:
                raise InvalidParameter(f"{parameter.opts[0]} has no effect {subject}; leave it out")

    if operation is not None:
        refuse(OF_A_MODEL, "with --op")
    elif shape is not None:
        refuse(OF_AN_OPERATION, "with --shape")
    else:
        refuse(OF_AN_OPERATION + OF_RANDOM_WEIGHTS, "on a model's own weights")
    if bits == 16:
        refuse(OF_BLOCKS, "on fp16 weights")


def _thread_counts(threads: str | None) -> tuple[int, ...]:
    from ..bench.cases import parse_counts
    from ..engine.loading import MOST_THREADS
    from ..machine.cpus import allowed_cpus

    if threads is None:
        return (allowed_cpus().count,)
    return tuple(dict.fromkeys(parse_counts(threads, "--threads", 1, MOST_THREADS)))


def _random_model(model: str | None, shape: str | None, weights: WeightFormat) -> RandomModel | None:
    from ..bench.job import RandomModel
    from ..bench.random_model import check_random_model

    if shape is None:
        return None
    if model is not None:
        raise InvalidParameter(f"both a model, {model}, and --shape {shape} are given; measure one of them")
    random = RandomModel(shape, weights)
    check_random_model(random)
    return random


def _check_alone(operation: str, model: str | None, shape: str | None, against: str | None) -> None:
    if operation != "linear":
        raise InvalidParameter(f"--op is {operation!r}; linear is the only op that is measured on its own")
    if model is not None or shape is not None or against is not None:
        raise InvalidParameter("--op measures an op on its own, without a model, --shape or --against")


def _kernels(operation: Operation) -> tuple[Contender, ...]:
    """Every kernel that runs here, or those of the instruction set that NYBBLE_ISA names."""
    import os

    from ..bench.benchmark import Contender
    from ..bench.linear import kernels_for
    from ..machine.placement import assemble

    forced = os.environ.get("NYBBLE_ISA")
    kernels = kernels_for(operation, [forced] if forced else assemble(None).available)
    return tuple(Contender(kernel.name, "", operation.name) for kernel in kernels)


def _contenders(
    model: str | None,
    random: RandomModel | None,
    kv: str,
    offline: bool,
    against: str | None,
    peer_python: Sequence[str],
    peer_model: Sequence[str],
    directory: Path,
) -> tuple[Contender, ...]:
    """Ours, and the other engines that are there; ``directory`` is for a file of the random model if one is needed."""
    from ..bench.benchmark import Contender
    from ..bench.contenders import find_contenders, parse_peers, parse_places
    from ..bench.job import OURS
    from ..bench.peers import PEERS
    from ..hub.resolve import resolve

    names = () if against is None else parse_peers(against)
    pythons = parse_places(peer_python, "--peer-python", names)
    models = parse_places(peer_model, "--peer-model", names)
    suffix = "" if kv == "fp16" else f" ({kv} KV)"
    path: Path | None = None
    if random is None:
        with work_progress() as progress:
            path = resolve(model, offline=offline, progress=progress)
        ours = Contender(OURS, str(path.absolute()), path.stem + suffix)
    else:
        ours = Contender(OURS, "", random.name + suffix)
        if any(PEERS[name].own_model is None and name not in models for name in names):
            path = _random_file(random, directory)
    found, missing = find_contenders(names, pythons, models, path)
    for line in missing:
        note(line)
    if names and not found:
        raise BenchmarkFailed("none of the engines of --against can be measured")
    return (ours, *found)


def _random_file(random: RandomModel, directory: Path) -> Path:
    from ..bench.shape_file import gguf_storage, is_same_format, write_gguf

    storage = gguf_storage(random).name
    if not is_same_format(random):
        note(f"other engines are measured with {storage} weights: their files have no {random.name.split()[-1]}")
    path = directory / f"{random.shape} {storage}.gguf"
    write_gguf(random, path)
    return path
