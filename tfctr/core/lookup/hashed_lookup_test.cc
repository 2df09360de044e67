// Fused lookups over hash files, and over files with an overlay, against the same lookups over a static table that
// holds the rows which they must find: the same bits and the same errors, for every form, format and instruction set.
#include <algorithm>
#include <string>
#include <vector>

#include "tfctr/core/lookup/test_cases.h"
#include "tfctr/core/storage/delta_file.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/overlay_file.h"

namespace tfctr {
namespace {

// Rows to pick from: 0 to 22 are the base's, the others come by overlay or stand for keys without a row.
constexpr int64_t kPool = 30;
constexpr int64_t kUnknown = 7;  // of the ids that cases have: no key of the hash file
constexpr int64_t kDefault = 29;
// Row id (a hash file: key) and row of the pool that an overlay has for it.
const std::vector<std::pair<int64_t, int64_t>> kChanged = {{1, 23}, {5, 24}, {22, 25}, {0, 26}};
const std::vector<std::pair<int64_t, int64_t>> kAdded = {{kRows, 27}, {kUnknown, 28}};
const std::vector<int64_t> kRemoved = {3, 11};

int64_t FileRowBytes(const TableFile& file) { return file.width() * static_cast<int64_t>(DTypeSize(file.dtype())); }

const uint8_t* FileRow(const TableFile& file, int64_t row) { return file.data() + row * FileRowBytes(file); }

// A table of these rows of another one.
std::shared_ptr<const TableFile> Rows(const std::string& path, const TableFile& from,
                                      const std::vector<int64_t>& rows) {
  auto writer = TableWriter::Create(path, "t", from.dtype(), {static_cast<int64_t>(rows.size()), from.width()});
  CHECK_OK(writer.status());
  for (const int64_t row : rows) CHECK_OK(writer.value()->Append(FileRow(from, row), FileRowBytes(from)));
  CHECK_OK(writer.value()->Finish());
  auto opened = TableFile::Open(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

std::vector<int64_t> FirstRows(int64_t n) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < n; ++row) rows.push_back(row);
  return rows;
}

std::shared_ptr<const HashFile> MakeHash(const std::string& path, const Stored& pool) {
  HashFileSpec spec;
  spec.name = "t";
  spec.dim = pool.values->width();
  if (pool.storage != DType::kInvalid) spec.storage = pool.storage;
  std::vector<int64_t> keys;
  for (int64_t key = kRows - 1; key >= 0; --key) {
    if (key != kUnknown) keys.push_back(key);
  }
  const std::vector<int64_t> rows = keys;
  const int64_t bytes = StoredRowBytes(spec.storage, spec.dim);
  CHECK_EQ(bytes, FileRowBytes(*pool.file));
  CHECK_OK(WriteHashFile(path, spec, keys, FileRow(*pool.file, kDefault), [&](int64_t first, int64_t n, uint8_t* to) {
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(to + i * bytes, FileRow(*pool.file, rows[first + i]), bytes);
    }
    return Status::Ok();
  }));
  auto opened = HashFile::Open(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

std::shared_ptr<const OverlayFile> MakeOverlay(const std::string& path, const TableBase& base, const Stored& pool) {
  auto writer = DeltaFileWriter::Create(path + ".delta", "t", base.shape, base.shape.hashed ? 0 : base.rows);
  CHECK_OK(writer.status());
  std::vector<std::pair<int64_t, int64_t>> rows = kChanged;
  if (base.shape.hashed) rows.insert(rows.end(), kAdded.begin(), kAdded.end());
  for (const auto& [key, row] : rows) {
    CHECK_OK(writer.value()->Add(&key, 1, FileRow(*pool.file, row), FileRowBytes(*pool.file)));
  }
  if (base.shape.hashed) CHECK_OK(writer.value()->Remove(kRemoved.data(), static_cast<int64_t>(kRemoved.size())));
  CHECK_OK(writer.value()->Finish());
  const auto delta = DeltaFile::Open(path + ".delta");
  CHECK_OK(delta.status());
  OverlayStats stats;
  CHECK_OK(BuildOverlay(path, base, nullptr, {delta.value().get()}, {}, &stats));
  auto opened = OverlayFile::Open(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

// What a lookup must give: a target, and the target of the same rows in a static table.
struct Pair {
  Target target;
  Target expected;
};

void AddHashed(const std::string& path, const Stored& pool, std::vector<Pair>* pairs) {
  const auto hash = MakeHash(path, pool);
  // Row kRows + 1 stands for all keys that have none.
  std::vector<int64_t> rows = FirstRows(kRows + 2);
  rows[kUnknown] = rows[kRows] = rows[kRows + 1] = kDefault;
  for (const bool overlaid : {false, true}) {
    std::shared_ptr<const OverlayFile> overlay;
    if (overlaid) {
      overlay = MakeOverlay(path + ".overlay", BaseOf(*hash), pool);
      for (const auto& [key, row] : kChanged) rows[key] = row;
      for (const auto& [key, row] : kAdded) rows[key] = row;
      for (const int64_t key : kRemoved) rows[key] = kDefault;
    }
    auto served = ServedTable::Make(hash, overlay);
    CHECK_OK(served.status());
    const auto values = Rows(path + (overlaid ? ".rows1" : ".rows0"), *pool.values, rows);
    const std::string missing = std::to_string(kRows + 1);
    pairs->push_back({{served.Take(), 0, hash->dim(), DType::kFloat32, pool.storage, "find"},
                      {Serve(values), values->rows(), values->width(), DType::kFloat32, DType::kInvalid,
                       "select_out_of_range:0;" + missing + ";" + missing}});
  }
}

void AddOverlaid(const std::string& path, const Stored& pool, std::vector<Pair>* pairs) {
  std::vector<int64_t> rows = FirstRows(kRows);
  const auto base = Rows(path, *pool.file, rows);
  for (const auto& [id, row] : kChanged) rows[id] = row;
  const auto values = Rows(path + ".values", *pool.values, rows);
  const auto served = Serve(base, MakeOverlay(path + ".overlay", BaseOf(*base), pool));
  pairs->push_back({{served, kRows, values->width(), values->dtype(), pool.storage, ""},
                    {Serve(values), kRows, values->width(), values->dtype(), DType::kInvalid, ""}});
}

// What is wrong, without the words that say where.
std::string What(const Status& status) {
  const size_t at = status.message.find("): ");
  return at == std::string::npos ? status.message : status.message.substr(at);
}

void TestAgainstStaticTables() {
  const TempDir folder;
  std::vector<Pair> pairs;
  for (const int64_t width : {1, 4, 5, 8, 16, 17, 33, 64}) {
    const auto wide = MakeTable(folder, DType::kFloat32, width, kPool);
    std::vector<Stored> pools = {{wide, DType::kInvalid, wide}};
    for (const DType storage : {DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
      pools.push_back(Narrow(folder, wide, storage));
    }
    for (const Stored& pool : pools) {
      AddHashed(pool.file->path() + ".hash", pool, &pairs);
      AddOverlaid(pool.file->path() + ".static", pool, &pairs);
    }
    const auto halves = MakeTable(folder, DType::kFloat16, width, kPool);
    AddOverlaid(halves->path() + ".static", {halves, DType::kInvalid, halves}, &pairs);
    const auto doubles = MakeTable(folder, DType::kFloat64, width, kPool);
    AddOverlaid(doubles->path() + ".static", {doubles, DType::kInvalid, doubles}, &pairs);
  }
  std::mt19937 random(11);
  int failed = 0;
  constexpr int kCases = 3000;
  for (int i = 0; i < kCases; ++i) {
    const Case c = MakeCase(random);
    const Pair& pair = pairs[random() % pairs.size()];
    Status expected_status;
    const std::vector<char> expected = Execute(c, pair.expected, Isa::kBaseline, {}, &expected_status);
    failed += !expected_status.ok();
    for (int isa = 0; isa <= static_cast<int>(DetectedIsa()); ++isa) {
      Status status;
      const std::vector<char> found = Execute(c, pair.target, static_cast<Isa>(isa), {20, 45, 50, 80}, &status);
      if (pair.target.table->hashed()) {
        CHECK_EQ(What(status), What(expected_status));
      } else {
        CHECK_EQ(status.message, expected_status.message);
      }
      if (status.ok()) CHECK(found == expected);
    }
  }
  CHECK(failed > kCases / 20 && failed < kCases / 2);
}

ValueType Int64() { return {DType::kInt64, false}; }

Status SpecStatus(const std::string& words, ValueType ids = Int64()) {
  return FusedLookup::Create(
             "tfctr-lookup 1\noutput 0 form=rows columns=4 dtype=float32\nlookup name=f table=0 "
             "table_width=4 table_dtype=float32 form=dense combiner=none output=0 column=0 ids=arg:0 " +
                 words + "\n",
             {}, {ids}, Isa::kBaseline)
      .status();
}

void TestSpecs() {
  CHECK_OK(SpecStatus("hashed=1 steps=find"));
  CHECK_OK(SpecStatus("hashed=1 steps=fingerprint|find", {DType::kInvalid, true}));
  CHECK_OK(SpecStatus("hashed=1 storage=int8 steps=as_string|fingerprint|add:1|find"));
  CHECK_FAILS(SpecStatus("hashed=1"), Code::kInvalid, "a hashed table needs find as the last step");
  CHECK_FAILS(SpecStatus("hashed=1 steps=find|add:1"), Code::kInvalid, "step find must be the last one");
  CHECK_FAILS(SpecStatus("table_rows=3 steps=find"), Code::kInvalid, "step find needs a hashed table");
  CHECK_FAILS(SpecStatus("hashed=1 steps=find:3"), Code::kInvalid, "takes 0 arguments");
  CHECK_FAILS(SpecStatus("hashed=1 steps=find", {DType::kInvalid, true}), Code::kInvalid, "cannot take string");
  CHECK_FAILS(SpecStatus("hashed=1 steps=fingerprint|find"), Code::kInvalid, "cannot take int64");
}

void TestFiles() {
  const TempDir folder;
  const auto wide = MakeTable(folder, DType::kFloat32, 4, kPool);
  const Stored pool = {wide, DType::kInvalid, wide};
  const auto hash = ServedTable::Make(MakeHash(folder.File("hash"), pool)).Take();
  const auto table = Serve(wide);
  const auto resolve = [&](const std::string& words, const std::shared_ptr<const ServedTable>& served, int width = 4) {
    const std::string columns = std::to_string(width);
    const auto plan = FusedLookup::Create(
        "tfctr-lookup 1\noutput 0 form=rows columns=" + columns +
            " dtype=float32\nlookup name=f table=0 table_dtype=float32 form=dense combiner=none output=0 column=0 "
            "ids=arg:0 table_width=" +
            columns + " " + words + "\n",
        {}, {Int64()}, Isa::kBaseline);
    CHECK_OK(plan.status());
    LookupTables tables;
    return plan.value()->ResolveTables({served.get()}, &tables);
  };
  CHECK_OK(resolve("hashed=1 steps=find", hash));
  CHECK_OK(resolve("table_rows=30", table));
  CHECK_FAILS(resolve("hashed=1 steps=find", table), Code::kInvalid, "30 rows of 4 float32, expected a hash file");
  CHECK_FAILS(resolve("hashed=1 steps=find", hash, 5), Code::kInvalid, "rows of 4 numbers stored as float32, expected");
  CHECK_FAILS(resolve("hashed=1 storage=int8 steps=find", hash), Code::kInvalid,
              "expected a hash file with rows of 4 "
              "numbers stored as int8");
  CHECK_FAILS(resolve("table_rows=22", hash), Code::kInvalid, "the hash file holds rows of 4 numbers");
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestSpecs();
  tfctr::TestFiles();
  tfctr::TestAgainstStaticTables();
  return 0;
}
