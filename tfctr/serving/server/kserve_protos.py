"""The messages of KServe's open inference protocol, version 2, over gRPC, with Triton's repository, configuration,
statistics and stream extensions.

They live in a descriptor pool of their own: protobuf knows each message name once per pool, so a process that imports
this module and the official client (``tritonclient.grpc``), whose file defines the same names in the default pool, gets
both, in any order.

The protocol is the table below: names, types and numbers of fields as the specification has them. Fields that no part
of this server reads or writes (of ``ModelConfig``) are left out; on the wire they are unknown fields.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
FILE = "tfctr/kserve_v2.proto"
SERVICE = "inference.GRPCInferenceService"

# One message a paragraph: its name, then "type name number". `*` is repeated, `?` is a choice: at most one of those of
# a message is set; `map<V>` has string keys. Nested messages are `Outer.Inner`.
_MESSAGES = """
ServerLiveRequest

ServerLiveResponse
  bool live 1

ServerReadyRequest

ServerReadyResponse
  bool ready 1

ModelReadyRequest
  string name 1
  string version 2

ModelReadyResponse
  bool ready 1

ServerMetadataRequest

ServerMetadataResponse
  string name 1
  string version 2
  *string extensions 3

ModelMetadataRequest
  string name 1
  string version 2

ModelMetadataResponse
  string name 1
  *string versions 2
  string platform 3
  *ModelMetadataResponse.TensorMetadata inputs 4
  *ModelMetadataResponse.TensorMetadata outputs 5

ModelMetadataResponse.TensorMetadata
  string name 1
  string datatype 2
  *int64 shape 3

InferParameter
  ?bool bool_param 1
  ?int64 int64_param 2
  ?string string_param 3
  ?double double_param 4
  ?uint64 uint64_param 5

InferTensorContents
  *bool bool_contents 1
  *int32 int_contents 2
  *int64 int64_contents 3
  *uint32 uint_contents 4
  *uint64 uint64_contents 5
  *float fp32_contents 6
  *double fp64_contents 7
  *bytes bytes_contents 8

ModelInferRequest
  string model_name 1
  string model_version 2
  string id 3
  map<InferParameter> parameters 4
  *ModelInferRequest.InferInputTensor inputs 5
  *ModelInferRequest.InferRequestedOutputTensor outputs 6
  *bytes raw_input_contents 7

ModelInferRequest.InferInputTensor
  string name 1
  string datatype 2
  *int64 shape 3
  map<InferParameter> parameters 4
  InferTensorContents contents 5

ModelInferRequest.InferRequestedOutputTensor
  string name 1
  map<InferParameter> parameters 2

ModelInferResponse
  string model_name 1
  string model_version 2
  string id 3
  map<InferParameter> parameters 4
  *ModelInferResponse.InferOutputTensor outputs 5
  *bytes raw_output_contents 6

ModelInferResponse.InferOutputTensor
  string name 1
  string datatype 2
  *int64 shape 3
  map<InferParameter> parameters 4
  InferTensorContents contents 5

ModelStreamInferResponse
  string error_message 1
  ModelInferResponse infer_response 2

ModelConfigRequest
  string name 1
  string version 2

ModelConfigResponse
  ModelConfig config 1

ModelConfig
  string name 1
  string platform 2
  int32 max_batch_size 4
  *ModelConfig.Input input 5
  *ModelConfig.Output output 6
  string backend 17

ModelConfig.Input
  string name 1
  int32 data_type 2
  *int64 dims 4
  bool allow_ragged_batch 7
  bool optional 8

ModelConfig.Output
  string name 1
  int32 data_type 2
  *int64 dims 3

ModelStatisticsRequest
  string name 1
  string version 2

StatisticDuration
  uint64 count 1
  uint64 ns 2

InferStatistics
  StatisticDuration success 1
  StatisticDuration fail 2
  StatisticDuration queue 3
  StatisticDuration compute_input 4
  StatisticDuration compute_infer 5
  StatisticDuration compute_output 6

ModelStatistics
  string name 1
  string version 2
  uint64 last_inference 3
  uint64 inference_count 4
  uint64 execution_count 5
  InferStatistics inference_stats 6

ModelStatisticsResponse
  *ModelStatistics model_stats 1

ModelRepositoryParameter
  ?bool bool_param 1
  ?int64 int64_param 2
  ?string string_param 3
  ?bytes bytes_param 4

RepositoryIndexRequest
  string repository_name 1
  bool ready 2

RepositoryIndexResponse
  *RepositoryIndexResponse.ModelIndex models 1

RepositoryIndexResponse.ModelIndex
  string name 1
  string version 2
  string state 3
  string reason 4

RepositoryModelLoadRequest
  string repository_name 1
  string model_name 2
  map<ModelRepositoryParameter> parameters 3

RepositoryModelLoadResponse

RepositoryModelUnloadRequest
  string repository_name 1
  string model_name 2
  map<ModelRepositoryParameter> parameters 3

