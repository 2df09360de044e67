// Several packed requests as one: BatchPlan::Concat.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/runtime/request_batch.h"

namespace tfctr {

namespace {

using Kind = StackRule::Kind;
using tensorflow::tstring;

// What one batch needs beside its result; kept by the thread, so that a batch allocates three tensors and no more.
struct Scratch {
  std::vector<std::vector<PackedInput>> inputs;  // [request][part]
  std::vector<int64_t> shapes;
  std::vector<int64_t> elements;  // [part], of the result
};

class Concatenation {
 public:
  Concatenation(const StackForm& form, absl::Span<const PackedRequest* const> requests, Scratch* scratch)
      : form_(form), requests_(requests), scratch_(*scratch) {}

  absl::StatusOr<PackedRequest> Run() {
    if (scratch_.inputs.size() < requests_.size()) scratch_.inputs.resize(requests_.size());
    for (size_t r = 0; r < requests_.size(); ++r) {
      if (requests_[r]->split != requests_[0]->split || requests_[r]->absent != requests_[0]->absent) return Misfit(0);
      const absl::Status parsed = ParseRequest(form_, *requests_[r], &scratch_.inputs[r]);
      if (!parsed.ok()) return parsed;
    }
    scratch_.shapes.clear();
    scratch_.elements.assign(form_.rules.size(), 0);
    for (size_t i = 0; i < form_.rules.size(); ++i) {
      const absl::Status measured = Measure(i);
      if (!measured.ok()) return measured;
    }
    const absl::Status allocated = Allocate();
    if (!allocated.ok()) return allocated;
    for (size_t i = 0; i < form_.rules.size(); ++i) Write(i);
    return std::move(result_);
  }

 private:
  const PackedInput& In(size_t r, size_t i) const { return scratch_.inputs[r][i]; }
  const PackedInput& In(size_t r, int i) const { return scratch_.inputs[r][static_cast<size_t>(i)]; }
  const char* Data(size_t r, const PackedInput& input) const {
    return static_cast<const char*>(requests_[r]->arena.data()) + input.offset;
  }
  absl::Status Misfit(size_t i) const {
    return absl::InternalError(absl::StrCat("requests that do not go together, at part ", form_.parts[i]));
  }
  bool IsConstant(size_t i) const {
    const Kind kind = form_.rules[i].kind;
    return kind == Kind::kConstant || (kind == Kind::kRows && In(0, i).rank == 0);
  }
  // Entries below one level of row_splits, in one request.
  int64_t Below(size_t r, int place) const {
    const PackedInput& input = In(r, place);
    return form_.rules[static_cast<size_t>(place)].kind == Kind::kSplits ? input.elements - 1 : input.dims[0];
  }
  // Rows that the rule `place` says a request has: of a dense_shape, of row_splits or of a dense part.
  int64_t RowsOf(size_t r, int place) const {
    const PackedInput& input = In(r, place);
    const StackRule& rule = form_.rules[static_cast<size_t>(place)];
    if (rule.kind != Kind::kDenseShape) return Below(r, place);
    return rule.wide ? Number<int64_t>(Data(r, input)) : Number<int32_t>(Data(r, input));
  }
  template <typename T>
  static int64_t Number(const char* at) {
    T number;
    std::memcpy(&number, at, sizeof(number));
    return static_cast<int64_t>(number);
  }

  // Of a part whose shape is that of the first request. Keys say so, but lanes are hashes of them.
  bool SameValues(size_t r, size_t i) const {
    const PackedInput& input = In(r, i);
    const PackedInput& first = In(0, i);
    if (!input.is_string()) {
      return input.bytes() == 0 || std::memcmp(Data(r, input), Data(0, first), input.bytes()) == 0;
    }
    const tstring* own = static_cast<const tstring*>(requests_[r]->strings.data()) + input.offset;
    return std::equal(own, own + input.elements,
                      static_cast<const tstring*>(requests_[0]->strings.data()) + first.offset);
  }

