#include "tfctr/core/wire/wire_tensor.h"

#include "tfctr/core/wire/text.h"

namespace tfctr {

namespace {

constexpr char kMalformed[] = "bytes that are no tensor message (malformed, or cut off)";

struct ListField {
  uint32_t field = 0;
  WireTensor::Coding coding = WireTensor::Coding::kNone;
};

// Which field of a TensorProto holds the values of a type.
ListField TensorProtoField(ElementType type) {
  using Coding = WireTensor::Coding;
  switch (type) {
    case ElementType::kFloat:
      return {5, Coding::kFixed32};
    case ElementType::kDouble:
      return {6, Coding::kFixed64};
    case ElementType::kString:
      return {8, Coding::kBytes};
    case ElementType::kInt64:
      return {10, Coding::kInt64};
    case ElementType::kBool:
      return {11, Coding::kBool};
    case ElementType::kHalf:
    case ElementType::kBfloat16:
      return {13, Coding::kInt32};
    case ElementType::kUint32:
      return {16, Coding::kUint32};
    case ElementType::kUint64:
      return {17, Coding::kUint64};
    default:
      return {7, Coding::kInt32};
  }
}

// Which field of an InferTensorContents holds the values of a type; none for the 16-bit floats.
ListField ContentsField(ElementType type) {
  using Coding = WireTensor::Coding;
  switch (type) {
    case ElementType::kBool:
      return {1, Coding::kBool};
    case ElementType::kInt8:
    case ElementType::kInt16:
    case ElementType::kInt32:
      return {2, Coding::kInt32};
    case ElementType::kInt64:
      return {3, Coding::kInt64};
    case ElementType::kUint8:
    case ElementType::kUint16:
    case ElementType::kUint32:
      return {4, Coding::kUint32};
    case ElementType::kUint64:
      return {5, Coding::kUint64};
    case ElementType::kFloat:
      return {6, Coding::kFixed32};
    case ElementType::kDouble:
      return {7, Coding::kFixed64};
    case ElementType::kString:
      return {8, Coding::kBytes};
    default:
      return {};
  }
}

// A TensorShapeProto; several occurrences add up, as protobuf merges them.
bool ParseShape(std::string_view message, bool* unknown_rank, WireTensor* tensor, std::string* got) {
  ProtobufReader shape(message);
  while (shape.Next()) {
    if (shape.Is(3, WireKind::kVarint)) *unknown_rank = shape.number() != 0;
    if (!shape.Is(2, WireKind::kBytes)) continue;
    int64_t size = 0;
    ProtobufReader dim(shape.bytes());
    while (dim.Next()) {
      if (dim.Is(1, WireKind::kVarint)) size = static_cast<int64_t>(dim.number());
    }
    if (dim.failed()) {
      *got = kMalformed;
      return false;
    }
    if (!AddDim(size, tensor, got)) return false;
  }
  if (shape.failed()) *got = kMalformed;
  return !shape.failed();
}

}  // namespace

std::string WireTensor::Describe() const {
  std::string text = type == nullptr ? "a tensor" : std::string(type->name);
  text += " [";
  constexpr int32_t kShown = 12;  // an error must fit the headers of a reply
  for (int32_t d = 0; d < rank && d < kShown; ++d) text += (d > 0 ? ", " : "") + std::to_string(dims[d]);
  return text + (rank > kShown ? ", ... " + std::to_string(rank) + " dimensions]" : "]");
}

bool AddDim(int64_t size, WireTensor* tensor, std::string* got) {
  if (tensor->rank == kWireMaxRank) {
    *got = "a shape of more than " + std::to_string(kWireMaxRank) + " dimensions";
    return false;
  }
  tensor->dims[tensor->rank++] = size;
  return true;
}

bool CountElements(WireTensor* tensor, std::string* got) {
  uint64_t product = 1;
  bool overflow = false, empty = false;
  for (int32_t d = 0; d < tensor->rank; ++d) {
    if (tensor->dims[d] < 0) {
      *got = tensor->Describe() + ", whose dimension " + std::to_string(d) + " is negative";
      return false;
    }
    if (tensor->dims[d] == 0) {
      empty = true;
      continue;
    }
    overflow = __builtin_mul_overflow(product, static_cast<uint64_t>(tensor->dims[d]), &product) || overflow;
  }
  // Bytes still fit an int64. Without the dimensions of 0: TensorFlow refuses [2^40, 2^40, 0] as well.
  constexpr uint64_t kMost = uint64_t{1} << 56;
  if (overflow || product > kMost) {
    *got = tensor->Describe() + ", more values than any message holds";
    return false;
  }
  tensor->elements = empty ? 0 : static_cast<int64_t>(product);
  return true;
}

bool ParseTensorProto(std::string_view message, WireTensor* tensor, std::string* got) {
  tensor->rank = 0;
  tensor->elements = 0;
  tensor->is_raw = false;
  tensor->raw_strings = WireTensor::RawStrings::kLengthsFirst;
  tensor->message = message;
  tensor->fills = true;
  int32_t number = 0;
  bool unknown_rank = false;
  std::string_view content;
  std::string_view floats, doubles;  // the one packed list of them
  int float_lists = 0, double_lists = 0;
  ProtobufReader reader(message);
  while (reader.Next()) {
    switch (reader.field()) {
      case 1:
        if (reader.kind() == WireKind::kVarint) number = static_cast<int32_t>(reader.number());
        break;
      case 2:
        if (reader.kind() == WireKind::kBytes && !ParseShape(reader.bytes(), &unknown_rank, tensor, got)) return false;
        break;
      case 4:
        if (reader.kind() == WireKind::kBytes) content = reader.bytes();
        break;
      case 5:
        float_lists += reader.kind() == WireKind::kBytes ? 1 : 2;
        floats = reader.kind() == WireKind::kBytes ? reader.bytes() : std::string_view();
        break;
      case 6:
        double_lists += reader.kind() == WireKind::kBytes ? 1 : 2;
        doubles = reader.kind() == WireKind::kBytes ? reader.bytes() : std::string_view();
        break;
      default:
        break;
    }
  }
  if (reader.failed()) {
    *got = kMalformed;
    return false;
  }
  tensor->type = FindElementType(number);
  if (tensor->type == nullptr) {
    *got = number == 0 ? std::string("a tensor without a dtype")
                       : "a tensor of a type that is not taken here (DataType " + std::to_string(number) + ")";
    return false;
  }
  if (unknown_rank) {
    *got = "a tensor of unknown rank";
    return false;
  }
  if (!CountElements(tensor, got)) return false;
  const ListField list = TensorProtoField(tensor->type->type);
  tensor->list_field = list.field;
  tensor->coding = list.coding;
  if (!content.empty()) {
    tensor->is_raw = true;
    tensor->raw = content;
    return true;
  }
  const bool one = (list.field == 5 && float_lists == 1) || (list.field == 6 && double_lists == 1);
  const std::string_view packed = list.field == 5 ? floats : doubles;
  if (one && packed.size() == static_cast<uint64_t>(tensor->elements) * tensor->type->bytes) {
    tensor->is_raw = true;
    tensor->raw = packed;
  }
  return true;
}

bool SetInferTensor(std::string_view datatype, std::string_view contents, bool has_raw, std::string_view raw,
                    WireTensor* tensor, std::string* got) {
  tensor->type = FindKServeType(datatype);
  if (tensor->type == nullptr) {
    *got = datatype.empty() ? std::string("a tensor without a datatype")
                            : "a tensor of datatype " + ShownText(datatype) + ", which is unknown";
    return false;
  }
  if (!CountElements(tensor, got)) return false;
  const ListField list = ContentsField(tensor->type->type);
  tensor->list_field = list.field;
  tensor->coding = list.coding;
  tensor->message = contents;
  tensor->is_raw = has_raw;
  tensor->raw = raw;
  tensor->raw_strings = WireTensor::RawStrings::kLengthBeforeEach;
  tensor->fills = false;
  if (!has_raw && list.field == 0) {
    *got = tensor->Describe() + " without raw_input_contents, which this datatype needs";
    return false;
  }
  return true;
}

}  // namespace tfctr
