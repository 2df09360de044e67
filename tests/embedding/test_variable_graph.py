"""`EmbeddingVariable` in TF1 graphs: sessions, stock optimizers for the dense part, global_step, parameter servers."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tfctr.errors import UsageError

v1 = tf.compat.v1


def table(name: str = "users", **options: Any) -> Any:
    options.setdefault("optimizer", tfctr.optimizers.Adagrad(0.5))
    return tfctr.EmbeddingVariable(4, name, **options)


def factorisation(user_ids: Any, item_ids: Any, labels: Any, **options: Any) -> tuple[Any, Any, Any, Any]:
    """Loss, training op and both tables of a small model: two tables, a dense layer under AdamOptimizer."""
    users, items = table("users", **options), table("items", **options)
    kernel = v1.get_variable("kernel", [8, 1], initializer=v1.glorot_uniform_initializer(seed=1))
    rows = tf.concat([users.lookup(user_ids, training=True), items.lookup(item_ids, training=True)], 1)
    loss = tf.reduce_mean((tf.matmul(rows, kernel)[:, 0] - labels) ** 2)
    train = tfctr.minimize(loss, [users, items, kernel], v1.train.AdamOptimizer(0.05))
    return loss, train, users, items


def batch(seed: int = 0, n: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    users, items = random.integers(-20, 20, n), random.integers(0, 30, n)
    return users, items, (users % 3 - items % 2).astype(np.float32)


def test_a_session_trains_tables_and_dense_variables_by_one_global_step() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        feeds = [v1.placeholder(dtype, [None]) for dtype in (tf.int64, tf.int64, tf.float32)]
        loss, train, users, items = factorisation(*feeds, eviction=tfctr.StepEviction(2))
        assert users.step is items.step is v1.train.get_global_step()
        size, export = users.size(), users.export()
        session.run(v1.global_variables_initializer())
        losses = []
        for _ in range(60):
            losses.append(session.run([loss, train], dict(zip(feeds, batch(), strict=True)))[0])
        assert losses[-1] < 0.2 * losses[0]
        assert session.run(v1.train.get_global_step()) == 60
        keys, last_step = session.run([export.keys, export.last_step])
        assert session.run(size) == len(set(batch()[0].tolist())) == len(keys)
        assert set(last_step.tolist()) == {59}
        session.run(v1.train.get_global_step().assign(62))
        report = users.evict(dry_run=True)
        assert session.run(report.rows) == len(keys)
        told, rows = session.run([report, export])  # as they are
        assert told.rows == told.policies[0].rows == len(keys) and told.policies[0].policy == tfctr.StepEviction(2)
        np.testing.assert_array_equal(np.sort(rows.keys), np.sort(keys))
        assert rows.values.shape == (len(keys), 4) and rows.slots == {} and rows.frequency is None


def test_the_graph_gives_what_eager_code_gives() -> None:
    rows = {}
    for eager in (True, False):
        with tf.Graph().as_default() if not eager else tf.init_scope():
            users = table()
            ids, gradient = tf.constant([3, 4, 3], tf.int64), tf.constant([[1.0] * 4, [2.0] * 4, [3.0] * 4])
            before = users.lookup(ids, training=True)
            if eager:
                users.apply_gradients(tf.IndexedSlices(gradient, ids))
                rows[eager] = (before.numpy(), users.lookup(ids).numpy())
                continue
            with tf.control_dependencies([before]):
                update = users.apply_gradients(tf.IndexedSlices(gradient, ids))
            after = users.lookup(ids)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                first, _ = session.run([before, update])
                rows[eager] = (first, session.run(after))
    np.testing.assert_array_equal(rows[True], rows[False])


def test_gradients_come_from_tf_gradients() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        users = table()
        loss = tf.reduce_sum(users.lookup(tf.constant([1, 2, 1], tf.int64), training=True) * [[1.0], [2.0], [4.0]])
        gradient = tf.gradients(loss, users.handle)[0]
        assert isinstance(gradient, tf.IndexedSlices) and gradient.values.shape.as_list() == [3, 4]
        keys, rows = session.run([gradient.indices, gradient.values])
        assert keys.tolist() == [1, 2, 1] and rows[:, 0].tolist() == [1, 2, 4]


def test_names_are_those_of_the_variable_scope_and_not_taken_twice() -> None:
    with tf.Graph().as_default():
        with v1.variable_scope("tower"):
            users = table()
        assert users.name == "tower/users"
        with pytest.raises(UsageError, match="'users': step is 3"):
            table(step=3)  # has not taken the name
        table()
        with pytest.raises(UsageError, match="'users': this graph has an embedding variable of that name"):
            table()
        with pytest.raises(UsageError, match="name is None, expected a name"):
            tfctr.EmbeddingVariable(4)
    with tf.Graph().as_default():
        assert table().name == "users"


def test_sessions_have_tables_of_their_own_and_a_new_session_begins_empty() -> None:
    with tf.Graph().as_default():
        users = table()
        look, size = users.lookup(tf.constant([1, 2], tf.int64), training=True), users.size()
        with v1.Session() as one, v1.Session() as other:
            one.run(v1.global_variables_initializer())
            one.run(look)
            assert (one.run(size), other.run(size)) == (2, 0)


def test_string_keys_and_protected_strings_work_without_eager_mode() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        words = table("words", key_dtype=tf.string, eviction=tfctr.CapacityEviction(1, protected_keys=["b"]))
        look = words.lookup(v1.placeholder_with_default(["a", "b", "c"], [None]), training=True)
        evicted, contains = words.evict().rows, words.contains(["a", "b", "c"])
        session.run(v1.global_variables_initializer())
        session.run(look)
        assert session.run(evicted) == 2 and session.run(contains).tolist() == [False, True, False]


def test_clock_and_freeze_are_ops() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        clock = tfctr.ManualClock(100)
        users = table(eviction=tfctr.TtlEviction(10), clock=clock)
        look, evicted = users.lookup(tf.constant([1], tf.int64), training=True), users.evict().rows
        late, frozen, size = clock.advance(11), users.freeze(), users.size()
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        session.run(look)
        assert session.run(evicted) == 0
        session.run(late)
        assert session.run(evicted) == 1
        session.run(frozen)
        session.run(look)
        assert session.run(size) == 0


def reserved_port(held: contextlib.ExitStack) -> int:
    """A free port that no other process is given meanwhile; servers that reuse ports can listen there all the same."""
    one = held.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("localhost", 0))
    return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two parameter servers and a worker on this machine; yields (ClusterSpec, the worker's target)."""
    with contextlib.ExitStack() as held, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_GRPC_REUSE_PORT", "1")
        yield from _cluster([reserved_port(held) for _ in range(3)])