  // Checks that a part fits in all requests, and adds its shape.
  absl::Status Measure(size_t i) {
    const StackRule& rule = form_.rules[i];
    const PackedInput& first = In(0, i);
    const bool same = IsConstant(i) || rule.kind == Kind::kDenseShape;
    int64_t rows = first.rank > 0 ? first.dims[0] : 0;
    int64_t offsets = rule.kind == Kind::kSplits    ? Below(0, rule.below)
                      : rule.kind == Kind::kIndices ? RowsOf(0, rule.rows_from)
                                                    : 0;
    for (size_t r = 1; r < requests_.size(); ++r) {
      const PackedInput& input = In(r, i);
      if (input.rank != first.rank) return Misfit(i);
      for (int32_t d = same ? 0 : 1; d < first.rank; ++d) {
        if (input.dims[d] != first.dims[d]) return Misfit(i);
      }
      if (IsConstant(i) && !SameValues(r, i)) return Misfit(i);
      if (same) continue;
      rows += input.dims[0] - (rule.kind == Kind::kSplits ? 1 : 0);
      if (rule.kind == Kind::kSplits) offsets += Below(r, rule.below);
      if (rule.kind == Kind::kIndices) offsets += RowsOf(r, rule.rows_from);
    }
    if (!rule.wide && offsets > std::numeric_limits<int32_t>::max()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("part ", form_.parts[i], " holds int32, which can't count the ", offsets, " of all requests"));
    }
    scratch_.shapes.push_back(first.rank);
    int64_t elements = 1;
    for (int32_t d = 0; d < first.rank; ++d) {
      scratch_.shapes.push_back(d == 0 ? rows : first.dims[d]);
      if (__builtin_mul_overflow(elements, scratch_.shapes.back(), &elements)) return Misfit(i);
    }
    scratch_.elements[i] = elements;
    return absl::OkStatus();
  }

  absl::Status Allocate() {
    PackedSegments segments;
    for (size_t i = 0; i < form_.rules.size(); ++i) {
      const auto elements = static_cast<uint64_t>(scratch_.elements[i]);
      form_.rules[i].element_bytes == 0 ? segments.AddStrings(elements)
                                        : segments.AddNumeric(elements * form_.rules[i].element_bytes);
    }
    result_.arena = tensorflow::Tensor(tensorflow::DT_UINT8, {static_cast<int64_t>(segments.arena_bytes())});
    result_.shapes = tensorflow::Tensor(tensorflow::DT_INT64, {static_cast<int64_t>(scratch_.shapes.size())});
    result_.strings = tensorflow::Tensor(tensorflow::DT_STRING, {static_cast<int64_t>(segments.strings())});
    std::copy(scratch_.shapes.begin(), scratch_.shapes.end(), static_cast<int64_t*>(result_.shapes.data()));
    if (!result_.arena.IsInitialized() || !result_.strings.IsInitialized()) {
      return absl::ResourceExhaustedError("no memory for a batch");
    }
    result_.absent = requests_[0]->absent;
    result_.split = requests_[0]->split;
    for (const PackedRequest* request : requests_) result_.repeated = result_.repeated || request->repeated;
    return absl::OkStatus();
  }

  void Write(size_t i) {
    const StackRule& rule = form_.rules[i];
    const auto elements = static_cast<uint64_t>(scratch_.elements[i]);
    if (rule.element_bytes == 0) return WriteStrings(i);
    const uint64_t bytes = elements * rule.element_bytes;
    if (bytes == 0) return;
    char* to = static_cast<char*>(result_.arena.data()) + segments_.AddNumeric(bytes);
    switch (rule.kind) {
      case Kind::kSplits:
        rule.wide ? WriteSplits<int64_t>(i, to) : WriteSplits<int32_t>(i, to);
        break;
      case Kind::kIndices:
        rule.wide ? WriteIndices<int64_t>(i, to) : WriteIndices<int32_t>(i, to);
        break;
      case Kind::kDenseShape:
        rule.wide ? WriteDenseShape<int64_t>(i, to) : WriteDenseShape<int32_t>(i, to);
        break;
      case Kind::kRowToUser:
        WriteRowToUser(i, to);
        break;
      default:
        WriteBytes(i, to);
    }
    std::memset(to + bytes, 0, PackedRoundUp(bytes) - bytes);
  }

