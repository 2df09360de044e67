"""The commands of README.md, run one after the other on a small model, and every command line of the docs parsed."""

import contextlib
import io
import os
import pathlib
import re
import shlex

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tfctr.cli.main import build_parser, main

ROWS, USERS, ITEMS, WIDTH = 48, 40, 60, 8
# Commands that need more than a model: another Python; a server (test_readme_serving.py).
NOT_RUN = ("tfctr doctor", "tfctr serve", "tfctr admin", "tfctr loadtest")


class Ranker(tf.Module):
    """Two users' and two items' features, a tower over them; the output is a probability."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(0)

        def weights(*shape: int) -> tf.Variable:
            return tf.Variable(random.normal(0, 0.3, shape).astype(np.float32))

        self.users, self.ages, self.items = weights(USERS, WIDTH), weights(10, WIDTH), weights(ITEMS, WIDTH)
        self.kernel, self.bias = weights(4 * WIDTH + 1, 16), weights(16)
        self.last = weights(16, 1)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "user_id"),
            tf.TensorSpec([None], tf.int64, "user_last"),
            tf.TensorSpec([None], tf.int64, "age"),
            tf.TensorSpec([None], tf.int64, "item_id"),
            tf.TensorSpec([None, 1], tf.float32, "price"),
        ]
    )
    def score(
        self, user_id: tf.Tensor, user_last: tf.Tensor, age: tf.Tensor, item_id: tf.Tensor, price: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        parts = [
            tf.gather(self.users, user_id),
            tf.gather(self.items, user_last),
            tf.gather(self.ages, age),
            tf.gather(self.items, item_id),
            price,
        ]
        hidden = tf.nn.relu(tf.matmul(tf.concat(parts, 1), self.kernel) + self.bias)
        return {"score": tf.sigmoid(tf.matmul(hidden, self.last))}


def rows() -> dict[str, np.ndarray]:
    """Some sessions of one user each."""
    random = np.random.default_rng(1)
    sessions = np.sort(random.integers(0, 6, ROWS))
    user = random.integers(0, USERS, 6)[sessions]
    return {
        "session_id": sessions,
        "user_id": user,
        "user_last": (user * 7) % ITEMS,
        "age": user % 10,
        "item_id": random.integers(0, ITEMS, ROWS),
        "price": random.uniform(0, 1, (ROWS, 1)).astype(np.float32),
        "click": random.integers(0, 2, ROWS),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What a reader of the README has: a model, the same with newer weights, inputs, samples with clicks."""
    path = tmp_path_factory.mktemp("readme")
    model = Ranker()
    tf.saved_model.save(model, str(path / "model"), signatures=model.score)
    newer = Ranker()
    newer.bias.assign_add(tf.ones_like(newer.bias))
    tf.saved_model.save(newer, str(path / "newer"), signatures=newer.score)
    everything = rows()
    inputs = {name: value for name, value in everything.items() if name not in ("session_id", "click")}
    np.savez(path / "clicks.npz", **everything)
    np.savez(path / "in.npz", **inputs)
    lines = [
        "{" + ", ".join(f'"{name}": {value[k].tolist()}' for name, value in inputs.items()) + "}" for k in range(4)
    ]
    (path / "in.jsonl").write_text("\n".join(lines) + "\n")
    users = tfctr.EmbeddingVariable(4, "users", key_dtype=tf.string, optimizer=tfctr.optimizers.Adagrad(0.05))
    users.lookup(tf.constant(["u1", "u2"]), training=True)
    tf.train.Checkpoint(users=users).write(str(path / "checkpoints" / "model-1"))
    return path


def command_lines(page: pathlib.Path) -> list[str]:
    """Lines ``tfctr ...`` of the fenced blocks of a page, comments off, continued lines joined."""
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.split(" #")[0].strip() for line in lines if line.startswith("tfctr ")]


def test_the_commands_of_the_readme_run(
    folder: pathlib.Path, repo_root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TFCTR_CACHE_DIR", str(folder / "cache"))
    lines = command_lines(repo_root / "README.md")
    assert len(lines) >= 10
    for line in lines:
        if line.startswith(NOT_RUN):
            continue
        arguments = shlex.split(line)[1:]
        arguments += ["--force"] if arguments[0] == "convert" else []
        arguments += ["--rounds", "10"] if arguments[0] == "bench" or "speed" in arguments else []
        arguments += ["--steps", "3"] if arguments[0] == "profile" else []
        code = main(arguments)
        assert code == 0 or (code == 3 and "speed" in arguments), line  # a busy machine may make a step slower


def test_user_features_are_found_in_sessions(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = ["--samples", "clicks.npz", "--label", "click", "--request-column", "session_id"]
    assert main(["convert", "model", "auto", "--user-features", "auto", *arguments]) == 0
    with tfctr.ServingSession("auto") as session:
        one = session.predict(
            {"user_id": [17], "user_last": [3], "age": [3], "item_id": [4, 8, 15], "price": [[0.5], [1.2], [2]]}
        )
        many = session.predict(
            {
                "user_id": [17] * 3,
                "user_last": [3] * 3,
                "age": [3] * 3,
                "item_id": [4, 8, 15],
                "price": [[0.5], [1.2], [2]],
            }
        )
    np.testing.assert_allclose(one["score"], many["score"], atol=1e-5)


def test_a_request_per_line(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    user = '{"user_id": 17, "user_last": 3, "age": 3}'
    items = ", ".join(f'{{"item_id": {k}, "price": 0.5}}' for k in (4, 8, 15))
    (folder / "requests.jsonl").write_text(f'{{"user": {user}, "candidates": [{items}]}}\n')
    assert main(["convert", "model", "split", "--user-features", "user_*,age"]) == 0
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert main(["predict", "split", "--inputs", "requests.jsonl"]) == 0
    assert len(told.getvalue().splitlines()) == 3


def test_every_command_line_of_the_docs_parses(repo_root: pathlib.Path) -> None:
    pages = [repo_root / "README.md", *sorted((repo_root / "docs").rglob("*.md"))]
    lines = [(page, line) for page in pages for line in command_lines(page)]
    assert len(lines) >= 12
    for page, line in lines:
        arguments = [word for word in shlex.split(line)[1:] if word not in ("...", "[...]")]
        told, code = io.StringIO(), 0
        with contextlib.redirect_stderr(told):
            try:
                build_parser().parse_args(arguments)
            except SystemExit as stop:
                code = int(stop.code or 0)
        assert code == 0, f"{os.path.relpath(page, repo_root)}: {line}: {told.getvalue()}"


def test_inspect_shows_the_split_devices_and_tables(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    options = ["--user-features", "user_*,age", "--device-map", "dense=/GPU:0", "--table-dtype", "fp16"]
    assert main(["convert", "model", "all", *options]) == 0
    told = capfd.readouterr().out
    for words in ("once per user (serving_default): 3 of 5 features", "on /device:GPU:0", "tables: none"):
        assert words in told, told
    assert main(["inspect", "all"]) == 0
    told = capfd.readouterr().out
    for words in ("Once per user: age, user_id, user_last", "row_to_user", "What crosses per call", "stays as it was"):
        assert words in told, told
    page = (folder / "all.report.html").read_text()
    for words in ("<h2>Once per user", "<h2>Devices", "<h2>Smaller tables"):
        assert words in page
