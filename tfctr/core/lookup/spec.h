// The parsed `spec` attr of TfctrFusedLookup: lookups, outputs and copies of one group. The text form is written by
// graph_opt/lookup_spec.py, which also says what every field means; this file mirrors it.
//
// Parsing checks everything that does not depend on a request: known words, legal values, dtypes along the id steps,
// placements that cover every output column exactly once. Errors name the line and the word.
// Thread-safety: plain values, immutable after parsing.
#ifndef TFCTR_CORE_LOOKUP_SPEC_H_
#define TFCTR_CORE_LOOKUP_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/lookup/tensor_view.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

enum class Form { kDense, kSparse, kRagged, kSegments };
enum class Combiner { kNone, kSum, kMean, kSqrtn };
enum class Accumulation { kSegment, kSequential };
enum class Denominator { kCount, kMax1, kEps, kPositions, kNoNan };
enum class EmptyRule { kZeros, kNan, kNatural, kShort };
enum class OutputForm { kRows, kLike };

enum class StepKind {
  kCast,
  kMod,
  kMul,
  kAdd,
  kDivide,
  kAddCol,
  kWrapNegative,
  kAsString,
  kHashFast,
  kHashStrong,
  kBucketize,
  kVocab,
  kVocabOov,
  kSelectNegative,
  kSelectOutOfRange,
  kPruneNegative,
  kPruneEqual,
  kSelectEqual,
  kFingerprint,
  kFind,
};

// A scalar in text, to be compared with raw values of any type.
struct TextValue {
  std::string text;
  std::optional<int64_t> integer;
  std::optional<double> number;
};

struct Step {
  StepKind kind = StepKind::kCast;
  std::vector<int64_t> ints;      // mod, mul, ..., vocab: index, default (or size, buckets)
  std::vector<float> floats;      // bucketize
  uint64_t key[2] = {0, 0};       // hash_strong
  DType dtype = DType::kInvalid;  // cast: the target
  TextValue value;                // prune_equal, select_equal
};

// Where an input comes from: args[index], or the index-th packed input.
struct Source {
  bool packed = false;
  int32_t index = -1;
  bool used() const { return index >= 0; }
};

struct LookupSpec {
  std::string name;
  int64_t table = -1;
  int64_t table_rows = 0;
  int64_t table_width = 0;
  DType table_dtype = DType::kInvalid;
  bool hashed = false;  // a hash file: ids are keys, the last step (find) makes them row numbers; no table_rows
  DType storage = DType::kInvalid;  // float16, bfloat16 or int8: what a float32 table is stored as; else kInvalid
  Form form = Form::kDense;
  Source ids;
  Source rows;
  Source shape;
  Source weights;
  Source mask;
  std::optional<TextValue> mask_value;
  std::vector<Step> steps;
  bool prune_weights = false;
  std::optional<int64_t> fill_id;  // of a hashed table: a key
  std::optional<double> max_norm;
  Combiner combiner = Combiner::kNone;
  Accumulation accumulation = Accumulation::kSegment;
  Denominator denominator = Denominator::kCount;
  double denominator_eps = 0.0;
  EmptyRule empty = EmptyRule::kNatural;
  bool sort_rows = false;
  int64_t ids_per_row = 0;  // 0: not given
  int32_t output = -1;
  int64_t column = 0;
  ValueType ids_type;  // of the raw ids

  int64_t width() const { return table_width * (ids_per_row > 0 ? ids_per_row : 1); }
  bool prunes() const;  // may drop values
};

struct CopySpec {
  std::string name;
  Source source;
  int64_t width = 0;
  int32_t output = -1;
  int64_t column = 0;
};

struct OutputSpec {
  OutputForm form = OutputForm::kRows;
  int64_t columns = 0;
  DType dtype = DType::kInvalid;
  int32_t first_lookup = -1;  // the one whose ids give a `like` output its shape (ParseGroupSpec)
  int32_t like_arg = -1;      // number of the arg that gives it (ParseOutputs); -1: packed, reduced or not known
};

struct GroupSpec {
  std::vector<OutputSpec> outputs;
  std::vector<LookupSpec> lookups;
  std::vector<CopySpec> copies;
};

// Splits and decodes only: no dtypes of inputs needed. Used by the op's shape function.
Result<std::vector<OutputSpec>> ParseOutputs(std::string_view text);

// `packed` and `args` are the types of the packed inputs and of the op's args.
Result<GroupSpec> ParseGroupSpec(std::string_view text, const std::vector<ValueType>& packed,
                                 const std::vector<ValueType>& args);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_SPEC_H_