  void WriteBytes(size_t i, char* to) const {
    const size_t requests = IsConstant(i) ? 1 : requests_.size();
    for (size_t r = 0; r < requests; ++r) {
      const PackedInput& input = In(r, i);
      const uint64_t bytes = input.bytes();
      if (bytes == 0) continue;
      std::memcpy(to, Data(r, input), bytes);
      to += bytes;
    }
  }

  void WriteStrings(size_t i) {
    tstring* to = static_cast<tstring*>(result_.strings.data()) +
                  segments_.AddStrings(static_cast<uint64_t>(scratch_.elements[i]));
    const size_t requests = IsConstant(i) ? 1 : requests_.size();
    for (size_t r = 0; r < requests; ++r) {
      const PackedInput& input = In(r, i);
      to = std::copy_n(static_cast<const tstring*>(requests_[r]->strings.data()) + input.offset, input.elements, to);
    }
  }

  template <typename T>
  void WriteSplits(size_t i, char* at) const {
    T* to = reinterpret_cast<T*>(at);
    *to++ = 0;
    T offset = 0;
    for (size_t r = 0; r < requests_.size(); ++r) {
      const PackedInput& input = In(r, i);
      const T* from = reinterpret_cast<const T*>(Data(r, input));
      const int64_t rows = input.elements - 1;
      for (int64_t k = 0; k < rows; ++k) to[k] = static_cast<T>(from[k + 1] + offset);
      to += rows;
      offset = static_cast<T>(offset + Below(r, form_.rules[i].below));
    }
  }

  template <typename T>
  void WriteIndices(size_t i, char* at) const {
    T* to = reinterpret_cast<T*>(at);
    T offset = 0;
    for (size_t r = 0; r < requests_.size(); ++r) {
      const PackedInput& input = In(r, i);
      const int64_t rank = input.dims[1];
      if (input.elements > 0) std::memcpy(to, Data(r, input), input.bytes());
      for (int64_t k = 0; offset > 0 && k < input.elements; k += rank) to[k] = static_cast<T>(to[k] + offset);
      to += input.elements;
      offset = static_cast<T>(offset + RowsOf(r, form_.rules[i].rows_from));
    }
  }

  template <typename T>
  void WriteDenseShape(size_t i, char* at) const {
    T* to = reinterpret_cast<T*>(at);
    for (size_t r = 0; r < requests_.size(); ++r) {
      const PackedInput& input = In(r, i);
      const T* from = reinterpret_cast<const T*>(Data(r, input));
      if (r == 0) {
        std::copy_n(from, input.elements, to);
        continue;
      }
      to[0] = static_cast<T>(to[0] + from[0]);
      for (int64_t d = 1; d < input.elements; ++d) to[d] = std::max(to[d], from[d]);
    }
  }

  void WriteRowToUser(size_t i, char* at) const {
    int64_t* to = reinterpret_cast<int64_t*>(at);
    int64_t users = 0;
    for (size_t r = 0; r < requests_.size(); ++r) {
      const PackedInput& input = In(r, i);
      const int64_t* from = reinterpret_cast<const int64_t*>(Data(r, input));
      for (int64_t k = 0; k < input.elements; ++k) to[k] = from[k] + users;
      to += input.elements;
      users += RowsOf(r, form_.users_from);
    }
  }

  const StackForm& form_;
  const absl::Span<const PackedRequest* const> requests_;
  Scratch& scratch_;
  PackedSegments segments_;
  PackedRequest result_;
};

}  // namespace

absl::StatusOr<PackedRequest> BatchPlan::Concat(absl::Span<const PackedRequest* const> requests) const {
  if (requests.empty()) return absl::InternalError("a batch of no requests");
  if (requests.size() == 1) return *requests[0];  // shares its memory
  const StackForm* form = FormOf(*requests[0]);
  if (form == nullptr) return absl::InternalError("a batch of requests that do not stack");
  static thread_local Scratch scratch;
  return Concatenation(*form, requests, &scratch).Run();
}

}  // namespace tfctr
