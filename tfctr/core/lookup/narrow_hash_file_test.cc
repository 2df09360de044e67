// Narrow hash files: every row as its narrower stores it, keys and metadata as before; what can't be stored is refused.
#include "tfctr/core/lookup/narrow_hash_file.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tfctr/core/lookup/row_narrowing.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int64_t kDim = 5;

std::vector<float> RowOf(int64_t key) {
  std::vector<float> row(kDim);
  for (int64_t c = 0; c < kDim; ++c) row[c] = std::sin(static_cast<float>(key % 1000) + static_cast<float>(c)) * 3.0f;
  return row;
}

void WriteWide(const std::string& path, const std::vector<int64_t>& keys, const std::vector<float>& default_row,
               int64_t bad_key = 0) {
  HashFileSpec spec;
  spec.name = "users";
  spec.dim = kDim;
  spec.extra = {{"step", "17"}, {"source", "model/users"}};
  const HashRowReader read = [&](int64_t first, int64_t n, uint8_t* rows) {
    for (int64_t i = 0; i < n; ++i) {
      std::vector<float> row = RowOf(keys[first + i]);
      if (bad_key != 0 && keys[first + i] == bad_key) row[2] = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(rows + i * kDim * sizeof(float), row.data(), kDim * sizeof(float));
    }
    return Status::Ok();
  };
  CHECK_OK(WriteHashFile(path, spec, keys, default_row.data(), read));
}

void RowsAreStoredAsTheirNarrowerSays() {
  const TempDir folder;
  const std::string wide = folder.File("wide.hash");
  std::vector<int64_t> keys = {std::numeric_limits<int64_t>::min(), -1, 0, std::numeric_limits<int64_t>::max()};
  for (int64_t key = 10; key < 3000; key += 7) keys.push_back(key);
  const std::vector<float> default_row = {0.25f, -1.0f, 0.0f, 3.5f, 100.0f};
  WriteWide(wide, keys, default_row);
  for (const DType storage : {DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
    const std::string narrow = folder.File(std::string("narrow.") + DTypeName(storage));
    uint64_t told = 0;
    Result<NarrowResult> result = NarrowHashFile(wide, storage, narrow, [&told](uint64_t bytes) {
      told += bytes;
      return true;
    });
    CHECK_OK(result.status());
    CHECK_EQ(told, keys.size() * static_cast<uint64_t>(StoredRowBytes(storage, kDim)));
    Result<std::shared_ptr<const HashFile>> opened = HashFile::Open(narrow);
    CHECK_OK(opened.status());
    const HashFile& file = *opened.value();
    CHECK_OK(file.VerifyChecksums());
    CHECK_OK(file.VerifyIndex());
    CHECK_EQ(file.name(), std::string("users"));
    CHECK_EQ(file.metadata().at("step"), std::string("17"));
    CHECK_EQ(file.metadata().at("source"), std::string("model/users"));
    CHECK(file.storage() == storage);
    CHECK_EQ(file.size(), static_cast<int64_t>(keys.size()));
    std::vector<int64_t> numbers(keys.size());
    file.index().Find(keys.data(), keys.size(), numbers.data());
    std::vector<uint8_t> stored(static_cast<size_t>(StoredRowBytes(storage, kDim)));
    double error = 0.0;
    for (size_t i = 0; i <= keys.size(); ++i) {
      const int64_t number = i < keys.size() ? numbers[i] : file.size();
      const std::vector<float> row = i < keys.size() ? RowOf(keys[i]) : default_row;
      CHECK_EQ(RowNarrowerOf(storage)(row.data(), kDim, stored.data(), &error), std::string());
      CHECK(std::memcmp(file.rows() + number * file.row_bytes(), stored.data(), stored.size()) == 0);
    }
    CHECK_EQ(result.value().max_abs_error, error);
  }
}

void SmallTables() {
  const TempDir folder;
  const std::string wide = folder.File("small.hash");
  for (const std::vector<int64_t>& keys : {std::vector<int64_t>{}, std::vector<int64_t>{-7}}) {
    WriteWide(wide, keys, std::vector<float>(kDim, 2.0f));
    CHECK_OK(NarrowHashFile(wide, DType::kInt8, folder.File("small.int8"), nullptr).status());
    Result<std::shared_ptr<const HashFile>> opened = HashFile::Open(folder.File("small.int8"));
    CHECK_OK(opened.status());
    CHECK_EQ(opened.value()->size(), static_cast<int64_t>(keys.size()));
  }
}

void WhatCannotBeStoredIsRefused() {
  const TempDir folder;
  const std::string wide = folder.File("bad.hash");
  const std::string out = folder.File("bad.out");
  WriteWide(wide, {1, 2, 3}, std::vector<float>(kDim, 0.0f), 2);
  CHECK_FAILS(NarrowHashFile(wide, DType::kInt8, out, nullptr).status(), Code::kInvalid,
              "table 'users': the row of key 2 ");
  CHECK(!std::filesystem::exists(out));
  WriteWide(wide, {1}, std::vector<float>(kDim, std::numeric_limits<float>::infinity()));
  CHECK_FAILS(NarrowHashFile(wide, DType::kInt8, out, nullptr).status(), Code::kInvalid, "the default row ");
  WriteWide(wide, {1}, std::vector<float>(kDim, 1.0f));
  CHECK_FAILS(NarrowHashFile(wide, DType::kFloat64, out, nullptr).status(), Code::kInvalid, "only float32 rows");
  CHECK_OK(NarrowHashFile(wide, DType::kFloat16, out, nullptr).status());
  CHECK_FAILS(NarrowHashFile(out, DType::kInt8, folder.File("twice"), nullptr).status(), Code::kInvalid,
              "not float16 as int8");
  CHECK_FAILS(NarrowHashFile(wide, DType::kInt8, folder.File("stopped"), [](uint64_t) { return false; }).status(),
              Code::kInvalid, "stopped");
  CHECK(!std::filesystem::exists(folder.File("stopped")));
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::RowsAreStoredAsTheirNarrowerSays();
  tfctr::SmallTables();
  tfctr::WhatCannotBeStoredIsRefused();
  return 0;
}
