"""``tfctr loadtest`` against the real server: over TLS, with compressed bodies, with one user beside many rows."""

import json

import pytest
import tensorflow as tf

import tfctr
from tests.serving import dense_bundles
from tests.serving.server.grpc_serving import MODEL, serving
from tests.serving.server.test_server import make_certificate, running
from tfctr.cli.main import main
from tfctr.serving.versions import ModelManager, ModelSpec

FAST = ["--duration", "0.1", "--warmup", "0", "--requests", "3", "--rows", "4", "--rate", "50", "--json"]


def answers(capsys, *arguments):
    """Of a run in which no request fails."""
    assert main(["loadtest", *arguments, *FAST]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["summary"]["failed"] == 0
    return run["summary"]["ok"]


def test_over_tls_with_compressed_bodies(grpc_models, tmp_path, capsys):
    files = make_certificate(tmp_path)
    with running(grpc_models, tls=files) as server:
        where = server.endpoints
        port = str(where.http).rsplit(":", 1)[1]
        targets = [f"grpcs://localhost:{str(where.grpc).rsplit(':', 1)[1]}/{MODEL}"]
        targets += [f"https://localhost:{port}/v{k}/models/{MODEL}" for k in (1, 2)]
        for target in targets:
            assert answers(capsys, target, "--ca", files["certificate"], "--gzip") > 0
            assert main(["loadtest", target, *FAST]) == 2
            assert "--ca FILE names the certificate" in capsys.readouterr().err


@pytest.fixture(scope="module")
def with_user(tmp_path_factory):
    """A bundle whose input ``user`` may come once."""
    folder = tmp_path_factory.mktemp("user_rows")
    tfctr.convert(dense_bundles.save(folder / "model"), folder / "bundle", user_features=["user"])
    return folder / "bundle"


@pytest.mark.parametrize("protocol", ["tfs", "kserve"])
def test_one_user_beside_many_rows(with_user, capsys, protocol):
    spec = ModelSpec(name="m", base_path=with_user, options=tfctr.GroupOptions(), poll_seconds=0)
    with ModelManager([spec]) as manager:
        assert manager.wait(240), manager.status()
        with serving(manager) as front:
            target = ["grpc://" + front.address + "/m", "--protocol", protocol, "--user-rows", "1"]
            assert answers(capsys, *target, "--bundle", str(with_user)) > 0
            assert {answer.rows for answer in front.record.answers} == {4}
            assert main(["loadtest", *target, *FAST]) == 2
            assert "nothing says which inputs are the user's" in capsys.readouterr().err


class Small(tf.Module):
    """A table of 7 rows."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.ones([7, 4]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(self, ids):
        return {"sum": tf.reduce_sum(tf.gather(self.table, ids), 1)}


@pytest.mark.parametrize("form", ["model", "bundle"])
def test_ids_beyond_the_table_are_explained(tmp_path, capsys, form):
    module = Small()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.serve)
    tfctr.convert(tmp_path / "model", tmp_path / "bundle")
    spec = ModelSpec(name="m", base_path=tmp_path / form, options=tfctr.GroupOptions(), poll_seconds=0)
    with ModelManager([spec]) as manager:
        assert manager.wait(240), manager.status()
        with serving(manager) as front:
            target = f"grpc://{front.address}/m"
            assert main(["loadtest", target, *FAST]) == 2
            assert "is not in [0, 7)" in (told := capsys.readouterr().err)
            assert "generated ids are below --id-limit 1000: give --id-limit 7, --bundle" in told
            assert answers(capsys, target, "--id-limit", "7") > 0
