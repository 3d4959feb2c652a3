"""Repositories of the hub, against a small hub on the loopback device; each client is a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nybble.conversion.folder import to_onnx
from nybble.hub.huggingface import HubReference, parse_reference
from tests.engine.small_models import small_gguf

from .toy import COMMIT, MODEL, sha256, write_table

Q4, Q8 = MODEL + b"4", MODEL + b"8"
FILES = {"toy-Q4_0.gguf": Q4, "toy-Q8_0.gguf": Q8, "README.md": b"# toy"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/repo", ("org/repo", None)),
        ("org/Repo-1.5B_x-GGUF:Q4_K_M", ("org/Repo-1.5B_x-GGUF", "Q4_K_M")),
        ("org/repo:sub/file-00001-of-00002.gguf", ("org/repo", "sub/file-00001-of-00002.gguf")),
        ("models/tiny.gguf", None),
        ("./org/repo", None),
        ("../repo", None),
        ("/org/repo", None),
        ("org/repo/file", None),
        ("org/repo:", None),
        ("org/repo:a:b", None),
        ("repo", None),
        ("o rg/repo", None),
        ("örg/repo", None),
        ("org/..", None),
        ("org/repo\n", None),
        ("https://hub/org/repo", None),
        ("", None),
    ],
)
def test_what_is_a_reference(name, expected):
    """Guards against asking the hub for what is plainly a path, and against names that reach elsewhere on the hub."""
    assert parse_reference(name) == (expected and HubReference(*expected))


def cached_path(tmp_path: Path, repository: str, file: str) -> str:
    folder = f"models--{repository.replace('/', '--')}"
    return str(tmp_path / "home/huggingface/hub" / folder / "snapshots" / COMMIT / file)


def test_download_choose_and_reuse(hub, resolver, tmp_path):
    """Guards the whole way once: by quantisation, by file, by preference; then from the cache, then offline."""
    hub.add("org/toy", FILES)
    by_label, by_file, preferred = resolver.run("org/toy:q8_0", "org/toy:toy-Q8_0.gguf", "org/toy")
    assert by_label["path"] == by_file["path"] == cached_path(tmp_path, "org/toy", "toy-Q8_0.gguf")
    assert Path(by_label["path"]).read_bytes() == Q8
    assert Path(preferred["path"]).read_bytes() == Q4
    size = len(Q8)
    stages = {"downloading toy-Q8_0.gguf": [size, size], "checking toy-Q8_0.gguf": [size, size]}
    assert (by_label["stages"], by_file["stages"]) == (stages, {})
    assert len(hub.downloads()) == 2
    # Now everything is there: online the hub is only asked what is current, offline it is not asked at all.
    names = ("org/toy:Q8_0", "org/toy")
    online = resolver.run(*names)
    assert hub.downloads() == []
    offline = resolver.run(*names, "org/toy:Q2_K", "org/other", offline=True)
    by_variable = resolver.run("org/toy:Q8_0", HF_HUB_OFFLINE="1")
    assert hub.requests == []
    assert [result["path"] for result in online] == [result["path"] for result in offline[:2]]
    assert by_variable[0]["path"] == by_label["path"]
    for result, name in zip(offline[2:], ("org/toy:Q2_K", "org/other"), strict=True):
        assert result["error"] == "ModelNotFound"
        assert (f"{name} is not in the Hugging Face cache, and offline mode forbids") in result["message"]


def test_without_a_network_the_cache_serves(hub, resolver, tmp_path):
    """Guards trains and tunnels: a hub that cannot be reached, or is ill, is no obstacle to what is already here."""
    hub.add("org/toy", FILES)
    [first] = resolver.run("org/toy:Q8_0")
    hub.repositories["org/toy"].status = 503
    ill = resolver.run("org/toy:Q8_0", "org/toy:Q4_0")
    unreachable = resolver.run("org/toy:Q8_0", "org/toy:Q4_0", HF_ENDPOINT="http://127.0.0.1:9")
    for found, missing in (ill, unreachable):
        assert found["path"] == first["path"]
        assert missing["error"] == "DownloadFailed"
    assert "answered with status 503; try again later" in ill[1]["message"]
    assert "org/toy could not be fetched from http://127.0.0.1:9" in unreachable[1]["message"]


def test_cut_connections_are_resumed(hub, resolver):
    """Guards against starting over: after two cuts the rest only is asked for, in steps of the client's 10 MiB."""
    large = MODEL * 48
    hub.add("org/toy", {"toy-Q4_0.gguf": large}, cuts={"toy-Q4_0.gguf": [12_000_000, 11_000_000]})
    [result] = resolver.run("org/toy:Q4_0")
    assert Path(result["path"]).read_bytes() == large
    ranges = [request.rpartition(" ")[2] for request in hub.downloads()]
    assert ranges[1:] == ["bytes=10485760-", "bytes=20971520-"]


