"""Guards against shards that lie: wrong counts or order, foreign or missing parts, names taken from inside files."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from nybble.errors import ModelFileError
from nybble.formats.gguf import open_gguf

from .toy_gguf import ARCHITECTURE, I32, STRING, U16, U32, ToyGGUF, key, tensor_entry


def split_keys(number: int, count: int, tensors: int) -> list[bytes]:
    return [
        key("split.no", U16, number),
        key("split.count", U16, count),
        key("split.tensors.count", I32, tensors),
    ]


def shard(number: int, count: int = 3, tensors: int = 3, names: tuple[str, ...] | None = None) -> ToyGGUF:
    """Shard ``number`` (from 0) of a model with one F32 vector of eight ``number``s per shard."""
    names = (f"tensor.{number}",) if names is None else names
    first = [ARCHITECTURE, key("toy.width", U32, 8)] if number == 0 else []
    entries = [tensor_entry(name, (8,), 0, 32 * place) for place, name in enumerate(names)]
    data = np.full(8 * len(names), number, "<f4").tobytes()
    return ToyGGUF(keys=[*first, *split_keys(number, count, tensors)], tensors=entries, data=data)


def write(folder: Path, shards: list[ToyGGUF], name: str = "toy-{:05d}-of-{:05d}.gguf") -> list[Path]:
    return [toy.write(folder / name.format(place, len(shards))) for place, toy in enumerate(shards, start=1)]


def test_any_shard_opens_all(tmp_path: Path) -> None:
    paths = write(tmp_path, [shard(number) for number in range(3)])
    for path in paths:
        checkpoint = open_gguf(path)
        assert checkpoint.path == path
        assert checkpoint.architecture == "toy"
        assert checkpoint.metadata["toy.width"] == 8
        assert list(checkpoint.tensors) == ["tensor.0", "tensor.1", "tensor.2"]
        assert checkpoint.file_bytes == sum(each.stat().st_size for each in paths)
        for number, tensor in enumerate(checkpoint.tensors.values()):
            assert (tensor.rows.view("<f4") == number).all()
            assert tensor.file == str(paths[number])
            checkpoint.release()
            assert (tensor.rows.view("<f4") == number).all()


def test_what_the_gguf_package_splits_is_read_whole(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "toy", split_max_tensors=2)
    written = {f"tensor.{number}": np.full((2, 4), number, np.float32) for number in range(5)}
    for name, values in written.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_gguf(tmp_path / "toy-00002-of-00003.gguf")
    assert {name: tensor.rows.view("<f4").tolist() for name, tensor in checkpoint.tensors.items()} == {
        name: values.tolist() for name, values in written.items()
    }


def test_shards_may_be_links_into_a_store(tmp_path: Path) -> None:
    store = tmp_path / "blobs"
    store.mkdir()
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for number, path in enumerate(write(snapshot, [shard(number) for number in range(3)])):
        path.rename(store / f"blob{number}")
        path.symlink_to(Path("..") / "blobs" / f"blob{number}")
    assert len(open_gguf(snapshot / "toy-00001-of-00003.gguf").tensors) == 3


def test_a_single_file_may_say_that_it_is_one_of_one(tmp_path: Path) -> None:
    assert len(open_gguf(shard(0, count=1, tensors=1).write(tmp_path / "toy.gguf")).tensors) == 1


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write(tmp_path, [shard(number) for number in range(3)])
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"toy-00002-of-00003\.gguf: shard 2 of 3 is missing"):
        open_gguf(paths[0])


def test_a_renamed_shard_is_refused(tmp_path: Path) -> None:
    paths = write(tmp_path, [shard(number) for number in range(3)])
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="this is one of 3 shards, but its name does not end in"):
        open_gguf(renamed)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    paths = write(tmp_path, [shard(number) for number in range(3)])
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=r"toy-00003-of-00003\.gguf: tensor\.2: ends at byte"):
        open_gguf(paths[0])


@pytest.mark.parametrize("count", [2, 4, 65535])
def test_the_count_inside_must_be_that_of_the_name(tmp_path: Path, count: int) -> None:
    paths = write(tmp_path, [shard(number, count=count) for number in range(3)])
    with pytest.raises(ModelFileError, match=rf"the file says {count} shards, its name says 3"):
        open_gguf(paths[0])


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((0, 2, 1), r"00002-of-00003\.gguf: split\.no: expected 1, found 2"),
        ((1, 0, 2), r"00001-of-00003\.gguf: split\.no: expected 0, found 1"),
        ((0, 1, 1), r"00003-of-00003\.gguf: split\.no: expected 2, found 1"),
    ],
)
def test_shards_must_be_in_order(tmp_path: Path, order: tuple[int, ...], message: str) -> None:
    paths = write(tmp_path, [shard(number) for number in order])
    for path in paths:
        with pytest.raises(ModelFileError, match=message):
            open_gguf(path)


def test_every_shard_must_say_the_same_count(tmp_path: Path) -> None:
    paths = write(tmp_path, [shard(0), shard(1, count=4), shard(2)])
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: split\.count: expected 3, found 4"):
        open_gguf(paths[0])


@pytest.mark.parametrize("total", [-1, 0, 2, 4, 2**31 - 1])
def test_the_number_of_tensors_must_agree(tmp_path: Path, total: int) -> None:
    paths = write(tmp_path, [shard(0), shard(1), shard(2, tensors=total)])
    with pytest.raises(ModelFileError, match=rf"00003\.gguf: split\.tensors\.count: expected 3, found {total}"):
        open_gguf(paths[0])


def test_a_tensor_may_be_in_one_shard_only(tmp_path: Path) -> None:
    paths = write(tmp_path, [shard(0), shard(1), shard(2, names=("tensor.0",))])
    with pytest.raises(ModelFileError, match=r"00003\.gguf: tensor\.0: this tensor is also in .*00001"):
        open_gguf(paths[0])


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    foreign = shard(1)
    foreign.keys.append(key("general.architecture", STRING, "other"))
    paths = write(tmp_path, [shard(0), foreign, shard(2)])
    with pytest.raises(ModelFileError, match=r"general\.architecture: differs from the same key of the first shard"):
        open_gguf(paths[0])


def test_a_whole_model_in_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    paths = write(tmp_path, [shard(0), ToyGGUF(), shard(2)])
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: split\.no: expected 1, found nothing"):
        open_gguf(paths[0])


@pytest.mark.parametrize("name", ["toy-00000-of-00003.gguf", "toy-00004-of-00003.gguf"])
def test_a_number_outside_the_count_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, [shard(number) for number in range(3)])
    with pytest.raises(ModelFileError, match=r"the name says shard \d of 3"):
        open_gguf(shard(0).write(tmp_path / name))


def test_names_inside_files_are_never_followed(tmp_path: Path) -> None:
    """A traversal in metadata changes nothing: siblings are found by the opened name, in its folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    first = shard(0)
    first.keys += [key("general.name", STRING, "../outside/toy"), key("split.files", STRING, "../outside/toy")]
    paths = write(inside, [first, shard(1), shard(2)])
    shutil.move(paths[1], outside / paths[1].name)
    with pytest.raises(ModelFileError, match=r"inside/toy-00002-of-00003\.gguf: shard 2 of 3 is missing"):
        open_gguf(paths[0])
