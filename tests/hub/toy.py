"""A toy catalogue, a toy wheel, a stand-in for pip, and a program that resolves names in a process of its own."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

MODEL = b"GGUF" + bytes(range(256)) * 2000
MEMBER = "toy_model/Toy-Model.Q4_1.gguf"
WHEEL = "toy_model-1.0-py3-none-any.whl"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(directory: Path, content: bytes = MODEL, member: str = MEMBER) -> Path:
    """A wheel that the real pip accepts."""
    path = directory / WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr(
            "toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    return path


def write_catalogue(directory: Path, wheel: Path, /, **changes: object) -> Path:
    """A catalogue with the toy as its default; ``changes`` replace values of the entry."""
    entry: dict[str, object] = {
        "title": "Toy",
        "source": "pypi:toy-model==1.0",
        "member": MEMBER,
        "wheel": {"size": wheel.stat().st_size, "sha256": sha256(wheel.read_bytes())},
        "size": len(MODEL),
        "sha256": sha256(MODEL),
        "quantisation": "Q4_1",
        "license": "apache-2.0",
        "default": True,
    }
    return write_table(directory / "catalogue.toml", toy=entry | changes)


def write_table(path: Path, /, **entries: dict[str, object]) -> Path:
    """TOML of these entries; keys with the value None are left out."""

    def spell(value: object) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {spell(item)}" for key, item in value.items()) + " }"
        return json.dumps(value)

    lines = []
    for name, entry in entries.items():
        lines.append(f'["{name}"]')
        lines += [f"{key} = {spell(value)}" for key, value in entry.items() if value is not None]
    path.write_text("\n".join(lines) + "\n")
    return path


# Runs in a process of its own: HF_ENDPOINT is read at import, and only whole processes can be killed or race.
PROGRAM = """
import json, sys
from pathlib import Path
from nybble.errors import NybbleError
from nybble.hub.catalogue import load_catalogue
from nybble.hub.resolve import resolve
catalogue, offline, names = json.loads(sys.argv[1])
loaded = load_catalogue(Path(catalogue)) if catalogue else None
for name in names:
    stages = {}
    def progress(stage, done, total):
        assert total is None or 0 <= done <= total, (stage, done, total)
        stages[stage] = [done, total]
    try:
        path = resolve(name, offline=offline, progress=progress, catalogue=loaded)
        result = {"path": str(path), "stages": stages}
    except NybbleError as error:
        result = {"error": type(error).__name__, "message": str(error), "stages": stages}
    print(json.dumps(result), flush=True)
"""


class Resolver:
    """Starts the program with a given environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def start(self, *names: str | None, catalogue: Path | None = None, offline: bool = False, **environment: str):
        argument = json.dumps([catalogue and str(catalogue), offline, names])
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, argument],
            env=os.environ | self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *names: str | None, catalogue: Path | None = None, offline: bool = False, **environment: str):
        return self.finish(self.start(*names, catalogue=catalogue, offline=offline, **environment))

    def finish(self, process: subprocess.Popen) -> list[dict]:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        results = [json.loads(line) for line in output.splitlines()]
        for result in results:
            assert "\n" not in result.get("message", ""), "an error must be one line"
        return results


# What the stand-in does is chosen by TOY_PIP: "copy" delivers the wheel, "hang" stops half-way, "say:..." fails.
FAKE_PIP = """
import os, pathlib, shutil, sys, time
assert sys.argv[1] == "download" and sys.argv[-1] == "toy-model==1.0", sys.argv
with open(os.environ["TOY_LOG"], "a") as log:
    log.write(f"{os.getpid()}\\n")
mode, wheel = os.environ["TOY_PIP"], pathlib.Path(os.environ["TOY_WHEEL"])
if mode.startswith("say:"):
    print(mode[4:])
    sys.exit(1)
temporary = pathlib.Path(os.environ["TMPDIR"]) / "unpacked.whl"
data, parent = wheel.read_bytes(), os.getppid()
temporary.write_bytes(data[: len(data) // 2])
time.sleep(float(os.environ.get("TOY_DELAY", "0")))
while mode == "hang" and os.getppid() == parent:
    time.sleep(0.01)
temporary.write_bytes(data)
destination = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
destination.mkdir()
shutil.copy(temporary, destination / wheel.name)
"""


def install_fake_pip(directory: Path, wheel: Path) -> dict[str, str]:
    """The environment in which ``python -m pip`` is the stand-in."""
    package = directory / "fake" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(FAKE_PIP)
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
    log = directory / "pip-calls"
    log.touch()
    return {"PYTHONPATH": path, "TOY_LOG": str(log), "TOY_WHEEL": str(wheel), "TOY_PIP": "copy"}


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"
