// What changed in a table: the rows of a newer state, block after block, against a version of it that is served. New
// and other rows go into a delta in the form in which that table stores them, and so do the keys that the newer state
// does not have (a static table has all its row ids).
//
// Rows are compared by their stored bytes: -0 and 0 differ, a NaN equals itself. Rows of a newer state that were last
// updated before `trusted_before` may be taken for unchanged without looking (`Trust`), where their table keeps last
// steps; that holds only for a table that went on from the very state that is served, so a sample of those rows is
// compared all the same, and one that differs fails the diff (kInvalid, "last steps").
//
// Thread-safety: a diff belongs to one thread. Cost: one pass over the newer rows; for each key a search in the served
// table's index and a cache miss for its row, which a block overlaps; a bit per row of the served table. The delta's
// writer keeps the changed rows in memory.
#ifndef TFCTR_CORE_LOOKUP_TABLE_DIFF_H_
#define TFCTR_CORE_LOOKUP_TABLE_DIFF_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/delta_file.h"
#include "tfctr/core/storage/row_source.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct DiffCounts {
  int64_t rows = 0;       // of the newer state
  int64_t base_rows = 0;  // of the served table
  int64_t added = 0;
  int64_t changed = 0;
  int64_t removed = 0;
  int64_t trusted = 0;          // not compared: last updated before `trusted_before`
  int64_t old_steps = 0;        // changed rows whose last step is before the served table's all the same
  int64_t nonfinite = 0;        // added and changed rows that hold NaN or infinity (float32 only)
  int64_t first_nonfinite = 0;  // key of the first of them
};

struct DiffOptions {
  // What the newer rows are; the served table may store float32 rows as float16, bfloat16 or int8.
  DType dtype = DType::kFloat32;
  int64_t width = 0;
  // Steps are looked at from here on: rows with an older one are trusted, or counted in `old_steps`. Needs
  // has_last_step().
  bool with_steps = false;
  int64_t base_step = 0;
  bool trust = false;
};

class TFCTR_EXPORT TableDiff {
 public:
  // kInvalid where the served table can't hold such rows.
  static Result<std::unique_ptr<TableDiff>> Make(std::shared_ptr<const ServedTable> base, const DiffOptions& options,
                                                 DeltaFileWriter* writer);

  // All rows of `source`; a static table may come in several parts. `progress` gets bytes and returns false to stop.
  // kCorrupt names a key that comes twice, or a row id outside the table; kInvalid a row that can't be stored.
  Status Compare(RowSource* source, const std::function<bool(uint64_t)>& progress);
  // After all sources: the keys that are gone. kCorrupt where a static table did not get all its rows.
  Status Finish();
  const DiffCounts& counts() const { return counts_; }

 private:
  TableDiff(std::shared_ptr<const ServedTable> base, const DiffOptions& options, DeltaFileWriter* writer);
  Status Block(const RowSource& source, int64_t n);
  Status ToStored(int64_t i, const uint8_t* row, uint8_t* out);
  Status Mark(int64_t key, int64_t number, bool known);
  bool Trusted(int64_t i, bool has_steps);
  void CountFinite(int64_t key, const uint8_t* row);
  Status RemoveUnseen(int64_t first, int64_t last, const std::function<Status(int64_t, int64_t, int64_t*)>& keys_of);
  Status Named(Status status) const;

  const std::shared_ptr<const ServedTable> base_;
  const DiffOptions options_;
  DeltaFileWriter* const writer_;
  uint64_t in_bytes_ = 0;      // a row as it comes
  uint64_t stored_bytes_ = 0;  // a row as it is stored, without the stride's gap
  bool narrow_ = false;
  int64_t unknown_ = -1;  // number that a key gets which the served table lacks; -1: a static table
  std::vector<uint64_t> seen_;
  int64_t seen_count_ = 0;
  std::vector<int64_t> keys_, numbers_, steps_, out_keys_;
  std::vector<uint8_t> rows_, out_rows_;
  DiffCounts counts_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_TABLE_DIFF_H_
