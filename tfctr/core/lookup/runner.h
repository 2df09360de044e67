// Executes a FusedLookup for one thread: cuts features into blocks, resolves each block into a list of row pointers and
// hands full chunks to the gather kernels. Internal to fused_lookup.cc.
// Thread-safety: a Runner belongs to one thread; it uses that thread's scratch memory, so only one may run at a time.
#ifndef TFCTR_CORE_LOOKUP_RUNNER_H_
#define TFCTR_CORE_LOOKUP_RUNNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfctr/core/lookup/fused_lookup.h"

namespace tfctr {

struct ListedBlock;
struct Scratch;

class Runner {
 public:
  Runner(const FusedLookup& plan, Call* call);

  // Work units of a feature: values plus output rows.
  static int64_t Units(const Feature& feature, const BoundFeature& bound) {
    if (feature.same_as >= 0) return 0;
    return (feature.is_copy ? 0 : bound.values) + bound.row_count;
  }

  // Units [begin, end) of the whole request. Irregular features are marked and left.
  void Range(int64_t begin, int64_t end);
  // The whole of one feature, with every check; sorts where the spec allows it.
  Status Careful(int32_t feature);
  // Sets row_count of a lookup whose output ends with the last row that has a value.
  Status LastRow(const Feature& feature, BoundFeature* bound);

 private:
  struct Part {  // values [value_begin, value_end) of output rows [row_begin, row_end)
    int64_t row_begin;
    int64_t row_end;
    int64_t value_begin;
    int64_t value_end;
  };

  void FeatureRange(int32_t index, int64_t begin, int64_t end);
  void SortedRange(int32_t index, int64_t begin, int64_t end);
  void RaggedRange(int32_t index, int64_t row_begin, int64_t row_end);
  void DenseRange(int32_t index, int64_t row_begin, int64_t row_end);
  void CopyColumns(int32_t index, int64_t row_begin, int64_t row_end);
  // False: irregular.
  bool Block(int32_t index, const Part& part);
  bool StreamBlock(int32_t index, const Part& part);
  bool FastBlock(int32_t index, const Part& part);
  // Whether the ids can be read where they lie.
  static bool RawIds(const Feature& feature, const BoundFeature& bound) {
    if (bound.renumber) return false;
    if (bound.ready_ids != nullptr) return true;
    return feature.step_count == 0 && !bound.ids.is_string &&
           (bound.ids.dtype == DType::kInt64 || bound.ids.dtype == DType::kInt32);
  }
  // Row numbers of values [begin, end), into s_.ids; false: irregular. Not for RawIds.
  bool ReadNumbers(const Feature& feature, const BoundFeature& bound, int64_t begin, int64_t end, const RowHint* hint);
  // Where they lie, and whether they are int64; only for RawIds.
  static const void* IdsOf(const BoundFeature& bound, bool* wide) {
    *wide = bound.ready_ids != nullptr || bound.ids.dtype == DType::kInt64;
    return bound.ready_ids != nullptr ? bound.ready_ids : bound.ids.data;
  }
  // Values of one block: all that there are where nothing has to be kept per value.
  static int64_t BlockValues(const Feature& feature, const BoundFeature& bound);
  void PrefetchStart(size_t next) const;
  template <typename Id>
  bool FastList(const Feature& feature, const BoundFeature& bound, const Part& part, const Id* ids);
  Status GeneralBlock(int32_t index, const Part& part, bool careful, bool* regular);
  Status ReadEntries(const Feature& feature, const BoundFeature& bound, const Part& part);
  Status CheckRows(const Feature& feature, const BoundFeature& bound, const Part& part, bool careful, bool* regular);
  void NumberEntries(const Feature& feature, const BoundFeature& bound);
  template <typename A>
  void EmitEntries(const Feature& feature, const BoundFeature& bound, const Part& part);
  bool FillEmptyRows(const Feature& feature, const BoundFeature& bound, int64_t rows);
  Status IdError(const Feature& feature, const BoundFeature& bound, int64_t id, int64_t row) const;
  Status Fail(const Feature& feature, const BoundFeature& bound, const std::string& what) const;
  void Append(int32_t index, const Part& part);
  void Flush();
  void Reduce(ListedBlock* block, RowsAhead* ahead);

  const FusedLookup& plan_;
  Call* const call_;
  Scratch& s_;
  ListedBlock* listing_ = nullptr;  // takes the block at hand; the other one holds the block before
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_RUNNER_H_
