import pytest

from keras_bandgnn.data import FlatGraphs, open_store
from keras_bandgnn.preprocessing import (
    GraphPreprocessor,
    ProgramEncoder,
    RCMKCompile,
    ReachabilityFilter,
)
from keras_bandgnn.programs.models.program_store import bandwidths, compile_programs
from keras_bandgnn.programs.program_files import find_programs

LAYERS = [ProgramEncoder(), ReachabilityFilter(3), RCMKCompile(16)]


class Killed(Exception):
    pass


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    for index in range(70):
        text = f"def f{index}(left, right):\n    return left * right + left\n"
        (folder / f"m{index:02}.py").write_text(text)
    (folder / "m99.py").write_text("def broken(:\n")
    return find_programs(folder, by="none")


def compiled(files, path, **options):
    kind, splits = files
    made = GraphPreprocessor(LAYERS)
    return compile_programs(kind, splits["all"], path, made, **options)


def content(path):
    return {p.name: p.read_bytes() for p in sorted(path.iterdir())}


@pytest.mark.release
def test_a_killed_run_ends_with_the_same_bytes(files, tmp_path):
    whole = compiled(files, tmp_path / "whole", processes=1)
    assert len(whole) == 70 * 3

    def kill(done, total):
        if done == 40:
            raise Killed

    with pytest.raises(Killed):
        compiled(files, tmp_path / "resumed", processes=1, progress=kill)
    assert not (tmp_path / "resumed").exists()
    seen = []
    compiled(
        files,
        tmp_path / "resumed",
        processes=2,
        progress=lambda done, total: seen.append(done),
    )
    # The first unit of 32 files was kept.
    assert seen[:2] == [32, 33] and seen[-1] == 71
    assert content(tmp_path / "resumed") == content(tmp_path / "whole")


def test_a_finished_store_is_kept(files, tmp_path):
    compiled(files, tmp_path / "store", processes=1)
    before = (tmp_path / "store" / "store.json").stat().st_mtime_ns
    compiled(files, tmp_path / "store", processes=1)
    assert (tmp_path / "store" / "store.json").stat().st_mtime_ns == before
    with pytest.raises(FileExistsError, match="--overwrite"):
        compiled(files, tmp_path / "store", options={"seed": 3}, processes=1)
    compiled(files, tmp_path / "store", options={"seed": 3}, overwrite=True)


def test_reports_and_metadata(files, tmp_path):
    store = compiled(files, tmp_path / "store", processes=1)
    skipped = [item for entry in store.reports for item in entry["skipped"]]
    assert [name for name, _ in skipped] == ["m99.py"]
    made = GraphPreprocessor(LAYERS)
    assert made.compile(open_store(store.path)).path == store.path
    before, after = bandwidths(FlatGraphs.concatenate(list(store.shards)))
    assert len(before) == len(after) == len(store)
    assert after.mean() < before.mean()


def test_the_first_layer_must_encode(files, tmp_path):
    kind, splits = files
    with pytest.raises(ValueError, match="first layer to be a ProgramEncoder"):
        compile_programs(
            kind, splits["all"], tmp_path / "s", GraphPreprocessor([RCMKCompile()])
        )
