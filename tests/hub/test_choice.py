"""Which file of a repository is chosen; file lists in the style publishers use, names made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nybble.errors import ModelNotFound
from nybble.hub.choice import PREFERENCE, choose, list_choices

PLAIN = [f"Toy-1B-{label}.gguf" for label in ("Q2_K", "Q3_K_L", "Q4_0", "Q4_K_M", "Q4_K_S", "Q8_0", "f16")]
SHARDS = [f"Q8_0/Toy-Q8_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("files", "selector", "expected"),
    [
        (PLAIN, "Q4_K_M", ["Toy-1B-Q4_K_M.gguf"]),
        (PLAIN, "q4_k_s", ["Toy-1B-Q4_K_S.gguf"]),
        (PLAIN, "F16", ["Toy-1B-f16.gguf"]),
        (PLAIN, "Toy-1B-Q2_K.gguf", ["Toy-1B-Q2_K.gguf"]),
        (PLAIN, None, ["Toy-1B-Q4_K_M.gguf"]),
        (PLAIN[:3], None, ["Toy-1B-Q4_0.gguf"]),
        (["README.md", "only-IQ2_XXS.gguf"], None, ["only-IQ2_XXS.gguf"]),
        (["odd name.GGUF"], None, ["odd name.GGUF"]),
        (["toy.q4_k_m.gguf", "toy.q8_0.gguf"], "Q8_0", ["toy.q8_0.gguf"]),
        (["toy_Q4_0.gguf", "toy_Q4_0_4_4.gguf"], "Q4_0", ["toy_Q4_0.gguf"]),
        (["toy-UD-Q4_K_XL.gguf", "toy-Q4_K_M.gguf"], "q4_k_xl", ["toy-UD-Q4_K_XL.gguf"]),
        (["toy-UD-Q4_K_M.gguf", "toy-Q4_K_M.gguf"], "Q4_K_M", ["toy-Q4_K_M.gguf"]),
        (["toy-UD-Q4_K_M.gguf", "toy-Q4_K_M.gguf"], "ud-q4_k_m", ["toy-UD-Q4_K_M.gguf"]),
        (["sub/a-Q8_0.gguf", "b-Q4_0.gguf"], "a-Q8_0.gguf", ["sub/a-Q8_0.gguf"]),
        (["mmproj-toy-Q8_0.gguf", "toy-Q8_0.gguf"], "Q8_0", ["toy-Q8_0.gguf"]),
        (["mmproj-toy-f16.gguf", "toy-IQ1_S.gguf", "toy.imatrix.gguf"], None, ["toy-IQ1_S.gguf"]),
        (["mmproj-toy-f16.gguf", "toy-Q8_0.gguf"], "mmproj-toy-f16.gguf", ["mmproj-toy-f16.gguf"]),
        (SHARDS[::-1] + PLAIN[:2], "Q8_0", SHARDS),
        (SHARDS, None, SHARDS),
        (SHARDS, SHARDS[0], SHARDS),
        (SHARDS, "Toy-Q8_0-00002-of-00003.gguf", SHARDS),
        (["toy-00003-of-00002.gguf"], None, ["toy-00003-of-00002.gguf"]),
        (["toy-BF16.gguf", "toy-F32.gguf"], None, ["toy-BF16.gguf"]),
    ],
)
def test_choice(files, selector, expected):
    """Guards against the wrong file: near matches, letter case, sub-directories, companions, split models."""
    assert list(choose(files, selector, "org/repo").files) == expected


@pytest.mark.parametrize(
    ("files", "selector", "message"),
    [
        ([], None, "org/repo holds no GGUF file"),
        (["model.safetensors", "gguf"], "Q4_0", "org/repo holds no GGUF file"),
        (PLAIN, "Q4_K", "no GGUF file or quantisation Q4_K; there are Q2_K, Q3_K_L, Q4_0, Q4_K_M, Q4_K_S, Q8_0, F16"),
        (PLAIN, "model.bin", "no GGUF file or quantisation model.bin"),
        (["a-Q2_K.gguf", "b-Q3_K.gguf"], None, r"several models; name one: org/repo:\{Q2_K, Q3_K\}"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "2 files for Q8_0; name one: org/repo:a-Q8_0.gguf, org/repo:b-Q8_0"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], None, "name one: org/repo:a-Q8_0.gguf, org/repo:b-Q8_0.gguf"),
        (["x/a.gguf", "y/a.gguf"], "a.gguf", "name one: org/repo:x/a.gguf, org/repo:y/a.gguf"),
        (["a.gguf", "b-Q2_K.gguf"], None, r"org/repo:\{a.gguf, b-Q2_K.gguf\}"),
        (SHARDS[:2], "Q8_0", "is split and 1 of its files are missing"),
        ([f"m{number}.gguf" for number in range(30)], None, "m26.gguf, and 10 more"),
        (["mmproj-a.gguf", "mmproj-b.gguf"], None, "mmproj-a.gguf, mmproj-b.gguf"),
    ],
)
def test_refusals_name_the_choices(files, selector, message):
    """Guards against guessing where the name is ambiguous, and against errors that do not say what there is."""
    with pytest.raises(ModelNotFound, match=message) as caught:
        choose(files, selector, "org/repo")
    assert "\n" not in str(caught.value)


@given(st.sets(st.sampled_from(PREFERENCE), min_size=1))
def test_preference_is_the_stated_order(labels):
    """Guards the documented order, whatever subset a publisher offers and in whatever letter case."""
    files = [f"toy.{label.lower()}.gguf" for label in labels]
    best = min(labels, key=PREFERENCE.index)
    assert choose(files, None, "org/repo").files == (f"toy.{best.lower()}.gguf",)


@given(st.lists(st.text(alphabet="aQ4_K-./0of1u", max_size=20).map(lambda stem: stem + ".gguf")), st.text(max_size=8))
def test_any_list_of_names_is_survived(files, selector):
    """Guards against a crash on file names from a stranger's repository."""
    assert sum(len(choice.files) for choice in list_choices(files)) == len(set(files))
    for wanted in (None, selector):
        try:
            assert set(choose(files, wanted, "o/r").files) <= set(files)
        except ModelNotFound as error:
            assert "o/r" in str(error)


