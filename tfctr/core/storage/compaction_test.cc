// Compaction: the rows of base and overlay in one file, by key; a static table as well; what does not belong together.
#include "tfctr/core/storage/compaction.h"

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int64_t kDim = 3;
using Row = std::vector<float>;
using Rows = std::map<int64_t, Row>;

Row RowOf(std::mt19937_64& random) {
  Row row(kDim);
  for (float& value : row) value = static_cast<float>(random() % 1000);
  return row;
}

std::shared_ptr<const HashFile> WriteBase(const std::string& path, const Rows& rows, const Row& default_row) {
  std::vector<int64_t> keys;
  for (const auto& [key, row] : rows) keys.push_back(key);
  const std::vector<int64_t> order = keys;
  HashFileSpec spec{"emb", kDim, DType::kFloat32, {{"step", "7"}, {"source", "emb/table"}}, 0};
  CHECK_OK(WriteHashFile(path, spec, keys, default_row.data(), [&](int64_t first, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; ++i, out += kDim * 4) {
      std::memcpy(out, rows.at(order[static_cast<size_t>(first + i)]).data(), kDim * 4);
    }
    return Status::Ok();
  }));
  return HashFile::Open(path).Take();
}

std::shared_ptr<const DeltaFile> WriteDelta(const std::string& path, const RowShape& shape, int64_t table_rows,
                                            const Rows& added, const std::vector<int64_t>& removed) {
  auto writer = DeltaFileWriter::Create(path, "emb", shape, table_rows).Take();
  for (const auto& [key, row] : added) CHECK_OK(writer->Add(&key, 1, row.data(), kDim * 4));
  CHECK_OK(writer->Remove(removed.data(), static_cast<int64_t>(removed.size())));
  CHECK_OK(writer->Finish());
  return DeltaFile::Open(path).Take();
}

void CheckRows(const HashFile& file, const Rows& rows, const Row& default_row) {
  CHECK_OK(file.VerifyChecksums());
  CHECK_OK(file.VerifyIndex());
  CHECK_EQ(file.size(), static_cast<int64_t>(rows.size()));
  for (const auto& [key, row] : rows) {
    int64_t number = 0;
    file.index().Find(&key, 1, &number);
    CHECK(number != file.size());
    CHECK(std::memcmp(file.rows() + number * file.row_bytes(), row.data(), kDim * 4) == 0);
  }
  CHECK(std::memcmp(file.default_row(), default_row.data(), kDim * 4) == 0);
}

void Hashed(int64_t base_keys, int64_t changes, uint64_t seed) {
  TempDir dir;
  std::mt19937_64 random(seed);
  Rows rows;
  for (int64_t i = 0; i < base_keys; ++i) rows[static_cast<int64_t>(random())] = RowOf(random);
  const Row default_row = RowOf(random);
  const auto base = WriteBase(dir.File("base"), rows, default_row);
  std::vector<int64_t> keys;
  for (const auto& [key, row] : rows) keys.push_back(key);
  std::shared_ptr<const OverlayFile> overlay;
  for (int round = 0; round < 3; ++round) {
    Rows added;
    std::vector<int64_t> removed;
    for (int64_t i = 0; i < changes; ++i) {
      const bool known = !keys.empty() && random() % 2 == 0;
      const int64_t key = known ? keys[random() % keys.size()] : static_cast<int64_t>(random());
      added[key] = RowOf(random);
      keys.push_back(key);
    }
    for (int64_t i = 0; i < changes / 2 && !keys.empty(); ++i) {
      const int64_t key = keys[random() % keys.size()];
      if (added.count(key) == 0 && rows.count(key) == 1) {
        removed.push_back(key);
        rows.erase(key);
      }
    }
    for (const auto& [key, row] : added) rows[key] = row;
    const std::string name = dir.File("d" + std::to_string(round));
    const auto delta = WriteDelta(name, BaseOf(*base).shape, 0, added, removed);
    OverlayStats stats;
    const std::string path = dir.File("o" + std::to_string(round));
    CHECK_OK(BuildOverlay(path, BaseOf(*base), overlay.get(), {delta.get()}, {{"step", "9"}}, &stats));
    overlay = OverlayFile::Open(path).Take();
  }
  CHECK_OK(CompactHash(dir.File("out"), *base, *overlay));
  const auto out = HashFile::Open(dir.File("out")).Take();
  CheckRows(*out, rows, default_row);
  CHECK_EQ(out->metadata().at("step"), std::string("9"));
  CHECK_EQ(out->metadata().at("source"), std::string("emb/table"));
  // Another base, and a stop in the middle, which leaves nothing.
  const auto other = WriteBase(dir.File("other"), {{1, default_row}}, default_row);
  CHECK_FAILS(CompactHash(dir.File("x"), *other, *overlay), Code::kInvalid, "other");
  if (!rows.empty()) {
    const size_t before = dir.Entries();
    CHECK_FAILS(CompactHash(dir.File("x"), *base, *overlay, [](uint64_t, uint64_t) { return false; }), Code::kInvalid,
                "stopped");
    CHECK_EQ(dir.Entries(), before);
  }
}

void Static() {
  TempDir dir;
  std::mt19937_64 random(5);
  const int64_t n = 900000;  // more than one block
  std::vector<float> values(static_cast<size_t>(n * kDim));
  for (float& value : values) value = static_cast<float>(random() % 1000);
  auto writer = TableWriter::Create(dir.File("base"), "emb", DType::kFloat32, {n, kDim}).Take();
  CHECK_OK(writer->Append(values.data(), values.size() * 4));
  CHECK_OK(writer->Finish());
  const auto base = TableFile::Open(dir.File("base")).Take();
  Rows added;
  for (const int64_t id : {int64_t{0}, int64_t{1}, int64_t{699049}, int64_t{699050}, int64_t{699051}, n - 1}) {
    added[id] = RowOf(random);
    std::memcpy(&values[static_cast<size_t>(id * kDim)], added[id].data(), kDim * 4);
  }
  const auto delta = WriteDelta(dir.File("d"), BaseOf(*base).shape, n, added, {});
  OverlayStats stats;
  CHECK_OK(BuildOverlay(dir.File("o"), BaseOf(*base), nullptr, {delta.get()}, {}, &stats));
  const auto overlay = OverlayFile::Open(dir.File("o")).Take();
  CHECK_OK(CompactTable(dir.File("out"), *base, *overlay));
  const auto out = TableFile::Open(dir.File("out")).Take();
  CHECK_OK(out->VerifyChecksums());
  CHECK(out->shape() == base->shape());
  CHECK_EQ(out->bytes(), values.size() * 4);
  CHECK(std::memcmp(out->data(), values.data(), out->bytes()) == 0);
  const size_t before = dir.Entries();
  CHECK_FAILS(CompactTable(dir.File("x"), *base, *overlay, [](uint64_t, uint64_t) { return false; }), Code::kInvalid,
              "stopped");
  CHECK_EQ(dir.Entries(), before);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Hashed(0, 4, 1);
  tfctr::Hashed(1, 1, 2);
  tfctr::Hashed(10000, 500, 3);
  tfctr::Hashed(300, 900, 4);
  tfctr::Static();
  return 0;
}
