// A group of embedding lookups executed together: any number of features and tables, one pass, results written straight
// into the (concatenated) outputs. This is the whole of TfctrFusedLookup except what must know TensorFlow.
//
//   FusedLookup plan = FusedLookup::Create(spec, ...)      once per graph node
//   Call call;                                              once per request (the caller reuses the object)
//   plan.ResolveTables(files, &tables)                      once per opened set of files
//   plan.Prepare(inputs, tables, &call)                     binds and checks; gives the outputs' shapes
//   plan.RunIds(begin, end, &call)                          any split of [0, call.id_work()), any threads; then:
//   plan.Run(begin, end, &call)                             any split of [0, call.work()), any threads
//   plan.Finish(&call)                                      what the fast path left: unordered rows, errors
//
// How a feature runs: the usual ones (plain integer ids after their steps, no weights, SparseSegment order, a width of
// whole vectors, or no reduction) go through one loop from ids to output rows (stream_impl.h). For the others a block
// of about a hundred values is resolved (id steps, prune, bounds, rows) into a list of row pointers; while the gather
// kernels reduce one list, they prefetch the rows of the next one.
// Ids of a hash file are keys, and some ids of a table with an overlay have their row elsewhere: both become row
// numbers after their steps (row_numbers.h), and all that follows reads rows by number. What lookups have in common is
// done once (shared_work.cc): ids that several of them hash or look up alike are resolved before all else (RunIds), and
// a lookup that equals an earlier one gets a copy of its result (Finish). Anything irregular (rows not in order, an id
// out of range, ...) is not handled there but noted, and Finish runs that feature again, whole, by a careful path that
// sorts or says what is wrong: errors are the same however work is split.
//
// Thread-safety: a plan is immutable. Prepare and Finish are called by one thread per Call; RunIds by any number
// between, and Run by any number after the last RunIds has returned.
// Cost: no allocation per feature or request once the scratch of a thread has grown; scratch is a few tens of KB.
#ifndef TFCTR_CORE_LOOKUP_FUSED_LOOKUP_H_
#define TFCTR_CORE_LOOKUP_FUSED_LOOKUP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/lookup/gather.h"
#include "tfctr/core/lookup/id_steps.h"
#include "tfctr/core/lookup/row_numbers.h"
#include "tfctr/core/lookup/spec.h"
#include "tfctr/core/lookup/tensor_view.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

// The table of one lookup, checked against its spec: what does not change while the same files are open.
struct LookupTable {
  const uint8_t* data = nullptr;
  std::string name;
  int64_t rows = 0;         // row numbers are below this
  int64_t keys = 0;         // of a hash file, overlays aside
  RowNumbering numbers;     // what makes row numbers of ids, where they are none
  int64_t fill_number = 0;  // row number of the spec's fill_id, where that is in range
};

// Per lookup of a plan; valid as long as the files are open.
using LookupTables = std::vector<LookupTable>;

// What does not change from request to request.
struct Feature {
  LookupSpec spec;
  bool is_copy = false;  // numeric columns copied beside the lookups; spec.ids is the source
  bool hashed = false;   // ids are keys of a hash file
  RowFormat format = RowFormat::kInvalid;
  int64_t row_bytes = 0;        // from one table row to the next (of a copied row)
  int64_t value_bytes = 0;      // of a table row in the output
  int64_t block_values = 0;     // values that are resolved together
  int64_t column_bytes = 0;     // first byte of this feature in an output row
  size_t step_count = 0;        // steps left after those below were taken out
  bool prune_negative = false;  // the last step; done while listing rows
  int64_t wrap = 0;             // the only step: negative ids get this added
  bool stream = false;          // done by the stream kernels, straight from ids to output
  bool fast = false;            // resolved by the short loops: no weights, masks, max_norm, divisors
  Finish finish = Finish::kNone;
  AddOrder order = AddOrder::kSparseSegment;
  bool needs_divisors = false;
  bool has_weights = false;
  bool has_mask = false;
  bool is_double = false;   // arithmetic in double
  int32_t shared_ids = -1;  // number of the ids that it has in common with others; -1: its own
  int32_t same_as = -1;     // the earlier lookup whose result is copied; -1: none
};

