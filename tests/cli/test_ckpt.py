"""`tfctr ckpt inspect`: what it shows of checkpoints and SavedModels, its page, and what it says of bad input."""

import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.inspection.tables import fill, make, save
from tfctr.cli.main import main


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table `users` with everything, `words` with string keys, and a dense weight."""
    users = make(record_frequency=True, eviction=(tfctr.StepEviction(40), tfctr.CapacityEviction(20, "lfu")))
    fill(
        users, np.arange(-10, 40), frequency=np.arange(1, 51), last_step=np.arange(50) * 2,
        last_time=np.arange(50) * 100_000, counters={-100: (1, 90, 0), -101: (2, 3, 0)},
    )  # fmt: skip
    words = make("words", 2, key_dtype=tf.string, admission=None, eviction=None, optimizer=None)
    words.lookup(["a", "b"], training=True)
    model = tf.Module()
    model.users, model.words, model.weight = users, words, tf.Variable(tf.ones([3, 5]))
    users.step.assign(100)
    return str(tf.train.Checkpoint(model=model).write(str(tmp_path_factory.mktemp("ckpt") / "ckpt-7")))


def told(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["ckpt", "inspect", *map(str, argv)]) == code
    captured = capsys.readouterr()
    if code:
        assert captured.err.count("\n") == 1
    return captured.err if code else captured.out


def data(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    return json.loads(told(capsys, *argv, "--json"))


def test_list(prefix, capsys):
    text = told(capsys, prefix)
    assert text.startswith(f"checkpoint {prefix}\n")
    (users,) = (line.split() for line in text.splitlines() if line.startswith("model/users "))
    assert users[:4] == ["model/users", "50", "4", "int64"]
    assert "frequency, last_step, counters" in text
    assert re.search(r"model/words +2 +2 +string", text) and re.search(r"model/weight +float32 +\[3, 5\] +60 B", text)
    assert "Top keys" not in text


def test_detail(prefix, capsys):
    text = told(capsys, prefix, "--table", "model/users", "--top", 3, "--admit", 10)
    assert re.search(r"How often keys came.*\n.*\n +1 +1 +2.0 %", text)
    assert re.search(r"32 - 63 +19 +38.0 % +█{40}", text)
    top = text[text.index("Top keys by frequency") :].splitlines()[2:5]
    assert [line.split()[:2] for line in top] == [["39", "50"], ["38", "49"], ["37", "48"]]
    assert "counted keys without a row:   2" in text
    # Of 50 rows 30 are older than 40 steps (ages 100, 98, ..., 2), of the 20 left none is above the limit.
    assert re.search(r"step:40 +30 +1 +.* -10, -9, -8, -7, -6", text)
    assert re.search(r"capacity:20:lfu +0 +0 +0 B", text)
    assert "30 (60.0 %) rows would go, 20 stay" in text
    assert re.search(r"10 +41 +9 \(18.0 %\) +0 ", text)


def test_policies_that_are_asked_for(prefix, capsys):
    told_of = data(
        capsys, prefix, "--table", "model/users", "--evict", "step:98", "--step", "110", "--evict", "l2:1e9,min_rows=7"
    )
    (users,) = [table for table in told_of["tables"] if table["name"] == "model/users"]
    assert [(one["policy"], one["rows"]) for one in users["eviction"]["policies"]] == [
        ("step:98", 6),
        ("l2:1000000000.0,min_rows=7", 37),
    ]
    assert users["now"]["step"] == 110 and users["eviction"]["left"] == 7
    assert "eviction" not in told_of["tables"][1] or told_of["tables"][1]["eviction"] is None


def test_json(prefix, capsys):
    found = data(capsys, prefix)
    assert found["kind"] == "checkpoint" and [table["name"] for table in found["tables"]] == [
        "model/users",
        "model/words",
    ]
    users, words = found["tables"]
    assert (users["rows"], users["dim"], users["step"]) == (50, 4, 100)
    assert sum(bar["count"] for bar in users["frequency"]["histogram"]) == 50
    assert users["top"][0]["key"] == "39" and users["counted_keys"] == 2
    assert users["config"]["optimizer"]["kind"] == "adagrad"
    assert users["slots"][0]["name"] == "accumulator" and users["columns"]["values"] == 50 * 16
    assert words["frequency"] is None and words["dead"]["never_trained"] == 2 and words["key_dtype"] == "string"
    assert {"name": "model/weight", "dtype": "float32", "shape": [3, 5], "bytes": 60} in found["variables"]


class _Page(html.parser.HTMLParser):
    """Whether tags close, and what a browser would load."""

    VOID = ("meta", "br", "img", "link", "input", "hr", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href") and not (value or "").startswith("#")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page(prefix, tmp_path, capsys):
    told(capsys, prefix, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = _Page(text)
    assert page.open == [] and page.loads == [] and "url(" not in text and "@import" not in text
    assert page.tags.count("h2") == 3 and page.tags.count("script") == 0
    # Frequency, age in steps, norms and counters of users; norms of words.
    assert page.tags.count("svg") == 5
    assert ">32 - 63</text>" in text and ">19 (38.0 %)</text>" in text
    assert "model/weight" in text and "30 (60.0 %) rows would go, 20 stay." in text
    assert "exists already" in told(capsys, prefix, "--html", tmp_path / "page.html", code=2)


def test_page_of_strange_names(tmp_path, capsys):
    table = make()
    fill(table, np.arange(3))
    holder = tf.train.Checkpoint(**{"<b>&[red]": table})
    told(capsys, holder.write(str(tmp_path / "c")), "--html", tmp_path / "page.html", "--table", "<b>&[red]")
    assert "&lt;b&gt;&amp;[red]" in (tmp_path / "page.html").read_text()
    assert "\n<b>&[red] (users): 3 rows" in told(capsys, tmp_path / "c", "--table", "<b>&[red]")


def test_what_a_path_may_be(prefix, tmp_path, capsys):
    table = make()
    fill(table, np.arange(3))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(users=table), str(tmp_path / "m"), max_to_keep=5)
    manager.save()
    fill(table, np.arange(7))
    manager.save()
    for path in (f"{prefix}.index", f"{prefix}.data-00000-of-00002"):
        assert told(capsys, path).startswith(f"checkpoint {prefix}\n")
    assert re.search(r"users +7 ", told(capsys, tmp_path / "m"))
    module = tf.Module()
    module.users = table
    tf.saved_model.save(module, str(tmp_path / "model" / "3"))
    assert re.search(r"SavedModel .*model/3\n(.*\n)*users +7 ", told(capsys, tmp_path / "model" / "3"))
    assert re.search(r"SavedModel .*model/3\n", told(capsys, tmp_path / "model"))


def copy(prefix: str, folder: Path) -> Path:
    for file in Path(prefix).parent.glob(Path(prefix).name + ".*"):
        shutil.copy(file, folder)
    return folder / Path(prefix).name


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def test_bad_paths(prefix, tmp_path, capsys):
    (tmp_path / "text").write_text("no table")
    (tmp_path / "empty").mkdir()
    assert "nothing: no such file or folder, and no checkpoint" in told(capsys, tmp_path / "nothing", code=2)
    assert "neither a SavedModel or bundle nor the folder of a checkpoint" in told(capsys, tmp_path / "empty", code=2)
    assert str(tmp_path / "text") in told(capsys, tmp_path / "text", code=2)
    assert "no table 'user'; it has 'model/users', 'model/words'" in told(capsys, prefix, "--table", "user", code=2)
    assert "'model/weight' is no embedding table but a plain variable" in told(
        capsys, prefix, "--table", "model/weight", code=2
    )
    assert "--evict 'x': expected step:STEPS" in told(capsys, prefix, "--evict", "x", code=2)
    assert "table 'model/words' keeps no last_step" in told(capsys, prefix, "--evict", "step:1", code=2)
    plain = tf.train.Checkpoint(weight=tf.Variable(1.0)).write(str(tmp_path / "plain"))
    assert main(["ckpt", "inspect", str(plain)]) == 0
    assert "it has no embedding tables" in capsys.readouterr().err
    assert "no table 'x'; it has no embedding tables" in told(capsys, plain, "--table", "x", code=2)


def test_damage(prefix, tmp_path, capsys):
    whole = copy(prefix, tmp_path)
    data = whole.with_name("ckpt-7.data-00000-of-00002")
    flip(data, 700)  # among the values
    assert re.search(r"data-00000-of-00002: tensor 'model/users/\S+' is damaged", told(capsys, whole, "--json", code=2))
    assert told(capsys, whole).startswith("checkpoint")  # opening reads no rows
    data.write_bytes(data.read_bytes()[:-40])
    assert "ckpt-7.data-00000-of-00002" in told(capsys, whole, code=2)
    data.unlink()
    assert "ckpt-7.data-00000-of-00002" in told(capsys, whole, code=2)
    copy(prefix, tmp_path)
    index = whole.with_name("ckpt-7.index")
    flip(index, 60)
    assert "ckpt-7.index" in told(capsys, whole, code=2)
    index.write_bytes(index.read_bytes()[:100])
    assert "ckpt-7.index" in told(capsys, whole, code=2)
    index.unlink()
    assert "ckpt-7.index: missing, but ckpt-7.data-00000-of-00002 is there: half a checkpoint" in told(
        capsys, whole, code=2
    )


def test_tensors_that_do_not_fit(tmp_path, capsys):
    """What only another writer can make."""
    from tfctr.core import library

    ones, three = np.ones((3, 2), np.float32), np.arange(3)
    format_1 = '{"format": 1}'
    cases: dict[str, tuple[np.ndarray, str, str]] = {
        "a": (three, '{"format": 1, "rows": "4"}', "tensor 'keys' has 3 rows, 'config' says 4"),
        "b": (three[:2], format_1, "tensor 'values' is float32 [3, 2], expected float32 [2, width]"),
        "c": (np.arange(3.0), format_1, "tensor 'keys' is float64 [3], expected int64 [3]"),
        "d": (three, "no JSON", "tensor 't/config' does not say the format"),
        "e": (three, '{"format": 99}', "of format 99, written by a newer tfctr"),
    }
    for name, (keys, config, error) in cases.items():
        writer = library.native().CheckpointWriter(tmp_path / name)
        writer.add("t/keys", keys)
        writer.add("t/values", ones)
        writer.add_text("t/config", config.encode())
        writer.finish()
        assert f"{tmp_path / name}: table 't'" in (line := told(capsys, tmp_path / name, code=2)) and error in line


def test_save_that_left_parts_out(tmp_path, capsys):
    table = make(record_frequency=True)
    fill(table, np.arange(5))
    with tfctr.checkpoint_options(slots=False, counters=False, steps=False):
        prefix = save(tmp_path / "c", users=table)
    text = told(capsys, prefix, "--table", "users")
    assert "left out by the save:         slots, counters, steps" in text
    assert "the dry run of the table's own policies needs last_step, last_time, which this save left out" in text
    assert "keeps no last_step" in told(capsys, prefix, "--evict", "config", code=2)


def test_moments():
    from tfctr.cli.ckpt import moment

    assert moment("12.5") == 12_500 and moment("1970-01-02T00:00:00+00:00") == 86_400_000
    assert main(["ckpt", "inspect", "x", "--now", "yesterday"]) == 2
