// Several packed requests of one signature as one, and back: how each part of a request stacks, which requests go
// together, and which rows of the outputs belong to whom.
//
//   dense            one after the other in the first dimension; the other dimensions must be equal
//   ragged           row_splits of every level go on where those of the request before ended
//   sparse           row numbers in the indices go on; dense_shape: rows are added, the largest of the others is taken
//   like (weights)   as the values they belong to
//   split form       user parts stack by users, the others by rows; row_to_user goes on by users
//   no rows          scalars and parts of a fixed shape must be the same bytes in all
//
// What a batch of requests holds is, byte for byte, what packing their concatenation would have given. A request that
// does not agree with itself (row_splits that do not rise to the number of values, indices outside of its rows,
// features of different numbers of rows) never shares a batch: the graph refuses it, or takes it, alone.
// A graph in which rows see each other (a mean over the batch, padding to the longest row) can't be told from here:
// whoever turns batching on proves it with requests of different lengths.
//
// Thread-safety: immutable after Make. Cost of Concat: three allocations and the bytes (8 requests of 8 rows and 40
// ragged features: below 30 us, benchmarks/bench_request_batch.py).
#ifndef TFCTR_CORE_RUNTIME_REQUEST_BATCH_H_
#define TFCTR_CORE_RUNTIME_REQUEST_BATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/lookup/packed_layout.h"
#include "tfctr/core/runtime/output_rows.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/signature_plan.h"

namespace tfctr {

// A request with more rows than this runs alone and whole; a sparse tensor may claim any number.
inline constexpr int64_t kMaxStackedRows = int64_t{1} << 24;

// What a queue needs to know of a request; found once, on the thread of its caller.
struct RequestInfo {
  int64_t rows = -1;   // -1: runs alone and whole; `why` says why
  int64_t users = -1;  // rows of what comes once per user; -1 in the plain form
  std::string key;     // equal in requests that go together
  std::string why;
};

// How the parts of one form stack. For the implementation and its tests.
struct StackRule {
  enum class Kind : uint8_t { kConstant, kRows, kValues, kSplits, kIndices, kDenseShape, kRowToUser };
  Kind kind = Kind::kConstant;
  bool once = false;        // its rows are users
  bool wide = true;         // integers: int64, else int32
  bool outer = false;       // splits: of the outermost level
  bool rank_known = false;  // of dense parts
  uint32_t element_bytes = 0;
  int below = -1;  // splits: the next level, or the values; values, indices: -1 or what must have as many entries
  int rows_from =
      -1;  // what has the rows that it is cut by: indices -> dense_shape; values -> innermost splits or indices
};

struct StackForm {
  std::vector<StackRule> rules;  // by place in the form
  std::vector<int> parts;        // their part numbers
  std::vector<uint32_t> element_bytes;
  int users_from = -1;  // the rule whose rows are the users
  std::string refused;  // why requests of this form never stack; "": they do
};

class BatchPlan {
 public:
  // FailedPrecondition where requests of this signature can't be stacked, with the reason.
  static absl::StatusOr<BatchPlan> Make(const SignaturePlan& plan);

  RequestInfo Inspect(const PackedRequest& request) const;
  static bool Fits(const RequestInfo& a, const RequestInfo& b) { return a.rows >= 0 && b.rows >= 0 && a.key == b.key; }

  // The same, from the requests themselves.
  int64_t Rows(const PackedRequest& request) const { return Inspect(request).rows; }
  bool Fits(const PackedRequest& a, const PackedRequest& b) const { return Fits(Inspect(a), Inspect(b)); }

  // One request that holds these, in this order; they must fit. ResourceExhausted where the offsets do not fit int32.
  absl::StatusOr<PackedRequest> Concat(absl::Span<const PackedRequest* const> requests) const;

  // Rows [first, first + rows) of a request whose Inspect says rows >= 0, with the users that they belong to.
  absl::StatusOr<PackedRequest> Slice(const PackedRequest& request, int64_t first, int64_t rows) const;

  // Such a request in pieces of at most `most` rows, at the cost of one pass over it, whatever the number of pieces.
  // Whole, where users of many pieces would be repeated to several times its size.
  absl::StatusOr<std::vector<PackedRequest>> Cut(const PackedRequest& request, int64_t most) const;

  // See OutputPlan.
  absl::StatusOr<std::vector<std::vector<tensorflow::Tensor>>> SplitOutputs(
      absl::Span<const tensorflow::Tensor> outputs, absl::Span<const int64_t> rows) const {
    return outputs_.Split(outputs, rows);
  }
  absl::StatusOr<std::vector<tensorflow::Tensor>> JoinOutputs(
      absl::Span<const std::vector<tensorflow::Tensor>> pieces) const {
    return outputs_.Join(pieces);
  }

 private:
  explicit BatchPlan(OutputPlan outputs) : outputs_(std::move(outputs)) {}
  const StackForm* FormOf(const PackedRequest& request) const;

  StackForm plain_;
  std::optional<StackForm> split_;
  OutputPlan outputs_;
};

// The inputs of a packed request, pointing into it.
absl::Status ParseRequest(const StackForm& form, const PackedRequest& request, std::vector<PackedInput>* inputs);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_REQUEST_BATCH_H_