GENAI = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json")
CPU, GPU = (tuple(f"{folder}/{name}" for name in GENAI) for folder in ("cpu_and_mobile/cpu-int4", "cuda/cuda-int4"))
SAFETENSORS = ("config.json", "tokenizer.json", "model.safetensors")
SHARDED = (
    "config.json",
    "tokenizer.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
)


@pytest.mark.parametrize(
    ("files", "selector", "folder", "expected"),
    [
        ((*CPU, *GPU, "README.md"), None, "cpu_and_mobile/cpu-int4", CPU),
        ((*CPU, *GPU), "cuda-int4", "cuda/cuda-int4", GPU),
        ((*CPU, *GPU), "cuda/cuda-int4", "cuda/cuda-int4", GPU),
        ((*GPU, *SAFETENSORS), None, "cuda/cuda-int4", GPU),
        ((*GPU, *SAFETENSORS), "safetensors", ".", SAFETENSORS),
        ((*GENAI, ".gitattributes", "logo.png", "pytorch_model.bin"), None, ".", GENAI),
        ((*GENAI, *PLAIN), "onnx", ".", GENAI),
        (
            ("config.json", "tokenizer.json", "decoder.onnx", "decoder.onnx_data", "decoder.onnx_data_1"),
            None,
            ".",
            None,
        ),
        (SHARDED, None, ".", SHARDED),
        ((*SAFETENSORS, "chat_template.jinja", "pytorch_model.bin"), None, ".", (*SAFETENSORS, "chat_template.jinja")),
        ((*SAFETENSORS, "onnx/model.onnx", "onnx/model_q4.onnx"), None, ".", SAFETENSORS),
    ],
)
def test_folders(files, selector, folder, expected):
    """Guards against weights that stay behind, and files that nobody reads."""
    found = choose(files, selector, "org/repo")
    assert (found.folder, set(found.files)) == (folder, set(expected or files))
    assert found.files[-1].endswith((".onnx", ".safetensors", ".index.json")), "what makes it a model comes last"


def test_gguf_files_are_preferred():
    assert choose([*PLAIN, *CPU, *SAFETENSORS], None, "org/repo").files == ("Toy-1B-Q4_K_M.gguf",)
    assert choose([*PLAIN, *CPU], "Q8_0", "org/repo").files == ("Toy-1B-Q8_0.gguf",)


@pytest.mark.parametrize(
    ("files", "selector", "message"),
    [
        ((*CPU, *(f"cpu/{name}" for name in GENAI)), None, "2 such models; name one: org/repo:cpu, org/repo:cpu_and"),
        (CPU, "cuda", "has no model cuda; there are cpu_and_mobile/cpu-int4"),
        (SAFETENSORS[:2], None, "holds no GGUF file, no folder with an ONNX decoder, and no safetensors"),
        (SHARDED[1:], None, "holds no GGUF file"),
        (SAFETENSORS[1:], None, "holds no GGUF file"),
        (("onnx/model.onnx", "onnx/model_q4.onnx"), None, "holds no GGUF file"),
    ],
)
def test_folders_that_are_not_plain(files, selector, message):
    with pytest.raises(ModelNotFound, match=message):
        choose(files, selector, "org/repo")
