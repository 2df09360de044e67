#include "tfctr/core/lookup/table_diff.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/storage/checkpoint_column.h"
#include "tfctr/core/storage/crc32c.h"
#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int64_t kDim = 5;
using Row = std::vector<float>;
using State = std::map<int64_t, Row>;

// Rows in the order given, as a checkpoint may have them.
class MemoryRows : public RowSource {
 public:
  explicit MemoryRows(std::vector<std::pair<int64_t, Row>> rows, std::vector<int64_t> steps = {})
      : rows_(std::move(rows)), steps_(std::move(steps)) {}
  int64_t rows() const override { return static_cast<int64_t>(rows_.size()); }
  uint64_t row_bytes() const override { return kDim * sizeof(float); }
  bool has_last_step() const override { return !steps_.empty(); }
  Status Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) override {
    for (int64_t i = 0; i < n; ++i, ++next_) {
      keys[i] = rows_[next_].first;
      std::memcpy(rows + i * kDim * sizeof(float), rows_[next_].second.data(), kDim * sizeof(float));
      if (!steps_.empty()) last_step[i] = steps_[next_];
    }
    return Status::Ok();
  }

 private:
  const std::vector<std::pair<int64_t, Row>> rows_;
  const std::vector<int64_t> steps_;
  size_t next_ = 0;
};

std::vector<std::pair<int64_t, Row>> Listed(const State& state) { return {state.begin(), state.end()}; }