RepositoryModelUnloadResponse

SystemSharedMemoryStatusRequest
  string name 1

SystemSharedMemoryStatusResponse

SystemSharedMemoryRegisterRequest
  string name 1
  string key 2
  uint64 offset 3
  uint64 byte_size 4

SystemSharedMemoryRegisterResponse

SystemSharedMemoryUnregisterRequest
  string name 1

SystemSharedMemoryUnregisterResponse

CudaSharedMemoryStatusRequest
  string name 1

CudaSharedMemoryStatusResponse

CudaSharedMemoryRegisterRequest
  string name 1
  bytes raw_handle 2
  int64 device_id 3
  uint64 byte_size 4

CudaSharedMemoryRegisterResponse

CudaSharedMemoryUnregisterRequest
  string name 1

CudaSharedMemoryUnregisterResponse
"""

UNARY_METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
)

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = frozenset(value.name for value in _Field.Type.DESCRIPTOR.values)
_FIELD_LINE = re.compile(r"(?P<mark>[*?]?)(?:map<(?P<value>\w+)>|(?P<type>[\w.]+)) (?P<name>\w+) (?P<number>\d+)")


def _set_type(field: Any, name: str) -> None:
    scalar = f"TYPE_{name.upper()}"
    if scalar in _SCALARS:
        field.type = _Field.Type.Value(scalar)
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{name}"


def _add_field(message: Any, path: str, line: str) -> None:
    found = _FIELD_LINE.fullmatch(line)
    assert found, line
    field = message.field.add(name=found["name"], number=int(found["number"]), label=_Field.LABEL_OPTIONAL)
    if found["value"]:
        entry = "".join(part.capitalize() for part in found["name"].split("_")) + "Entry"
        nested = message.nested_type.add(name=entry)
        nested.options.map_entry = True
        _set_type(nested.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL), "string")
        _set_type(nested.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), found["value"])
        field.label = _Field.LABEL_REPEATED
        _set_type(field, f"{path}.{entry}")
        return
    _set_type(field, found["type"])
    if found["mark"] == "*":
        field.label = _Field.LABEL_REPEATED
    elif found["mark"] == "?":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    by_path: dict[str, Any] = {}
    for paragraph in _MESSAGES.strip().split("\n\n"):
        path, *fields = (line.strip() for line in paragraph.split("\n"))
        outer, _, name = path.rpartition(".")
        message = by_path[outer].nested_type.add(name=name) if outer else file.message_type.add(name=name)
        by_path[path] = message
        for line in fields:
            _add_field(message, path, line)
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for method in UNARY_METHODS:
        service.method.add(
            name=method, input_type=f".{PACKAGE}.{method}Request", output_type=f".{PACKAGE}.{method}Response"
        )
    service.method.add(
        name="ModelStreamInfer",
        input_type=f".{PACKAGE}.ModelInferRequest",
        output_type=f".{PACKAGE}.ModelStreamInferResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


POOL = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(_file().SerializeToString())


def message(name: str) -> Any:
    """The class of a message of the protocol, by its name without the package."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ServerLiveResponse = message("ServerLiveResponse")
ServerReadyResponse = message("ServerReadyResponse")
ServerMetadataResponse = message("ServerMetadataResponse")
ModelReadyRequest = message("ModelReadyRequest")
ModelReadyResponse = message("ModelReadyResponse")
ModelMetadataRequest = message("ModelMetadataRequest")
ModelMetadataResponse = message("ModelMetadataResponse")
ModelConfigRequest = message("ModelConfigRequest")
ModelConfigResponse = message("ModelConfigResponse")
ModelStatisticsRequest = message("ModelStatisticsRequest")
ModelStatisticsResponse = message("ModelStatisticsResponse")
ModelInferRequest = message("ModelInferRequest")
ModelInferResponse = message("ModelInferResponse")
ModelStreamInferResponse = message("ModelStreamInferResponse")
RepositoryIndexRequest = message("RepositoryIndexRequest")
RepositoryIndexResponse = message("RepositoryIndexResponse")
RepositoryModelLoadRequest = message("RepositoryModelLoadRequest")
RepositoryModelLoadResponse = message("RepositoryModelLoadResponse")
RepositoryModelUnloadRequest = message("RepositoryModelUnloadRequest")
RepositoryModelUnloadResponse = message("RepositoryModelUnloadResponse")

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
    "bfloat16": "BF16",
}
"""TensorFlow's name of a type -> KServe's, in the order of Triton's ``DataType`` (which starts at 1)."""


def datatype(dtype: str) -> str:
    """KServe's name of a TensorFlow type; what KServe has no name for keeps TensorFlow's, in capitals."""
    return DATATYPES.get(dtype, dtype.upper())


def config_type(dtype: str) -> int:
    """The number of a TensorFlow type in Triton's model configuration; 0 (invalid) for what it does not know."""
    names = list(DATATYPES)
    return names.index(dtype) + 1 if dtype in DATATYPES else 0