def _cluster(ports: list[int]) -> Iterator[Any]:
    spec = tf.train.ClusterSpec(
        {"ps": [f"localhost:{port}" for port in ports[:2]], "worker": [f"localhost:{ports[2]}"]}
    )
    servers = [tf.distribute.Server(spec, "ps", k) for k in range(2)]
    worker = tf.distribute.Server(spec, "worker", 0)
    yield spec, worker.target
    del servers


def test_tables_live_on_parameter_servers(cluster: Any) -> None:
    """Keys are dealt to two servers by their remainder; one op per server updates, and both tables learn."""
    _, target = cluster
    with tf.Graph().as_default(), v1.Session(target) as session:
        parts = []
        for task in range(2):
            with tf.device(f"/job:ps/task:{task}"):
                parts.append(table(f"users_{task}"))
        with tf.device("/job:ps/task:0"):
            step = v1.train.get_or_create_global_step()
        with tf.device("/job:worker/task:0"):
            ids, labels = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None])
            owner = tf.cast(tf.math.floormod(ids, 2), tf.int32)
            where = tf.dynamic_partition(tf.range(tf.size(ids)), owner, 2)
            dealt = tf.dynamic_partition(ids, owner, 2)
            rows = [part.lookup(keys, training=True) for part, keys in zip(parts, dealt, strict=True)]
            loss = tf.reduce_mean((tf.reduce_sum(tf.dynamic_stitch(where, rows), 1) - labels) ** 2)
            train = tfctr.minimize(loss, parts)
        sizes = [part.size() for part in parts]
        assert [part.handle.device for part in parts] == [f"/job:ps/task:{task}/device:CPU:0" for task in range(2)]
        session.run(step.initializer)
        feed = {ids: np.arange(-10, 11), labels: np.linspace(-1, 1, 21)}
        losses = [session.run([loss, train], feed)[0] for _ in range(40)]
        assert losses[-1] < 0.01 * losses[0]
        assert session.run(sizes) == [11, 10]
    # Another process of the cluster builds the same graph and finds the same tables by their names.
    with tf.Graph().as_default(), v1.Session(target) as session:
        with tf.device("/job:ps/task:1"):
            again = table("users_1")
        assert session.run(again.size()) == 10
        with tf.device("/job:ps/task:0"):
            other = tfctr.EmbeddingVariable(4, "users_0", optimizer=tfctr.optimizers.SGD(0.5))
        with pytest.raises(tf.errors.InvalidArgumentError, match="'users_0' already, with another configuration"):
            session.run(other.size())


@pytest.mark.parametrize("program", ["tf1_training", "parameter_servers"])
def test_whole_programs(program: str, tmp_path: Path) -> None:
    """In processes of their own: they switch off eager mode, or join a cluster, for good."""
    path = Path(__file__).parent / "programs" / f"{program}.py"
    run = subprocess.run(
        [sys.executable, path, tmp_path / "model"], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0 and run.stdout.splitlines()[-1:] == ["trained"], run.stdout + run.stderr


@pytest.mark.parametrize("scope", ["", "towers"])
@pytest.mark.parametrize("name", ["items", "ids"])  # the second is an op's name already
def test_a_saved_model_of_a_graph_is_loaded_by_both_loaders(tmp_path: Path, scope: str, name: str) -> None:
    folder = str(tmp_path / "model")
    with tf.Graph().as_default():
        ids = v1.placeholder(tf.int64, [None], "ids")
        with v1.variable_scope(scope):
            items = tfctr.EmbeddingVariable(4, name, optimizer=tfctr.optimizers.Adagrad(0.05))
        trained, scores = items.lookup(ids, training=True), tf.reduce_sum(items.lookup(ids), 1)
        train_op = tfctr.minimize(tf.reduce_sum(trained**2), [items])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train_op, {ids: [3, 4]})
            expected = session.run(scores, {ids: [3, 4, 5]})
            v1.saved_model.simple_save(session, folder, {"ids": ids}, {"scores": scores})
    assert expected[0] != 0 and expected[2] == 0
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        feed = {signature.inputs["ids"].name: [3, 4, 5]}
        np.testing.assert_array_equal(session.run(signature.outputs["scores"].name, feed), expected)
    loaded = tf.saved_model.load(folder)
    again = loaded.signatures["serving_default"](ids=tf.constant([3, 4, 5], tf.int64))["scores"]
    np.testing.assert_array_equal(again, expected)
