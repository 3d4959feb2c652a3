"""The house rules that a machine can check: which room may know which, and how large a file may grow."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "nybble"

# Each room may import the rooms after it; rooms on one line do not know each other. Everyone may import errors.
FLOORS = [
    {"cli"},
    {"bench"},
    {"engine"},
    {"packed", "conversion"},
    {"hub", "models", "ort", "inspection"},
    {"formats", "tokenizer", "machine"},
    {"graph"},
    {"quant"},
    {"_native"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MOST_LINES = 400


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


def rooms_imported(path: Path) -> set[str]:
    room = path.relative_to(PACKAGE).parts[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*path.relative_to(PACKAGE).parts[:-1]]
            base = base[: len(base) - (node.level - 1)]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {[*base, *name.split(".")][0] for name in names}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found |= {name.split(".")[1] for name in names if name and name.startswith("nybble.")}
    return found - {room, "errors", "__version__"}


def test_every_room_is_on_a_floor() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0] for path in modules()}
    assert rooms <= set(FLOOR_OF)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_know_only_rooms_below(path: Path) -> None:
    floor = FLOOR_OF[path.relative_to(PACKAGE).parts[0]]
    for room in rooms_imported(path):
        assert FLOOR_OF[room] > floor, f"{path.name} may not import {room}"


@pytest.mark.parametrize(
    "path",
    [*PACKAGE.rglob("*.py"), *(ROOT / "native").rglob("*.[ch]pp"), *(ROOT / "tests").rglob("*.py")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES, "look for the second noun"