def test_split_models_arrive_whole(hub, resolver):
    """Guards against a first shard alone, and against a repository that lacks one."""
    shards = {f"big/toy-Q8_0-{number:05}-of-00003.gguf": MODEL + bytes([number]) for number in (1, 2, 3)}
    hub.add("org/split", shards)
    hub.add("org/torn", dict(list(shards.items())[:2]))
    whole, torn = resolver.run("org/split:Q8_0", "org/torn")
    first = Path(whole["path"])
    assert first.name == "toy-Q8_0-00001-of-00003.gguf"
    assert [path.read_bytes() for path in sorted(first.parent.iterdir())] == list(shards.values())
    assert torn["error"] == "ModelNotFound"
    assert "is split and 1 of its files are missing" in torn["message"]


def test_folders_arrive_whole(hub, resolver, tmp_path):
    """Guards ONNX and safetensors: every file that is read, no other, and offline what is here."""
    graph = {f"cpu-int4/{name}": name.encode() for name in ("model.onnx.data", "genai_config.json", "model.onnx")}
    plain = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"x"}
    hub.add("org/graphs", graph | {f"cuda/{name}": b"" for name in ("genai_config.json", "model.onnx")})
    hub.add("org/plain", plain)
    names = ("org/graphs", "org/plain")
    results = resolver.run(*names)
    folder, root = (Path(result["path"]) for result in results)
    assert str(folder) == cached_path(tmp_path, "org/graphs", "cpu-int4")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        Path(name).name: content for name, content in graph.items()
    }
    assert str(root) == cached_path(tmp_path, "org/plain", "").rstrip("/")
    assert {path.name for path in root.iterdir()} == set(plain) - {"pytorch_model.bin"}
    hub.requests.clear()
    assert [result["path"] for result in resolver.run(*names, offline=True)] == [str(folder), str(root)]
    assert hub.requests == []


def test_an_onnx_model_of_the_hub_answers(hub, environment, tmp_path):
    """Guards the whole way: its weights lie among the blobs of the hub's cache, where links lead to."""
    written = to_onnx(small_gguf(tmp_path / "model.gguf", "qwen2", "Q8_0"), tmp_path / "model").folder
    hub.add("org/tiny", {f"onnx/{file.name}": file.read_bytes() for file in written.iterdir()})
    command = [sys.executable, "-m", "nybble", "run", "--max-tokens", "4", "--json", "--model"]
    answers = []
    for model in ("org/tiny", "org/tiny:onnx", str(written)):
        run = subprocess.run([*command, model, "the"], capture_output=True, text=True, env=os.environ | environment)
        assert run.returncode == 0, run.stderr
        answers.append(json.loads(run.stdout)["text"])
    assert len(set(answers)) == 1
    listed = subprocess.run([*command[:3], "models"], capture_output=True, text=True, env=os.environ | environment)
    assert "org/tiny:onnx" in listed.stdout


