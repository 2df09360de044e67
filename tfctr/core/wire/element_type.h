// Types of tensor elements on the wire.
#ifndef TFCTR_CORE_WIRE_ELEMENT_TYPE_H_
#define TFCTR_CORE_WIRE_ELEMENT_TYPE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tfctr {

// Numbered as tensorflow.DataType.
enum class ElementType : int32_t {
  kInvalid = 0,
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
};

struct ElementTypeInfo {
  ElementType type;
  uint32_t bytes;           // of one element; 0: strings
  std::string_view name;    // NumPy's
  std::string_view kserve;  // the v2 protocol's
};

inline constexpr ElementTypeInfo kElementTypes[] = {
    {ElementType::kFloat, 4, "float32", "FP32"},   {ElementType::kInt64, 8, "int64", "INT64"},
    {ElementType::kInt32, 4, "int32", "INT32"},    {ElementType::kString, 0, "string", "BYTES"},
    {ElementType::kDouble, 8, "float64", "FP64"},  {ElementType::kBool, 1, "bool", "BOOL"},
    {ElementType::kHalf, 2, "float16", "FP16"},    {ElementType::kBfloat16, 2, "bfloat16", "BF16"},
    {ElementType::kInt8, 1, "int8", "INT8"},       {ElementType::kInt16, 2, "int16", "INT16"},
    {ElementType::kUint8, 1, "uint8", "UINT8"},    {ElementType::kUint16, 2, "uint16", "UINT16"},
    {ElementType::kUint32, 4, "uint32", "UINT32"}, {ElementType::kUint64, 8, "uint64", "UINT64"},
};

// nullptr for a type that can't be given to a model here.
inline const ElementTypeInfo* FindElementType(int64_t number) {
  for (const ElementTypeInfo& info : kElementTypes) {
    if (static_cast<int64_t>(info.type) == number) return &info;
  }
  return nullptr;
}

inline const ElementTypeInfo* FindKServeType(std::string_view name) {
  for (const ElementTypeInfo& info : kElementTypes) {
    if (info.kserve == name) return &info;
  }
  return nullptr;
}

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_ELEMENT_TYPE_H_
