// One part of a request between "looked at" and "copied into the arena": where its bytes are, its shape, and who owns
// them.
//
// Reading a Python value never copies when it is a C-contiguous array of the right dtype; anything else is converted by
// C++ loops (array_input.cc, list_input.cc) into memory that the PartValue owns.
//
// Everything that takes a Python value runs under the GIL; the rest (TakeIntegers, IntegerAt, CheckShape, and a
// PartValue that holds no Python object) needs none.
#ifndef TFCTR_CORE_RUNTIME_PART_VALUE_H_
#define TFCTR_CORE_RUNTIME_PART_VALUE_H_

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "tfctr/core/runtime/signature_plan.h"

namespace tfctr {

// A value that does not fit. `got` completes "input 'x': got ..., expected int64 [?]".
class Mismatch : public std::exception {
 public:
  explicit Mismatch(std::string got) : got_(std::move(got)) {}
  const char* what() const noexcept override { return got_.c_str(); }
  const std::string& got() const { return got_; }

 private:
  std::string got_;
};

// A request that does not fit, with the whole message already made. `Pack` turns both into tfctr.errors.InputError.
class BadRequest : public std::exception {
 public:
  explicit BadRequest(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// Rows of a value to write, in this order, instead of all of it (the rows of a user, once for each candidate).
struct TakenRows {
  const int64_t* rows = nullptr;  // row numbers; nullptr: the whole value, as it is
  int64_t count = 0;
  int64_t row_elements = 0;
  int64_t elements = 0;  // of the whole value
};

struct PartValue {
  enum class Source : uint8_t {
    kMissing,
    kBytes,         // `elements` of the part's own type at `data`
    kObjects,       // str or bytes objects: `data` is PyObject* const*
    kFixedBytes,    // NumPy 'S': `item_bytes` each, padded with NUL
    kFixedUnicode,  // NumPy 'U': `item_bytes` each, UCS4, padded with NUL
    kViews,         // strings as they lie in a request message: `data` is const std::string_view*
  };
  Source source = Source::kMissing;
  uint32_t item_bytes = 0;
  int64_t elements = 0;
  const char* data = nullptr;  // borrowed from the request, or from `owned`, `objects` or `keep`
  absl::InlinedVector<int64_t, 4> dims;
  TakenRows taken;  // when set, `elements` and `dims` are those of the result
  std::vector<char> owned;
  std::vector<PyObject*> objects;  // owned references
  pybind11::object keep;

  PartValue() = default;
  PartValue(const PartValue&) = delete;
  PartValue& operator=(const PartValue&) = delete;
  ~PartValue() {
    for (PyObject* object : objects) Py_DECREF(object);
  }
  bool present() const { return source != Source::kMissing; }
  void Own(std::vector<char> bytes) {
    owned = std::move(bytes);
    data = owned.data();
    source = Source::kBytes;
  }
};

// Takes `value` as the whole of `part`: an array, a tensor, nested lists, or a scalar. Throws Mismatch.
void TakePart(const Part& part, pybind11::handle value, PartValue* out);

// The common case of TakePart: a C-contiguous np.ndarray of exactly the part's dtype. False when it is anything else.
// Throws Mismatch when the shape does not fit.
bool TakeExactArray(const Part& part, PyObject* value, PartValue* out);

// An array of any dtype and layout, cast where no information is lost that a user would miss. Throws Mismatch.
void TakeArray(const Part& part, const pybind11::array& value, PartValue* out);

// Rectangular nested lists (or one scalar). Throws Mismatch.
void TakeLists(const Part& part, pybind11::handle value, PartValue* out);

// Nested lists with `levels` levels of rows of different length: the values (with what is left of the nesting as inner,
// uniform dimensions) and one row_splits per level, outermost first. Throws Mismatch.
void TakeRaggedLists(const Part& values, pybind11::handle value, int levels, PartValue* out,
                     std::vector<std::vector<int64_t>>* splits);

// Integers made by the packer itself (row_splits, indices, dense_shape) as the part's int32 or int64. Throws Mismatch
// when one does not fit.
void TakeIntegers(const Part& part, const std::vector<int64_t>& numbers, absl::InlinedVector<int64_t, 4> dims,
                  PartValue* out);

// Reads integer `i` of a part that holds int32 or int64.
int64_t IntegerAt(const Part& part, const PartValue& value, int64_t i);

// Throws Mismatch when the shape is not what the part's static shape says. An empty value that came without enough
// nesting
// ([] for [?, 3]) gets the missing dimensions.
void CheckShape(const Part& part, PartValue* value);

// "float64 [32, 1]", "str", "a SparseTensor" ...: what came, for messages.
std::string DescribeValue(pybind11::handle value);

// list or tuple (not a named tuple such as SparseTensorValue).
bool IsNesting(pybind11::handle value);

// Deeper lists are refused: a list may hold itself.
inline constexpr size_t kMaxListDepth = 64;
// RaggedTensor or its Value class; SparseTensor or its Value class. By attributes: no import of TensorFlow.
bool IsRagged(pybind11::handle value);
bool IsSparse(pybind11::handle value);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PART_VALUE_H_
