"""Delta checkpoints: a chain is one table, the same as its restore gives."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.inspection.tables import assert_equal, make
from tfctr.cli.main import main
from tfctr.embedding.inspection import policies
from tfctr.embedding.inspection.sources import open_source


def train(table: tfctr.EmbeddingVariable, ids: np.ndarray) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.lookup(ids, training=True) ** 2)
    table.apply_gradients(tape.gradient(loss, table.handle))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A full save and four deltas: rows that change, go, come back; counters that grow, are admitted, go."""
    folder = tmp_path_factory.mktemp("chain") / "saves"
    random = np.random.default_rng(5)
    table = make(record_changes=True, record_frequency=True, eviction=tfctr.StepEviction(3, min_rows=4700))
    bloom = make("bloom", record_changes=True, admission=tfctr.BloomAdmission(2, 1000), eviction=None)
    manager = tfctr.DeltaCheckpointManager(tf.train.Checkpoint(users=table, items=bloom), folder, max_delta_rows=10)
    train(table, np.repeat(np.arange(5000), 2))
    table.lookup(np.arange(6000, 6300), training=True)
    train(bloom, np.repeat(np.arange(100), 2))
    manager.save()
    for number in range(4):
        train(table, np.repeat(random.integers(0, 6300, 200), 2))
        table.lookup(random.integers(6000, 6600, 50), training=True)
        table.erase(random.integers(0, 6300, 20))
        if number == 2:
            table.evict()
        train(bloom, random.integers(0, 200, 20))
        manager.save()
    names = [save.name for save in manager.saves]
    manager.close()
    return folder, names


def fresh() -> dict[str, tfctr.EmbeddingVariable]:
    return {
        "users": make(record_frequency=True, eviction=tfctr.StepEviction(3, min_rows=4700)),
        "items": make("bloom", admission=tfctr.BloomAdmission(2, 1000), eviction=None),
    }


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_chain_is_what_its_restore_gives(chain, tmp_path, number):
    folder, names = chain
    prefix = str(folder / names[number])
    assert open_source(prefix).table("users").saves == tuple(str(folder / name) for name in names[: number + 1])
    assert main(["ckpt", "export", prefix, str(tmp_path / "tables")]) == 0
    assert main(["ckpt", "import", str(tmp_path / "tables"), str(tmp_path / "whole")]) == 0
    restored, imported = fresh(), fresh()
    tf.train.Checkpoint(**restored).read(prefix).assert_existing_objects_matched()
    tf.train.Checkpoint(**imported).read(str(tmp_path / "whole")).assert_consumed()
    for name, table in restored.items():
        assert_equal(imported[name], table)
    assert main(["ckpt", "diff", prefix, str(tmp_path / "whole"), "--table", "users"]) == 0
    saved = open_source(prefix).table("users")
    live = restored["users"].evict(dry_run=True, step=20)
    told = policies.dry_run(saved, policies.rules_of(saved), now=policies.Now(20, None))
    assert (told.rows, told.counters) == (live.rows, live.counters)


def test_shown(chain, capsys):
    folder, names = chain
    assert main(["ckpt", "inspect", str(folder), "--table", "users"]) == 0
    captured = capsys.readouterr()
    assert f"taking the latest: {folder / names[-1]}" in captured.err
    assert "made up of:                   5 saves" in captured.out
    assert main(["ckpt", "diff", str(folder / names[0]), str(folder / names[1]), "--json"]) == 3
    users = next(one for one in json.loads(capsys.readouterr().out)["tables"] if one["name"] == "users")
    assert 0 < users["changed"] < 300 and 0 < users["removed"] <= 20


def test_a_chain_with_a_gap(chain, tmp_path, capsys):
    folder, names = chain
    for file in folder.iterdir():
        if file.is_file() and file.name.split(".")[0] != names[1]:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert main(["ckpt", "inspect", str(tmp_path / names[3])]) == 2
    error = capsys.readouterr().err
    assert f"is a delta on {tmp_path / names[1]}, save" in error and "which is missing" in error
    for part in ("index", "data-00000-of-00002", "data-00001-of-00002"):
        (tmp_path / f"{names[1]}.{part}").write_bytes((folder / f"{names[2]}.{part}").read_bytes())
    assert main(["ckpt", "inspect", str(tmp_path / names[2])]) == 2
    assert "but that is save" in capsys.readouterr().err