def test_refusals_are_one_line_each(hub, resolver):
    """Guards the wording for each answer of a hub; what the client says takes many lines."""
    hub.add("org/gated", FILES, gated=True)
    hub.add("org/weights", {"model.safetensors": b"x"})
    hub.add("org/many", {f"a-{label}.gguf": MODEL for label in ("Q2_K", "Q3_K")})
    hub.add("org/liar", FILES, wrong_sha256=True)
    hub.add("org/denied", FILES, status=403)
    names = (
        "org/none:Q4_0",
        "org/gated",
        "org/weights",
        "org/many",
        "org/many:Q8_0",
        "org/liar",
        "org/denied",
        "a--b/c",
    )
    results = dict(zip(names, resolver.run(*names), strict=True))
    expected = {
        "org/none:Q4_0": ("ModelNotFound", f"{hub.address} has no repository org/none, or it is private and needs"),
        "org/gated": ("DownloadFailed", f"org/gated is gated: accept its terms at {hub.address}/org/gated"),
        "org/weights": ("ModelNotFound", "org/weights holds no GGUF file"),
        "org/many": ("ModelNotFound", "org/many holds several models; name one: org/many:{Q2_K, Q3_K}"),
        "org/many:Q8_0": ("ModelNotFound", "org/many has no GGUF file or quantisation Q8_0; there are Q2_K, Q3_K"),
        "org/liar": ("DownloadFailed", f"has SHA-256 {sha256(Q4)}, the hub says {'0' * 64}; it was thrown away"),
        "org/denied": ("DownloadFailed", "answered with status 403; check the login"),
        "a--b/c": ("ModelNotFound", "a--b/c cannot be the name of a repository"),
    }
    for name, (kind, message) in expected.items():
        assert results[name]["error"] == kind, results[name]
        assert message in results[name]["message"]
    assert "no file " in results["org/none:Q4_0"]["message"], "a missing repository also tells that no such path exists"


def test_damage_is_fetched_again(hub, resolver):
    """Guards against a file that was cut in the cache, and against keeping one the hub's own checksum contradicts."""
    repository = hub.add("org/toy", FILES, wrong_sha256=True)
    [liar] = resolver.run("org/toy")
    assert liar["error"] == "DownloadFailed"
    repository.wrong_sha256 = False
    [good] = resolver.run("org/toy")
    Path(good["path"]).write_bytes(Q4[:1000])
    [again] = resolver.run("org/toy")
    assert good["path"] == again["path"]
    assert Path(again["path"]).read_bytes() == Q4


def test_a_catalogue_entry_on_the_hub(hub, resolver, tmp_path):
    """Guards entries with a hub source: pinned commit, our own cache, our checksum."""
    hub.add("org/toy", FILES)
    entry = {
        "title": "Toy",
        "source": "hub:org/toy",
        "file": "toy-Q8_0.gguf",
        "revision": COMMIT,
        "size": len(Q8),
        "sha256": sha256(Q8),
        "quantisation": "Q8_0",
        "license": "mit",
    }
    catalogue = write_table(
        tmp_path / "hub.toml",
        good=entry | {"default": True},
        wrong=entry | {"sha256": sha256(Q4)},
        moved=entry | {"revision": "f" * 40},
        renamed=entry | {"file": "toy-Q2_K.gguf"},
    )
    good, again, wrong, moved, renamed = resolver.run(None, "good", "wrong", "moved", "renamed", catalogue=catalogue)
    assert good["path"] == str(tmp_path / "cache/models/good" / sha256(Q8)[:12] / "toy-Q8_0.gguf")
    assert Path(good["path"]).read_bytes() == Q8
    assert again == {"path": good["path"], "stages": {}}
    assert wrong["error"] == "DownloadFailed"
    assert f"has SHA-256 {sha256(Q8)}, expected {sha256(Q4)}" in wrong["message"]
    assert (moved["error"], "has no such revision" in moved["message"]) == ("ModelNotFound", True)
    assert (renamed["error"], "has no such file" in renamed["message"]) == ("ModelNotFound", True)
    [offline] = resolver.run("wrong", catalogue=catalogue, offline=True)
    assert (offline["error"], "not in the model cache" in offline["message"]) == ("ModelNotFound", True)
