"""A model with an op that nobody here knows, served by naming the library that has it."""

import importlib.util
import io
import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tfctr
from tfctr.errors import UnavailableError, UsageError
from tfctr.serving.server import config as server_config
from tfctr.serving.server.logs import RequestLog
from tfctr.serving.server.server import Server

# TensorFlow's C interface: a user's library, built in a second, without a line of ours.
SOURCE = r"""
#include <cstdlib>
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

static void Triple(void* kernel, TF_OpKernelContext* context) {
  TF_Status* status = TF_NewStatus();
  TF_Tensor* input = nullptr;
  TF_GetInput(context, 0, &input, status);
  int64_t size = TF_Dim(input, 0);
  TF_Tensor* output = TF_AllocateOutput(context, 0, TF_FLOAT, &size, 1, size * sizeof(float), status);
  const float* from = static_cast<const float*>(TF_TensorData(input));
  float* to = static_cast<float*>(TF_TensorData(output));
  for (int64_t i = 0; i < size; ++i) to[i] = 3 * from[i];
  TF_DeleteTensor(input);
  TF_DeleteTensor(output);
  TF_DeleteStatus(status);
}

static void SameShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

__attribute__((constructor)) static void Register() {
  TF_Status* status = TF_NewStatus();
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder("OfAUserTriple");
  TF_OpDefinitionBuilderAddInput(op, "x: float");
  TF_OpDefinitionBuilderAddOutput(op, "y: float");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, &SameShape);
  TF_RegisterOpDefinition(op, status);
  if (TF_GetCode(status) != TF_OK) abort();
  TF_KernelBuilder* kernel = TF_NewKernelBuilder("OfAUserTriple", "CPU", nullptr, &Triple, nullptr);
  TF_RegisterKernelBuilder("OfAUserTriple", kernel, status);
  if (TF_GetCode(status) != TF_OK) abort();
  TF_DeleteStatus(status);
}
"""


@pytest.fixture(scope="module")
def op_library(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("op")
    (folder / "op.cc").write_text(SOURCE)
    include = Path(importlib.util.find_spec("tensorflow").origin).parent / "include"
    library = folder / "of_a_user.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-isystem", include, folder / "op.cc", "-o", library], check=True
    )
    return library


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """y = OfAUserTriple(x), written without the op: a Neg of which the name was changed."""
    folder = tmp_path_factory.mktemp("models") / "foreign"
    module = tf.Module()
    module.serve = tf.function(lambda x: {"y": -x}, input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    tf.saved_model.save(module, str(folder / "1"), module.serve)
    file = folder / "1" / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    graph = saved.meta_graphs[0].graph_def
    nodes = [node for function in graph.library.function for node in function.node_def if node.op == "Neg"]
    assert nodes
    for node in nodes:
        node.op = "OfAUserTriple"
        del node.attr["T"]
    file.write_bytes(saved.SerializeToString())
    return folder


def server(model, *libraries):
    config = server_config.build(
        model_dirs=[model],
        overrides={
            "server": {"grpc_port": 0, "http_port": 0, "admin_port": None},
            "group": {"executors": 1},
            "op_libraries": [str(one) for one in libraries],
        },
    )
    return Server(config, log=RequestLog(stream=io.StringIO()))


def test_an_op_library_is_an_option_not_a_rebuild(model, op_library):
    """TF Serving #678, #867, #1381 (and #4018: an op that this TensorFlow does not have is named, with what to do)."""
    with pytest.raises(UsageError, match="'OfAUserTriple', which is not registered"):
        tfctr.ServingSession(model / "1")
    with server(model) as without:
        without.start()
        with pytest.raises(UnavailableError, match=r"'OfAUserTriple', which is not registered; .*--op-library"):
            without.wait_ready()
    with server(model, op_library) as served:
        served.start()
        assert served.wait_ready()
        body = json.dumps({"instances": [1.5, -2]}).encode()
        url = f"{served.endpoints.http}/v1/models/foreign:predict"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=120) as response:
            assert json.loads(response.read()) == {"predictions": [4.5, -6.0]}