std::shared_ptr<const HashFile> WriteBase(const TempDir& dir, const State& state) {
  std::vector<int64_t> keys;
  std::vector<float> rows;
  for (const auto& [key, row] : state) {
    keys.push_back(key);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  HashFileSpec spec;
  spec.name = "users";
  spec.dim = kDim;
  const Row zeros(kDim, 0.0f);
  CHECK_OK(WriteHashFile(dir.File("base.hash"), spec, keys, zeros.data(), [&](int64_t first, int64_t n, uint8_t* out) {
    std::memcpy(out, rows.data() + first * kDim, static_cast<size_t>(n * kDim) * sizeof(float));
    return Status::Ok();
  }));
  Result<std::shared_ptr<const HashFile>> opened = HashFile::Open(dir.File("base.hash"));
  CHECK_OK(opened.status());
  return opened.Take();
}

Status Diff(const std::shared_ptr<const ServedTable>& base, RowSource* source, const std::string& out,
            DiffCounts* counts, DiffOptions options = {}) {
  options.width = kDim;
  Result<std::unique_ptr<DeltaFileWriter>> writer =
      DeltaFileWriter::Create(out, base->name(), base->shape(), base->hashed() ? 0 : base->base_rows());
  TFCTR_RETURN_IF_ERROR(writer.status());
  Result<std::unique_ptr<TableDiff>> diff = TableDiff::Make(base, options, writer.value().get());
  TFCTR_RETURN_IF_ERROR(diff.status());
  TFCTR_RETURN_IF_ERROR(diff.value()->Compare(source, nullptr));
  TFCTR_RETURN_IF_ERROR(diff.value()->Finish());
  *counts = diff.value()->counts();
  return writer.value()->Finish();
}

// A chain of random states: after each delta the served table has exactly the newest state's rows.
void TestChain() {
  const TempDir dir;
  std::mt19937_64 random(7);
  State state;
  for (int64_t key = 0; key < 3000; ++key) state[key * 7919 - 100] = Row(kDim, static_cast<float>(key));
  const auto hash = WriteBase(dir, state);
  std::shared_ptr<const OverlayFile> overlay;
  for (int step = 0; step < 4; ++step) {
    Result<std::shared_ptr<const ServedTable>> served = ServedTable::Make(hash, overlay);
    CHECK_OK(served.status());
    for (int k = 0; k < 200; ++k) {
      const int64_t key = static_cast<int64_t>(random() % 4000) * 7919 - 100;
      if (random() % 3 == 0) {
        state.erase(key);
      } else {
        state[key] = Row(kDim, static_cast<float>(random() % 100));
      }
    }
    auto rows = Listed(state);
    std::shuffle(rows.begin(), rows.end(), random);
    MemoryRows source(rows);
    DiffCounts counts;
    const std::string number = std::to_string(step);
    CHECK_OK(Diff(served.value(), &source, dir.File(number + ".delta"), &counts));
    CHECK_EQ(counts.rows, static_cast<int64_t>(state.size()));
    CHECK_EQ(counts.base_rows + counts.added - counts.removed, counts.rows);
    Result<std::shared_ptr<const DeltaFile>> delta = DeltaFile::Open(dir.File(number + ".delta"));
    CHECK_OK(delta.status());
    CHECK_EQ(delta.value()->rows(), counts.added + counts.changed);
    OverlayStats stats;
    CHECK_OK(
        BuildOverlay(dir.File(number + ".overlay"), BaseOf(*hash), overlay.get(), {delta.value().get()}, {}, &stats));
    Result<std::shared_ptr<const OverlayFile>> merged = OverlayFile::Open(dir.File(number + ".overlay"));
    CHECK_OK(merged.status());
    overlay = merged.Take();
    Result<std::shared_ptr<const ServedTable>> after = ServedTable::Make(hash, overlay);
    CHECK_OK(after.status());
    CHECK_EQ(after.value()->size(), static_cast<int64_t>(state.size()));
    for (const auto& [key, row] : state) {
      int64_t found = 0;
      after.value()->Find(&key, 1, &found);
      CHECK_EQ(
          std::memcmp(after.value()->data() + found * after.value()->row_bytes(), row.data(), kDim * sizeof(float)), 0);
    }
  }
}

void TestSteps() {
  const TempDir dir;
  State state;
  std::vector<int64_t> steps;
  for (int64_t key = 0; key < 300; ++key) {
    state[key] = Row(kDim, static_cast<float>(key));
    steps.push_back(key < 200 ? 5 : 50);
  }
  Result<std::shared_ptr<const ServedTable>> served = ServedTable::Make(WriteBase(dir, state));
  CHECK_OK(served.status());
  state[250] = Row(kDim, -1.0f);
  DiffOptions options;
  options.with_steps = options.trust = true;
  options.base_step = 50;
  DiffCounts counts;
  MemoryRows rows(Listed(state), steps);
  CHECK_OK(Diff(served.value(), &rows, dir.File("a.delta"), &counts, options));
  CHECK_EQ(counts.trusted, 200);
  CHECK_EQ(counts.changed, 1);
  state[0] = Row(kDim, -1.0f);  // the first of a sample
  MemoryRows others(Listed(state), steps);
  CHECK_FAILS(Diff(served.value(), &others, dir.File("b.delta"), &counts, options), Code::kInvalid,
              "the last steps can't be trusted");
}

void TestBadRows() {
  const TempDir dir;
  State state;
  for (int64_t key = 0; key < 50; ++key) state[key] = Row(kDim, static_cast<float>(key));
  Result<std::shared_ptr<const ServedTable>> served = ServedTable::Make(WriteBase(dir, state));
  CHECK_OK(served.status());
  DiffCounts counts;
  auto rows = Listed(state);
  rows.push_back(rows[3]);
  MemoryRows known(rows);
  CHECK_FAILS(Diff(served.value(), &known, dir.File("a"), &counts), Code::kCorrupt, "key 3 twice");
  rows = Listed(state);
  rows.push_back({100, Row(kDim, 1.0f)});
  rows.push_back({100, Row(kDim, 2.0f)});
  MemoryRows added(rows);
  CHECK_FAILS(Diff(served.value(), &added, dir.File("a"), &counts), Code::kInvalid, "key 100 is given twice");

  Result<std::unique_ptr<TableWriter>> writer =
      TableWriter::Create(dir.File("t.table"), "items", DType::kFloat32, {4, kDim});
  CHECK_OK(writer.status());
  const std::vector<float> zeros(4 * kDim, 0.0f);
  CHECK_OK(writer.value()->Append(zeros.data(), zeros.size() * sizeof(float)));
  CHECK_OK(writer.value()->Finish());
  Result<std::shared_ptr<const TableFile>> table = TableFile::Open(dir.File("t.table"));
  CHECK_OK(table.status());
  Result<std::shared_ptr<const ServedTable>> items = ServedTable::Make(table.value());
  CHECK_OK(items.status());
  MemoryRows outside({{0, Row(kDim)}, {1, Row(kDim)}, {2, Row(kDim)}, {4, Row(kDim)}});
  CHECK_FAILS(Diff(items.value(), &outside, dir.File("a"), &counts), Code::kCorrupt, "row 4 of the new rows");
  MemoryRows few({{0, Row(kDim)}, {1, Row(kDim)}});
  CHECK_FAILS(Diff(items.value(), &few, dir.File("a"), &counts), Code::kCorrupt, "has 2 of its 4 rows");
}

// Slices of any sizes give the rows one after the other; a wrong checksum is found at the end of its slice.
void TestColumn() {
  const TempDir dir;
  std::vector<int64_t> numbers(1000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i * i);
  const std::string path = dir.File("shard");
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(numbers.data()), static_cast<std::streamsize>(numbers.size() * 8));
  std::vector<CheckpointExtent> extents;
  for (const auto& [first, count] : std::vector<std::pair<size_t, size_t>>{{0, 0}, {0, 10}, {10, 489}, {499, 501}}) {
    extents.push_back({"keys", path, first * 8, count * 8, MaskCrc32c(Crc32c(numbers.data() + first, count * 8))});
  }
  Result<CheckpointColumn> column = CheckpointColumn::Open(extents, 8);
  CHECK_OK(column.status());
  CHECK_EQ(column.value().rows(), 1000);
  std::vector<int64_t> read(1000);
  for (int64_t at = 0, n = 1; at < 1000; at += n, n = std::min<int64_t>(n + 7, 1000 - at)) {
    CHECK_OK(column.value().Read(n, read.data() + at));
  }
  CHECK(read == numbers);
  CHECK_FAILS(column.value().Read(1, read.data()), Code::kInvalid, "no more rows");
  extents[2].masked_crc32c ^= 1;
  Result<CheckpointColumn> damaged = CheckpointColumn::Open(extents, 8);
  CHECK_OK(damaged.status());
  CHECK_OK(damaged.value().Read(100, read.data()));
  CHECK_FAILS(damaged.value().Read(900, read.data()), Code::kCorrupt, "checksum does not match");
  CHECK_FAILS(CheckpointColumn::Open(extents, 24).status(), Code::kInvalid, "not whole rows");
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestChain();
  tfctr::TestSteps();
  tfctr::TestBadRows();
  tfctr::TestColumn();
  return 0;
}