// One feature's part of a request.
struct BoundFeature {
  const LookupTable* source = nullptr;  // null of copied columns
  const uint8_t* table = nullptr;       // its first row
  int64_t table_rows = 0;               // row numbers are below this
  TensorView ids;
  TensorView rows;
  TensorView shape;
  TensorView weights;
  TensorView mask;
  int64_t values = 0;      // N
  int64_t row_count = 0;   // R, of the output
  int64_t positions = 1;   // dense: ids per output row
  int64_t work_begin = 0;  // start in the request's work units
  bool empty_is_nan = false;
  const int64_t* ready_ids = nullptr;  // ids after their steps (hashed: row numbers), where they are shared
  bool renumber = false;               // what the steps leave must be made row numbers
  std::atomic<bool> irregular{false};
  mutable std::atomic<int64_t> default_rows{0};  // keys of a hash file that it does not have; only while counting

  BoundFeature() = default;
  BoundFeature(const BoundFeature& other) { *this = other; }
  BoundFeature& operator=(const BoundFeature& other);
};

struct OutputShape {
  int64_t rows = 0;                  // product of all dimensions but the last
  const TensorView* like = nullptr;  // form like: ids whose dimensions come first (all, or all but the last)
  int like_rank = 0;
};

class Call {
 public:
  int64_t id_work() const { return id_work_; }
  int64_t work() const { return work_; }
  // Nanoseconds of one unit, roughly.
  int64_t work_cost() const { return work_cost_; }
  const std::vector<OutputShape>& outputs() const { return outputs_; }
  // Whether keys that a hash file does not have are counted. Set before Prepare; stays.
  void SetCounting(bool counting) { counting_ = counting; }
  // Memory of output k, row-major [rows, columns], 16-byte aligned or better. Set before Run.
  void SetOutput(size_t k, void* data) { output_data_[k] = static_cast<uint8_t*>(data); }

 private:
  friend class FusedLookup;
  friend class Runner;
  std::vector<BoundFeature> features_;
  std::vector<OutputShape> outputs_;
  std::vector<uint8_t*> output_data_;
  std::vector<int32_t> first_feature_;  // of each output
  StepContext steps_;
  std::vector<std::vector<int64_t>> shared_ids_;
  bool counting_ = false;
  int64_t id_work_ = 0;
  int64_t work_ = 0;
  int64_t work_cost_ = 1;
};

// Where a request's tensors and vocabularies come from; calls are made from Prepare only.
class LookupInputs {
 public:
  virtual ~LookupInputs() = default;
  virtual Status Get(Source source, TensorView* view) const = 0;
  virtual StepContext Steps() const = 0;
};

class FusedLookup {
 public:
  static Result<std::unique_ptr<const FusedLookup>> Create(std::string_view spec_text,
                                                           const std::vector<ValueType>& packed,
                                                           const std::vector<ValueType>& args, Isa isa);

  // `files`: the opened files by number, null where a file is no table.
  Status ResolveTables(const std::vector<const ServedTable*>& files, LookupTables* tables) const;
  Status Prepare(const LookupInputs& inputs, const LookupTables& tables, Call* call) const;
  void RunIds(int64_t begin, int64_t end, Call* call) const;
  void Run(int64_t begin, int64_t end, Call* call) const;
  Status Finish(Call* call) const;

  // Of lookup `i` of the spec, after Finish: its ids, and those of them that got the default row (of a call that
  // counts).
  int64_t Lookups(const Call& call, size_t i) const { return call.features_[i].values; }
  int64_t DefaultRows(const Call& call, size_t i) const {
    const int32_t same = features_[i].same_as;
    return call.features_[same < 0 ? i : static_cast<size_t>(same)].default_rows.load(std::memory_order_relaxed);
  }

  const GroupSpec& spec() const { return group_; }

 private:
  friend class Runner;
  FusedLookup() = default;
  Status Bind(const LookupInputs& inputs, const Feature& feature, BoundFeature* bound) const;
  Status CountRows(const Feature& feature, Call* call, BoundFeature* bound) const;
  void FindSharedWork();
  void PrepareShared(Call* call) const;
  void CopyResults(const Call& call) const;
  static std::string Describe(const Feature& feature, const BoundFeature& bound);

  GroupSpec group_;
  std::vector<Feature> features_;  // lookups, then copies
  std::vector<int64_t> output_row_bytes_;
  std::vector<std::vector<int32_t>> shared_ids_;  // lookups by the ids that they have in common
  std::vector<uint8_t> zero_row_;                 // stands for masked values
  const GatherKernels* kernels_ = nullptr;
  NumberKernel number_kernel_ = nullptr;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_FUSED_LOOKUP_H_
