#include "tfctr/core/runtime/wire_reply.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/wire/element_type.h"
#include "tfctr/core/wire/protobuf_writer.h"
#include "tfctr/core/wire/text.h"

namespace tfctr {

namespace {

using tensorflow::DataType;
using tensorflow::tstring;

// One output as it is written: shape and values of the rows.
struct Written {
  std::string_view name;
  DataType dtype = DataType::DT_INVALID;
  std::vector<int64_t> dims;
  int64_t elements = 0;
  const char* data = nullptr;
  size_t bytes = 0;  // of the values, when they are numbers

  const tstring* strings() const { return reinterpret_cast<const tstring*>(data); }
};

absl::Status Look(const ReplyOutput& output, Written* written) {
  const tensorflow::Tensor& tensor = *output.tensor;
  written->name = output.name;
  written->dtype = tensor.dtype();
  int64_t row_elements = 1;
  for (int d = 0; d < tensor.dims(); ++d) {
    written->dims.push_back(tensor.dim_size(d));
    if (d > 0) row_elements *= tensor.dim_size(d);
  }
  const bool strings = tensor.dtype() == DataType::DT_STRING;
  const size_t element_bytes =
      strings ? sizeof(tstring) : static_cast<size_t>(tensorflow::DataTypeSize(tensor.dtype()));
  const std::string of = "output '" + std::string(output.name) + "': ";
  if (element_bytes == 0) {
    return absl::InternalError(of + "values of type " + tensorflow::DataTypeString(tensor.dtype()) +
                               " can't be sent to a client");
  }
  written->elements = tensor.NumElements();
  written->data = written->elements == 0 ? nullptr : static_cast<const char*>(tensor.data());
  if (output.rows >= 0) {
    const int64_t rows = written->dims.empty() ? -1 : written->dims[0];
    if (output.first_row < 0 || output.first_row > rows || output.rows > rows - output.first_row) {
      return absl::InternalError(of + "rows " + std::to_string(output.first_row) + " to " +
                                 std::to_string(output.first_row + output.rows) + " of a tensor of shape " +
                                 tensor.shape().DebugString());
    }
    written->dims[0] = output.rows;
    written->elements = output.rows * row_elements;
    if (written->data != nullptr) {
      written->data += static_cast<size_t>(output.first_row * row_elements) * element_bytes;
    }
  }
  written->bytes = strings ? 0 : static_cast<size_t>(written->elements) * element_bytes;
  return absl::OkStatus();
}

// The field of a TensorProto that holds values of a type, and whether it is a list of varints.
struct ListField {
  uint32_t field;
  bool varints;
};

ListField ListFieldOf(DataType dtype) {
  switch (dtype) {
    case DataType::DT_FLOAT:
      return {5, false};
    case DataType::DT_DOUBLE:
      return {6, false};
    case DataType::DT_INT32:
    case DataType::DT_INT16:
    case DataType::DT_INT8:
    case DataType::DT_UINT8:
    case DataType::DT_UINT16:
      return {7, true};
    case DataType::DT_STRING:
      return {8, false};
    case DataType::DT_COMPLEX64:
      return {9, false};
    case DataType::DT_INT64:
      return {10, true};
    case DataType::DT_BOOL:
      return {11, true};
    case DataType::DT_COMPLEX128:
      return {12, false};
    case DataType::DT_HALF:
    case DataType::DT_BFLOAT16:
      return {13, true};
    case DataType::DT_UINT32:
      return {16, true};
    case DataType::DT_UINT64:
      return {17, true};
    default:
      return {4, false};  // tensor_content
  }
}

// Calls `f` with every number as the varint that protobuf writes for it (negative ones sign-extended).
template <typename T, typename F>
void EachOf(const Written& written, F f) {
  for (int64_t i = 0; i < written.elements; ++i) {
    T number;
    std::memcpy(&number, written.data + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    f(static_cast<uint64_t>(static_cast<int64_t>(number)));
  }
}

template <typename F>
void EachVarint(const Written& written, F f) {
  switch (written.dtype) {
    case DataType::DT_INT64:
    case DataType::DT_UINT64:
      return EachOf<int64_t>(written, f);
    case DataType::DT_INT32:
      return EachOf<int32_t>(written, f);
    case DataType::DT_UINT32:
      return EachOf<uint32_t>(written, f);
    case DataType::DT_INT16:
      return EachOf<int16_t>(written, f);
    case DataType::DT_INT8:
      return EachOf<int8_t>(written, f);
    case DataType::DT_UINT8:
    case DataType::DT_BOOL:
      return EachOf<uint8_t>(written, f);
    default:
      return EachOf<uint16_t>(written, f);
  }
}

// --- TF Serving --------------------------------------------------------------------------------------------------

constexpr uint32_t kDtype = 1, kShape = 2;  // TensorProto
constexpr uint32_t kDim = 2, kSize = 1;     // TensorShapeProto and its Dim

size_t DimSize(int64_t dim) { return dim == 0 ? 0 : VarintFieldSize(kSize, static_cast<uint64_t>(dim)); }

// Bytes of the values: of a packed list or content, or of all strings with their tags.
size_t ValuesSize(const Written& written) {
  size_t bytes = written.bytes;
  const ListField list = ListFieldOf(written.dtype);
  if (list.varints) {
    bytes = 0;
    EachVarint(written, [&](uint64_t number) { bytes += VarintSize(number); });
  } else if (written.dtype == DataType::DT_STRING) {
    for (int64_t i = 0; i < written.elements; ++i) bytes += BytesFieldSize(list.field, written.strings()[i].size());
  }
  return bytes;
}

struct TensorProtoSize {
  size_t shape = 0, values = 0, all = 0;
};

TensorProtoSize SizeOf(const Written& written) {
  TensorProtoSize size;
  for (const int64_t dim : written.dims) size.shape += BytesFieldSize(kDim, DimSize(dim));
  size.values = ValuesSize(written);
  size.all = VarintFieldSize(kDtype, written.dtype) + BytesFieldSize(kShape, size.shape) +
             (written.dtype == DataType::DT_STRING || size.values == 0
                  ? size.values
                  : BytesFieldSize(ListFieldOf(written.dtype).field, size.values));
  return size;
}

void PutTensorProto(const Written& written, const TensorProtoSize& size, std::string* out) {
  PutVarintField(kDtype, written.dtype, out);
  PutBytesHead(kShape, size.shape, out);
  for (const int64_t dim : written.dims) {
    PutBytesHead(kDim, DimSize(dim), out);
    if (dim != 0) PutVarintField(kSize, static_cast<uint64_t>(dim), out);
  }
  const ListField list = ListFieldOf(written.dtype);
  if (written.dtype == DataType::DT_STRING) {
    for (int64_t i = 0; i < written.elements; ++i) {
      const tstring& text = written.strings()[i];
      PutBytesField(list.field, std::string_view(text.data(), text.size()), out);
    }
    return;
  }
  if (size.values == 0) return;
  PutBytesHead(list.field, size.values, out);
  if (list.varints) {
    EachVarint(written, [&](uint64_t number) { PutVarint(number, out); });
  } else {
    out->append(written.data, written.bytes);
  }
}

std::string PredictResponse(const ReplySpec& spec, const std::vector<Written>& outputs) {
  const size_t version = VarintFieldSize(1, static_cast<uint64_t>(spec.version));
  const size_t model =
      BytesFieldSize(1, spec.model.size()) + BytesFieldSize(2, version) + BytesFieldSize(3, spec.signature.size());
  std::vector<TensorProtoSize> sizes;
  std::vector<size_t> entries;
  size_t all = BytesFieldSize(2, model);
  for (const Written& one : outputs) {
    sizes.push_back(SizeOf(one));
    entries.push_back(BytesFieldSize(1, one.name.size()) + BytesFieldSize(2, sizes.back().all));
    all += BytesFieldSize(1, entries.back());
  }
  std::string out;
  out.reserve(all);
  for (size_t i = 0; i < outputs.size(); ++i) {
    PutBytesHead(1, entries[i], &out);
    PutBytesField(1, outputs[i].name, &out);
    PutBytesHead(2, sizes[i].all, &out);
    PutTensorProto(outputs[i], sizes[i], &out);
  }
  PutBytesHead(2, model, &out);
  PutBytesField(1, spec.model, &out);
  PutBytesHead(2, version, &out);
  PutVarintField(1, static_cast<uint64_t>(spec.version), &out);
  PutBytesField(3, spec.signature, &out);
  return out;
}

// --- KServe ------------------------------------------------------------------------------------------------------

size_t RawSize(const Written& written) {
  size_t bytes = written.bytes;
  if (written.dtype == DataType::DT_STRING) {
    for (int64_t i = 0; i < written.elements; ++i) bytes += sizeof(uint32_t) + written.strings()[i].size();
  }
  return bytes;
}

absl::StatusOr<std::string> ModelInferResponse(const ReplySpec& spec, const std::vector<Written>& outputs) {
  const std::string version = std::to_string(spec.version);
  std::vector<size_t> shapes, heads, raws;
  std::vector<std::string_view> datatypes;
  size_t all =
      BytesFieldSize(1, spec.model.size()) + BytesFieldSize(2, version.size()) + BytesFieldSize(3, spec.id.size());
  for (const Written& one : outputs) {
    const ElementTypeInfo* type = FindElementType(one.dtype);
    if (type == nullptr) {
      return absl::InternalError("output '" + std::string(one.name) + "': the KServe protocol has no datatype for " +
                                 tensorflow::DataTypeString(one.dtype));
    }
    datatypes.push_back(type->kserve);
    size_t shape = 0;
    for (const int64_t dim : one.dims) shape += VarintSize(static_cast<uint64_t>(dim));
    shapes.push_back(shape);
    heads.push_back(BytesFieldSize(1, one.name.size()) + BytesFieldSize(2, type->kserve.size()) +
                    BytesFieldSize(3, shape));
    raws.push_back(RawSize(one));
    all += BytesFieldSize(5, heads.back()) + BytesFieldSize(6, raws.back());
  }
  std::string out;
  out.reserve(all);
  PutBytesField(1, spec.model, &out);
  PutBytesField(2, version, &out);
  if (!spec.id.empty()) PutBytesField(3, spec.id, &out);
  for (size_t i = 0; i < outputs.size(); ++i) {
    PutBytesHead(5, heads[i], &out);
    PutBytesField(1, outputs[i].name, &out);
    PutBytesField(2, datatypes[i], &out);
    PutBytesHead(3, shapes[i], &out);
    for (const int64_t dim : outputs[i].dims) PutVarint(static_cast<uint64_t>(dim), &out);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Written& one = outputs[i];
    PutBytesHead(6, raws[i], &out);
    if (one.dtype != DataType::DT_STRING) {
      if (one.bytes > 0) out.append(one.data, one.bytes);
      continue;
    }
    for (int64_t k = 0; k < one.elements; ++k) {
      const tstring& text = one.strings()[k];
      const auto size = static_cast<uint32_t>(text.size());
      out.append(reinterpret_cast<const char*>(&size), sizeof(size));
      out.append(text.data(), text.size());
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> WriteReply(Protocol protocol, const ReplySpec& spec,
                                       absl::Span<const ReplyOutput> outputs) {
  std::vector<const ReplyOutput*> chosen;
  if (spec.outputs.empty()) {
    for (const ReplyOutput& output : outputs) chosen.push_back(&output);
  }
  for (const std::string& name : spec.outputs) {
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const auto& one) { return one.name == name; });
    if (found == outputs.end()) return absl::InvalidArgumentError("there is no output " + ShownText(name));
    chosen.push_back(&*found);
  }
  std::vector<Written> written(chosen.size());
  size_t bytes = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const absl::Status status = Look(*chosen[i], &written[i]);
    if (!status.ok()) return status;
    bytes += written[i].bytes;
  }
  constexpr size_t kMostBytes = (size_t{1} << 31) - (size_t{1} << 20);  // of a protobuf message
  if (bytes > kMostBytes) return absl::InternalError("outputs of " + std::to_string(bytes) + " bytes fit no message");
  if (protocol == Protocol::kTfServing) return PredictResponse(spec, written);
  return ModelInferResponse(spec, written);
}

}  // namespace tfctr
