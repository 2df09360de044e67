// libFuzzer: any bytes as a TensorProto, read by us and by TensorFlow (protobuf's parser and Tensor::FromProto), which
// must agree. See README.md.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/wire/fuzz_checks.h"
#include "tfctr/core/wire/protobuf_writer.h"

namespace {

using tfctr::fuzz::Must;

// The message without the fields that a tensor of this type does not use. Protobuf looks into those too, we do not.
std::string OwnFields(std::string_view message, const tfctr::WireTensor& tensor) {
  std::string out;
  tfctr::PutVarintField(1, static_cast<uint64_t>(tensor.type->type), &out);
  std::string shape;
  for (int d = 0; d < tensor.rank; ++d) {
    std::string dim;
    tfctr::PutVarintField(1, static_cast<uint64_t>(tensor.dims[d]), &dim);
    tfctr::PutBytesField(2, dim, &shape);
  }
  tfctr::PutBytesField(2, shape, &out);
  bool has_content = false;  // then the list is not used
  tfctr::ProtobufReader contents(message);
  while (contents.Next()) {
    if (contents.Is(4, tfctr::WireKind::kBytes)) has_content = !contents.bytes().empty();
  }
  tfctr::ProtobufReader reader(message);
  while (reader.Next()) {
    const bool is_content = reader.Is(4, tfctr::WireKind::kBytes);
    if (!is_content && (has_content || reader.field() != tensor.list_field)) continue;
    const uint64_t number = reader.number();
    switch (reader.kind()) {
      case tfctr::WireKind::kBytes:
        tfctr::PutBytesField(reader.field(), reader.bytes(), &out);
        break;
      case tfctr::WireKind::kVarint:
        tfctr::PutVarintField(reader.field(), number, &out);
        break;
      default: {
        const size_t bytes = reader.kind() == tfctr::WireKind::kFixed32 ? 4 : 8;
        tfctr::PutVarint(reader.field() << 3 | static_cast<uint32_t>(reader.kind()), &out);
        out.append(reinterpret_cast<const char*>(&number), bytes);
      }
    }
  }
  return out;
}

void CompareNumbers(const tfctr::WireTensor& tensor, const tensorflow::Tensor& reference, const char* data) {
  const size_t bytes = static_cast<size_t>(tensor.elements) * tensor.type->bytes;
  if (bytes == 0) return;
  if (tensor.type->type == tfctr::ElementType::kBool) {
    for (size_t i = 0; i < bytes; ++i) {
      Must((static_cast<const char*>(reference.data())[i] != 0) == (data[i] != 0), "equal truths");
    }
    return;
  }
  Must(std::memcmp(reference.data(), data, bytes) == 0, "equal numbers");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view message(reinterpret_cast<const char*>(data), size);
  tensorflow::TensorProto proto;
  tfctr::WireTensor tensor;
  tfctr::BlockMemory memory;
  std::string got;
  int64_t filled = 0;
  const std::string_view* views = nullptr;
  const char* numbers = nullptr;
  const bool ok = tfctr::ParseTensorProto(message, &tensor, &got) &&
                  (tensor.type->bytes == 0 ? tfctr::ReadStrings(tensor, &filled, &memory, &views, &got)
                                           : tfctr::ReadNumbers(tensor, &filled, &memory, &numbers, &got));
  if (!ok) return 0;
  if (!proto.ParseFromArray(data, static_cast<int>(size))) {
    Must(proto.ParseFromString(OwnFields(message, tensor)), "what protobuf refuses is refused");
  }
  Must(static_cast<int>(proto.dtype()) == static_cast<int>(tensor.type->type), "equal types");
  if (tensor.elements > (int64_t{1} << 20)) return 0;
  tensorflow::Tensor reference;
  if (!reference.FromProto(proto)) return 0;
  Must(reference.dims() == tensor.rank, "equal ranks");
  for (int d = 0; d < tensor.rank; ++d) Must(reference.dim_size(d) == tensor.dims[d], "equal dimensions");
  if (tensor.type->bytes != 0) {
    CompareNumbers(tensor, reference, numbers);
    return 0;
  }
  const auto* strings = static_cast<const tensorflow::tstring*>(reference.data());
  for (int64_t i = 0; i < tensor.elements; ++i) {
    Must(std::string_view(strings[i].data(), strings[i].size()) == views[i], "equal strings");
  }
  return 0;
}
