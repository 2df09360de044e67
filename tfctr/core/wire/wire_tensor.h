// One tensor of a request message: its type and shape, and where its values are.
//
// Two steps. Parse...: finds type, shape and values in the message, and allocates nothing. ReadNumbers, ReadStrings:
// give the values as an array, as it lies in the message where that is possible, else decoded into memory of the
// request.
// What a message claims is believed only as far as its bytes go: memory is taken for values that are there, and a list
// that is shorter than its shape (TensorProto: the last value repeats) is filled up within a budget of the request.
//
// Functions return false with `got`, which completes "input 'x': got ..., expected int64 [?]".
//
// Thread-safety: plain functions and values over borrowed bytes.
#ifndef TFCTR_CORE_WIRE_WIRE_TENSOR_H_
#define TFCTR_CORE_WIRE_WIRE_TENSOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "tfctr/core/wire/block_memory.h"
#include "tfctr/core/wire/element_type.h"
#include "tfctr/core/wire/protobuf_reader.h"

namespace tfctr {

inline constexpr int32_t kWireMaxRank = 254;  // TensorFlow's limit

// What the filled-up lists of one request may take together.
inline constexpr int64_t kMaxFilledBytes = int64_t{16} << 20;

struct WireTensor {
  // How the values of a list field are coded.
  enum class Coding : uint8_t { kNone, kInt32, kUint32, kInt64, kUint64, kBool, kFixed32, kFixed64, kBytes };
  // How `raw` holds strings.
  enum class RawStrings : uint8_t { kLengthsFirst, kLengthBeforeEach };

  const ElementTypeInfo* type = nullptr;
  int32_t rank = 0;
  int64_t dims[kWireMaxRank];
  int64_t elements = 0;
  bool is_raw = false;
  std::string_view raw;  // all values as little-endian bytes
  RawStrings raw_strings = RawStrings::kLengthsFirst;
  std::string_view message;  // whose field `list_field` holds the values otherwise
  uint32_t list_field = 0;
  Coding coding = Coding::kNone;
  bool fills = false;  // a short list is filled up

  // "int64 [2, 3]".
  std::string Describe() const;
};

// A tensorflow.TensorProto.
bool ParseTensorProto(std::string_view message, WireTensor* tensor, std::string* got);

// An InferInputTensor of KServe, taken apart by infer_request.h: `shape` has `rank` dimensions already in `tensor`, and
// `contents` is an InferTensorContents. With `raw`, the values are those of raw_input_contents.
bool SetInferTensor(std::string_view datatype, std::string_view contents, bool has_raw, std::string_view raw,
                    WireTensor* tensor, std::string* got);

// Appends a dimension, and multiplies `elements` when all are there. False for a shape that is none.
bool AddDim(int64_t size, WireTensor* tensor, std::string* got);
bool CountElements(WireTensor* tensor, std::string* got);

// The values of a tensor of numbers: `elements` of the tensor's own type, perhaps unaligned. `filled` counts bytes.
bool ReadNumbers(const WireTensor& tensor, int64_t* filled, BlockMemory* memory, const char** data, std::string* got);

// The values of a tensor of strings.
bool ReadStrings(const WireTensor& tensor, int64_t* filled, BlockMemory* memory, const std::string_view** data,
                 std::string* got);

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_WIRE_TENSOR_H_
