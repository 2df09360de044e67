"""KServe's messages in a pool of their own, beside the official clients."""

import itertools
import subprocess
import sys

from tfctr.serving.server import kserve_protos as protos

IMPORTS = (
    "from tensorflow_serving.apis import prediction_service_pb2_grpc",
    "import tritonclient.grpc",
    "import tfctr.serving.server.kserve_protos as ours",
)


def test_the_official_clients_may_come_first():
    """That ours may come first is what the other tests of this file do."""
    code = "; ".join([*IMPORTS, "print(ours.ModelInferRequest.DESCRIPTOR.full_name)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["inference.ModelInferRequest"]


def _fields(descriptor):
    return {
        field.name: (field.number, field.type, field.is_repeated, field.message_type and field.message_type.full_name)
        for field in descriptor.fields
    }


def _messages(descriptors):
    for one in descriptors:
        yield one
        yield from _messages(one.nested_types)


def test_every_field_is_that_of_the_official_client():
    from tritonclient.grpc import model_config_pb2, service_pb2

    official = {
        one.full_name: _fields(one)
        for one in _messages(
            itertools.chain(
                service_pb2.DESCRIPTOR.message_types_by_name.values(),
                model_config_pb2.DESCRIPTOR.message_types_by_name.values(),
            )
        )
    }
    # Nested here, of their own there; an enum there, its number here.
    renamed = {
        "inference.ModelConfig.Input": "inference.ModelInput",
        "inference.ModelConfig.Output": "inference.ModelOutput",
    }
    enum, number = 14, 5
    ours = list(_messages(protos.POOL.FindFileByName(protos.FILE).message_types_by_name.values()))
    assert len(ours) > 50
    for message in ours:
        theirs = official[renamed.get(message.full_name, message.full_name)]
        for name, (index, kind, repeated, of) in _fields(message).items():
            there = theirs[name]
            assert (index, repeated) == (there[0], there[2]), (message.full_name, name)
            assert kind == (number if there[1] == enum else there[1]), (message.full_name, name)
            assert of is None or renamed.get(of, of) == there[3]


def test_messages_of_the_client_are_read_and_ours_by_it():
    from tritonclient.grpc import service_pb2

    theirs = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="x", raw_input_contents=[b"12"])
    theirs.parameters["priority"].uint64_param = 3
    theirs.inputs.add(name="a", datatype="INT32", shape=[1, 2]).contents.int_contents[:] = [1, -2]
    ours = protos.ModelInferRequest.FromString(theirs.SerializeToString())
    assert ours.parameters["priority"].WhichOneof("parameter_choice") == "uint64_param"
    assert list(ours.inputs[0].contents.int_contents) == [1, -2]
    back = service_pb2.ModelInferRequest.FromString(ours.SerializeToString())
    assert back == theirs


def test_names_of_types():
    from tritonclient.grpc import model_config_pb2

    for dtype, name in protos.DATATYPES.items():
        theirs = "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"
        assert model_config_pb2.DataType.Name(protos.config_type(dtype)) == theirs
    assert protos.datatype("complex64") == "COMPLEX64"
    assert protos.config_type("complex64") == 0
