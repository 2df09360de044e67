// Which rows of a batch's outputs belong to which of its requests, and the outputs of a request that was run in pieces.
//
// Dense outputs are cut as views of the batch's memory, which may be unaligned: read them by Tensor::data(), not by
// flat(). Ragged and sparse ones (several fetched tensors) are cut and joined as such.
//
// Thread-safety: immutable. Cost: a view per dense output and request.
#ifndef TFCTR_CORE_RUNTIME_OUTPUT_ROWS_H_
#define TFCTR_CORE_RUNTIME_OUTPUT_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/runtime/signature_plan.h"

namespace tfctr {

class OutputPlan {
 public:
  // FailedPrecondition where an output has no rows that could be told apart, with the reason.
  static absl::StatusOr<OutputPlan> Make(const std::vector<Output>& outputs);

  // [request][output] from the outputs of a batch of requests with `rows` rows each. Internal where an output does not
  // have their sum.
  absl::StatusOr<std::vector<std::vector<tensorflow::Tensor>>> Split(absl::Span<const tensorflow::Tensor> outputs,
                                                                     absl::Span<const int64_t> rows) const;

  // The outputs of pieces ([piece][output], at least one), one after the other. Internal where they do not fit.
  absl::StatusOr<std::vector<tensorflow::Tensor>> Join(absl::Span<const std::vector<tensorflow::Tensor>> pieces) const;

 private:
  // Numbers of the fetched tensors of one output.
  struct Group {
    enum class Kind : uint8_t { kDense, kRagged, kSparse };
    Kind kind = Kind::kDense;
    std::string name;
    size_t values = 0;
    std::vector<size_t> splits;  // outermost first
    size_t indices = 0;
    size_t dense_shape = 0;
  };
  using Tensors = std::vector<tensorflow::Tensor>;

  static absl::Status SplitDense(const Group& group, absl::Span<const tensorflow::Tensor> outputs,
                                 absl::Span<const int64_t> rows, std::vector<Tensors>* result);
  static absl::Status SplitRagged(const Group& group, absl::Span<const tensorflow::Tensor> outputs,
                                  absl::Span<const int64_t> rows, std::vector<Tensors>* result);
  static absl::Status SplitSparse(const Group& group, absl::Span<const tensorflow::Tensor> outputs,
                                  absl::Span<const int64_t> rows, std::vector<Tensors>* result);
  static absl::Status JoinRagged(const Group& group, absl::Span<const Tensors> pieces, Tensors* result);
  static absl::Status JoinSparse(const Group& group, absl::Span<const Tensors> pieces, Tensors* result);

  std::vector<Group> groups_;
  size_t tensors_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_OUTPUT_ROWS_H_
