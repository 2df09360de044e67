// Runs the id steps of a lookup over a block of raw values: loads them, applies each step to the whole block in a tight
// loop, and drops values where a prune step says so.
//
// Thread-safety: IdBlock belongs to one thread; steps and views are read only. Cost: one pass per step over at most a
// few thousand values (they stay in L1); memory is reused from block to block.
#ifndef TFCTR_CORE_LOOKUP_ID_STEPS_H_
#define TFCTR_CORE_LOOKUP_ID_STEPS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "tfctr/core/lookup/row_prefetch.h"
#include "tfctr/core/lookup/spec.h"
#include "tfctr/core/lookup/tensor_view.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/vocab_file.h"

namespace tfctr {

// What the steps need from outside: the fast string hash (farmhash lives in TensorFlow's library) and the vocabularies.
struct StepContext {
  uint64_t (*fingerprint64)(std::string_view text) = nullptr;
  const VocabFile* const* vocabs = nullptr;  // by file index of the store; null entries are no vocabularies
  int64_t vocab_count = 0;
};

// The table that the ids will be looked up in: steps that take long per value (hash, vocabulary) fetch its rows as soon
// as they know them.
struct RowHint {
  RowHint(const uint8_t* from, int64_t bytes) : table(from), row_bytes(bytes), one_line(RowIsOneLine(bytes)) {}
  void Fetch(int64_t id) const {  // any id, in range or not
    const auto* row = reinterpret_cast<const uint8_t*>(reinterpret_cast<uint64_t>(table) +
                                                       static_cast<uint64_t>(id) * static_cast<uint64_t>(row_bytes));
    if (one_line) {
      __builtin_prefetch(row);
    } else {
      PrefetchRow(row, row_bytes);
    }
  }
  const uint8_t* table;
  int64_t row_bytes;
  bool one_line;
};

class IdBlock {
 public:
  // Loads values [begin, end) of `raw` and runs `steps` on them. `last_dim`: length of the last axis of `raw` (addcol).
  // `hint`: where the ids are row numbers of a table (may be null). Errors: a vocabulary that is not there, or addcol
  // over another number of columns.
  Status Run(const TensorView& raw, int64_t begin, int64_t end, const Step* steps, size_t step_count, int64_t last_dim,
             const StepContext& context, const RowHint* hint = nullptr);

  // Takes n ids that went through their steps already.
  void Take(const int64_t* ids, int64_t n);

  int64_t size() const { return size_; }
  // The ids, as 64-bit numbers; size() of them.
  int64_t* ids() { return ids_; }
  // Absolute index of the raw value behind the k-th id that is left.
  int64_t source(int64_t k) const { return pruned_ ? sources_[k] : begin_ + k; }
  bool pruned() const { return pruned_; }
  // Keeps the ids for which keep(k) holds, in order.
  template <typename Keep>
  void Filter(Keep keep);

 private:
  enum class Kind { kInteger, kFloat, kString, kText };  // kText: the ids, to be read as decimal text

  void Load();
  std::string_view TextAt(int64_t k, char* buffer) const;
  double FloatAt(int64_t k) const;
  void Cast(DType to);
  void Bucketize(const std::vector<float>& boundaries);
  void PruneEqual(const TextValue& value);
  const std::string_view* Texts();
  void RunHash(const Step& step, const StepContext& context, const RowHint* hint);
  template <typename GetText, typename Hash>  // buckets 0: the hash as it is
  void HashEach(GetText text, Hash hash, uint64_t buckets, const RowHint* hint);
  Status RunVocab(const Step& step, const StepContext& context, const RowHint* hint);
  Status RunStep(const Step& step, int64_t last_dim, const StepContext& context, const RowHint* hint);
  template <typename F>
  void Apply(F f);
  void Wrap();

  const TensorView* raw_ = nullptr;
  int64_t begin_ = 0;
  int64_t size_ = 0;
  Kind kind_ = Kind::kInteger;
  DType dtype_ = DType::kInvalid;  // of the integers
  bool pruned_ = false;
  int64_t* ids_ = nullptr;
  std::vector<int64_t> ids_storage_;
  std::vector<int64_t> sources_;
  std::vector<std::string_view> texts_;
};

template <typename Keep>
void IdBlock::Filter(Keep keep) {
  if (!pruned_) {
    if (static_cast<int64_t>(sources_.size()) < size_) sources_.resize(size_);
    for (int64_t k = 0; k < size_; ++k) sources_[k] = begin_ + k;
    pruned_ = true;
  }
  int64_t left = 0;
  for (int64_t k = 0; k < size_; ++k) {
    const bool kept = keep(k);
    ids_[left] = ids_[k];
    sources_[left] = sources_[k];
    left += kept;
  }
  size_ = left;
}

// Element `index` of a numeric view as a double (weights), or whether it equals `value` (masks). Any numeric dtype.
double NumberAt(const TensorView& view, int64_t index);
bool EqualsAt(const TensorView& view, int64_t index, const TextValue& value);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_ID_STEPS_H_
