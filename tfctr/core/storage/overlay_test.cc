// Deltas and overlays: a random chain of deltas over a base equals a map that went through the same changes, for static
// tables and hash files of every storage; what must be refused; every bit of a file that matters, flipped.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tfctr/core/storage/delta_file.h"
#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

using Random = std::mt19937_64;
using Rows = std::map<int64_t, std::string>;  // key -> stored bytes of its row

std::string RowBytes(Random* random, const RowShape& shape) {
  const int64_t stored = shape.hashed ? StoredRowBytes(shape.dtype, shape.width) : shape.row_bytes;
  std::string row(static_cast<size_t>(stored), '\0');
  for (char& c : row) c = static_cast<char>((*random)());
  return row;
}

int64_t AnyKey(Random* random) {
  switch ((*random)() % 8) {
    case 0:
      return std::numeric_limits<int64_t>::min() + static_cast<int64_t>((*random)() % 4);
    case 1:
      return std::numeric_limits<int64_t>::max() - static_cast<int64_t>((*random)() % 4);
    default:
      return static_cast<int64_t>((*random)() % 600) - 300;
  }
}

// A base file and what it holds.
struct Base {
  std::shared_ptr<const TableFile> table;
  std::shared_ptr<const HashFile> hash;
  std::string default_row;
  Rows rows;

  TableBase base() const { return hash ? BaseOf(*hash) : BaseOf(*table); }
  std::shared_ptr<const ServedTable> Serve(std::shared_ptr<const OverlayFile> overlay,
                                           TableMemory memory = TableMemory::kMapped) const {
    auto served = hash ? ServedTable::Make(hash, std::move(overlay), memory)
                       : ServedTable::Make(table, std::move(overlay), memory);
    CHECK_OK(served.status());
    return served.Take();
  }
};

Base MakeHash(const std::string& path, DType storage, int64_t dim, int64_t keys, Random* random) {
  Base base;
  RowShape shape = MakeRowShape(true, storage, dim).Take();
  std::vector<int64_t> order;
  while (static_cast<int64_t>(base.rows.size()) < keys) {
    const int64_t key = AnyKey(random);
    if (base.rows.emplace(key, RowBytes(random, shape)).second) order.push_back(key);
  }
  base.default_row = RowBytes(random, shape);
  HashFileSpec spec;
  spec.name = "emb/user";
  spec.dim = dim;
  spec.storage = storage;
  CHECK_OK(WriteHashFile(path, spec, order, base.default_row.data(), [&](int64_t first, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; ++i) {
      const std::string& row = base.rows.at(order[static_cast<size_t>(first + i)]);
      std::memcpy(out + static_cast<size_t>(i) * row.size(), row.data(), row.size());
    }
    return Status::Ok();
  }));
  base.hash = HashFile::Open(path).Take();
  return base;
}

Base MakeStatic(const std::string& path, DType dtype, int64_t width, int64_t rows, Random* random) {
  Base base;
  const RowShape shape = MakeRowShape(false, dtype, width).Take();
  auto writer = TableWriter::Create(path, "emb/item", dtype, {rows, width});
  CHECK_OK(writer.status());
  for (int64_t i = 0; i < rows; ++i) {
    const std::string row = RowBytes(random, shape);
    base.rows[i] = row;
    CHECK_OK(writer.value()->Append(row.data(), row.size()));
  }
  CHECK_OK(writer.value()->Finish());
  base.table = TableFile::Open(path).Take();
  return base;
}

// Writes a random delta of `base` and makes the same changes to *rows.
std::shared_ptr<const DeltaFile> MakeDelta(const std::string& path, const TableBase& base, Random* random, Rows* rows) {
  auto writer = DeltaFileWriter::Create(path, base.name, base.shape, base.rows);
  CHECK_OK(writer.status());
  std::set<int64_t> touched;
  const int64_t changes = static_cast<int64_t>((*random)() % 40);
  for (int64_t i = 0; i < changes; ++i) {
    if (!base.shape.hashed && base.rows == 0) break;
    const int64_t key =
        base.shape.hashed ? AnyKey(random) : static_cast<int64_t>((*random)() % static_cast<uint64_t>(base.rows));
    if (!touched.insert(key).second) continue;
    if (base.shape.hashed && (*random)() % 3 == 0) {
      CHECK_OK(writer.value()->Remove(&key, 1));  // known or not, perhaps removed before
      rows->erase(key);
      continue;
    }
    const std::string row = RowBytes(random, base.shape);
    CHECK_OK(writer.value()->Add(&key, 1, row.data(), static_cast<int64_t>(row.size())));
    (*rows)[key] = row;
  }
  CHECK_OK(writer.value()->Finish());
  auto delta = DeltaFile::Open(path);
  CHECK_OK(delta.status());
  CHECK_OK(delta.value()->VerifyKeys());
  CHECK_OK(delta.value()->VerifyChecksums());
  return delta.Take();
}

void CheckEqual(const Base& base, const ServedTable& served, const Rows& rows) {
  std::set<int64_t> asked;
  for (const auto& [key, row] : rows) asked.insert(key);
  for (const auto& [key, row] : base.rows) asked.insert(key);
  if (served.hashed()) {
    for (int64_t key = -310; key < 310; ++key) asked.insert(key);
  }
  const std::vector<int64_t> keys(asked.begin(), asked.end());
  std::vector<int64_t> numbers(keys.size());
  served.Find(keys.data(), keys.size(), numbers.data());
  std::vector<int64_t> in_place = keys;
  served.Find(in_place.data(), in_place.size(), in_place.data());
  CHECK(numbers == in_place);
  CHECK_EQ(served.size(), static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(numbers[i] >= 0 && numbers[i] < served.rows());
    const auto found = rows.find(keys[i]);
    if (found == rows.end()) CHECK_EQ(numbers[i], served.base_rows() - 1);
    const std::string& expected = found == rows.end() ? base.default_row : found->second;
    CHECK(std::memcmp(served.data() + numbers[i] * served.row_bytes(), expected.data(), expected.size()) == 0);
  }
  if (served.hashed()) {
    CHECK_FAILS(served.Dense().status(), Code::kInvalid, "no dense form");
    return;
  }
  const int64_t outside[] = {-1, served.base_rows(), std::numeric_limits<int64_t>::min()};
  int64_t unchanged[3];
  served.Find(outside, 3, unchanged);
  CHECK(std::memcmp(outside, unchanged, sizeof(outside)) == 0);
  const Result<const uint8_t*> dense = served.Dense();
  CHECK_OK(dense.status());
  for (const auto& [id, row] : rows) {
    CHECK(std::memcmp(dense.value() + id * served.row_bytes(), row.data(), row.size()) == 0);
  }
}

void CheckChain(const Base& base, const TempDir& dir, Random* random) {
  Rows rows = base.rows;
  CheckEqual(base, *base.Serve(nullptr), rows);
  std::shared_ptr<const OverlayFile> overlay;
  for (int step = 0; step < 5; ++step) {
    std::vector<std::shared_ptr<const DeltaFile>> files;
    std::vector<const DeltaFile*> deltas;
    for (uint64_t k = 0; k < 1 + (*random)() % 3; ++k) {
      files.push_back(MakeDelta(dir.File("delta"), base.base(), random, &rows));
      deltas.push_back(files.back().get());
    }
    const std::string path = dir.File("overlay");
    OverlayStats stats;
    CHECK_OK(BuildOverlay(path, base.base(), overlay.get(), deltas, {{"step", "7"}}, &stats));
    auto opened = OverlayFile::Open(path);
    CHECK_OK(opened.status());
    CHECK_OK(opened.value()->VerifyIndex());
    CHECK_OK(opened.value()->VerifyChecksums());
    CHECK_EQ(stats.rows, opened.value()->rows());
    CHECK_EQ(stats.removed, opened.value()->removed());
    auto memory = BuildOverlayInMemory(base.base(), overlay.get(), deltas, {{"step", "7"}}, nullptr);
    CHECK_OK(memory.status());
    auto anonymous = OverlayFile::Open("/proc/self/fd/" + std::to_string(memory.value().get()));
    CHECK_OK(anonymous.status());
    CHECK_EQ(anonymous.value()->fingerprint(), opened.value()->fingerprint());  // equal input, equal file
    overlay = opened.Take();
    CheckEqual(base, *base.Serve(overlay), rows);
    CheckEqual(base, *base.Serve(anonymous.Take()), rows);
    CheckEqual(base, *base.Serve(overlay, TableMemory::kHugePages), rows);
  }
}

void Chains() {
  Random random(1);
  const std::pair<DType, int64_t> hashed[] = {{DType::kFloat32, 16}, {DType::kFloat32, 17},  {DType::kFloat32, 1},
                                              {DType::kFloat16, 9},  {DType::kBFloat16, 64}, {DType::kInt8, 16}};
  for (const auto& [storage, dim] : hashed) {
    for (const int64_t keys : {0, 1, 7, 300}) {
      TempDir dir;
      CheckChain(MakeHash(dir.File("base"), storage, dim, keys, &random), dir, &random);
    }
  }
  const std::pair<DType, int64_t> fixed[] = {{DType::kFloat32, 16}, {DType::kFloat32, 17}, {DType::kUInt8, 21},
                                             {DType::kInt64, 1},    {DType::kBFloat16, 3}, {DType::kFloat32, 1025}};
  for (const auto& [dtype, width] : fixed) {
    for (const int64_t rows : {0, 1, 500}) {
      TempDir dir;
      CheckChain(MakeStatic(dir.File("base"), dtype, width, rows, &random), dir, &random);
    }
  }
}

// A hash table with 3 keys, for what is done by hand.
struct Small {
  TempDir dir;
  Random random{2};
  RowShape shape = MakeRowShape(true, DType::kFloat32, 4).Take();
  Base base = MakeHash(dir.File("base"), DType::kFloat32, 4, 3, &random);
  int64_t first() const { return base.rows.begin()->first; }

  std::shared_ptr<const DeltaFile> Delta(const std::vector<int64_t>& added, const std::vector<int64_t>& removed,
                                         const std::string& name = "emb/user") {
    auto writer = DeltaFileWriter::Create(dir.File("d"), name, shape, 0);
    CHECK_OK(writer.status());
    for (const int64_t key : added) CHECK_OK(writer.value()->Add(&key, 1, RowBytes(&random, shape).data(), 16));
    CHECK_OK(writer.value()->Remove(removed.data(), static_cast<int64_t>(removed.size())));
    CHECK_OK(writer.value()->Finish());
    return DeltaFile::Open(dir.File("d")).Take();
  }
  Status Build(const std::vector<const DeltaFile*>& deltas, OverlayStats* stats = nullptr,
               const OverlayFile* previous = nullptr) {
    return BuildOverlay(dir.File("o"), base.base(), previous, deltas, {}, stats);
  }
};

void RemovedAndAddedAgain() {
  Small small;
  const int64_t known = small.first();
  const auto removed = small.Delta({}, {known});
  const auto unknown = small.Delta({}, {424242});
  const auto again = small.Delta({known}, {});
  const auto fresh = small.Delta({424242}, {});
  OverlayStats stats;
  CHECK_OK(small.Build({removed.get(), removed.get()}, &stats));  // removed twice
  CHECK_EQ(stats.removed, 1);
  CHECK_EQ(stats.rows, 0);
  CHECK_OK(small.Build({unknown.get()}, &stats));  // leaves no trace
  CHECK_EQ(stats.removed, 0);
  CHECK_OK(small.Build({removed.get(), again.get()}, &stats));
  CHECK_EQ(stats.removed, 0);
  CHECK_EQ(stats.rows, 1);
  CHECK_EQ(stats.added, 0);
  CHECK_OK(small.Build({fresh.get(), unknown.get()}, &stats));
  CHECK_EQ(stats.rows + stats.removed, 0);
  CHECK_OK(small.Build({fresh.get()}, &stats));
  CHECK_EQ(stats.added, 1);
  CHECK_OK(small.Build({}, &stats));
  CHECK_EQ(small.base.Serve(OverlayFile::Open(small.dir.File("o")).Take())->size(), 3);
}

// A version whose overlay has removed keys only goes while the next one's rows are read: they must stay mapped.
void AnEmptySlabGoes() {
  Small small;
  const int64_t known = small.first();
  const auto removed = small.Delta({}, {known});
  CHECK_OK(small.Build({removed.get()}));
  auto empty = small.base.Serve(OverlayFile::Open(small.dir.File("o")).Take());
  const auto fresh = small.Delta({424242}, {});
  CHECK_OK(small.Build({removed.get(), fresh.get()}));
  const auto file = OverlayFile::Open(small.dir.File("o")).Take();
  const auto served = small.base.Serve(file);
  empty.reset();
  const int64_t key = 424242;
  int64_t number = 0;
  served->Find(&key, 1, &number);
  CHECK(std::memcmp(served->data() + number * served->row_bytes(), file->row(0), 16) == 0);
}

void Refusals() {
  Small small;
  const int64_t keys[] = {5, 6, 5};
  const std::string rows(48, 'x');
  const auto writer = [&small](const char* name = "t") {
    return DeltaFileWriter::Create(small.dir.File(name), "emb/user", small.shape, 0).Take();
  };
  {
    auto twice = writer();
    CHECK_OK(twice->Add(keys, 3, rows.data()));
    CHECK_FAILS(twice->Finish(), Code::kInvalid, "delta of table 'emb/user': key 5 is given twice");
    auto both = writer();
    CHECK_OK(both->Add(keys, 2, rows.data()));
    CHECK_OK(both->Remove(keys + 1, 1));
    CHECK_FAILS(both->Finish(), Code::kInvalid, "key 6 is both added and removed");
    auto removed = writer();
    CHECK_OK(removed->Remove(keys, 3));
    CHECK_FAILS(removed->Finish(), Code::kInvalid, "key 5 is removed twice");
    CHECK_FAILS(writer()->Add(keys, 1, rows.data(), 15), Code::kInvalid, "rows of 15 bytes, expected 16");
  }
  {
    const RowShape shape = MakeRowShape(false, DType::kFloat32, 4).Take();
    auto fixed = DeltaFileWriter::Create(small.dir.File("t"), "emb", shape, 6).Take();
    CHECK_FAILS(fixed->Remove(keys, 1), Code::kInvalid, "static table can't be removed (row 5)");
    CHECK_OK(fixed->Add(keys, 2, rows.data()));
    CHECK_FAILS(fixed->Finish(), Code::kInvalid, "row 6 is not in [0, 6)");
  }
  CHECK_EQ(small.dir.Entries(), 1u);  // nothing half-written
  const auto other_name = small.Delta({1}, {}, "emb/item");
  CHECK_FAILS(small.Build({other_name.get()}), Code::kInvalid, "is of table 'emb/item', not of 'emb/user'");
  const Base wide = MakeHash(small.dir.File("wide"), DType::kFloat32, 8, 3, &small.random);
  const auto narrow = small.Delta({1}, {});
  CHECK_FAILS(BuildOverlay(small.dir.File("o"), wide.base(), nullptr, {narrow.get()}, {}, nullptr), Code::kInvalid,
              "has rows of float32 x 4, by key, the table has rows of float32 x 8, by key");
  CHECK_OK(small.Build({narrow.get()}));
  const auto overlay = OverlayFile::Open(small.dir.File("o")).Take();
  const Base twin = MakeHash(small.dir.File("twin"), DType::kFloat32, 4, 3, &small.random);
  CHECK_FAILS(ServedTable::Make(twin.hash, overlay).status(), Code::kInvalid, "lies over the file");
  CHECK_FAILS(BuildOverlay(small.dir.File("p"), twin.base(), overlay.get(), {}, {}, nullptr), Code::kInvalid,
              "lies over the file");
  CHECK_FAILS(OverlayFile::Open(small.dir.File("d")).status(), Code::kInvalid, "expected");
  CHECK_FAILS(DeltaFile::Open(small.dir.File("o")).status(), Code::kInvalid, "expected");
  CHECK_FAILS(OverlayFile::Open(small.dir.File("none")).status(), Code::kNotFound, "none");
}

// Every byte of a small delta and overlay flipped, one at a time: found when the file is opened or verified, and no
// search in a file that opens leaves it (the sanitizers see to that).
void BitFlips() {
  Small small;
  const auto delta = small.Delta({1, 2, 3, small.first()}, {4, std::next(small.base.rows.begin())->first});
  CHECK_OK(small.Build({delta.get()}));
  const std::vector<int64_t> asked = {1, 2, 3, 4, 5, small.first(), -77};
  for (const char* name : {"d", "o"}) {
    const std::string whole = ReadWhole(small.dir.File(name));
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      const std::string path = small.dir.File("flipped");
      WriteWhole(path, bytes);
      bool found = false;
      if (name[0] == 'd') {
        auto opened = DeltaFile::Open(path);
        found = !opened.ok() || !opened.value()->VerifyChecksums().ok();
        if (opened.ok()) (void)small.Build({opened.value().get()}).ok();
      } else {
        auto opened = OverlayFile::Open(path);
        found = !opened.ok() || !opened.value()->VerifyChecksums().ok();
        if (opened.ok()) {
          (void)opened.value()->VerifyIndex().ok();
          const auto served = small.base.Serve(opened.Take());
          std::vector<int64_t> numbers(asked.size());
          served->Find(asked.data(), asked.size(), numbers.data());
          for (const int64_t number : numbers) CHECK(number >= 0 && number < std::max(served->rows(), int64_t{4}));
        }
      }
      const bool padding = at >= delta->bytes() && at < kPageBytes;  // zeros behind the payload belong to no checksum
      CHECK(found || padding || (name[0] == 'o' && at < kPageBytes));
    }
    for (const size_t length : {size_t{0}, size_t{63}, size_t{4096}, whole.size() - 1}) {
      WriteWhole(small.dir.File("short"), whole.substr(0, length));
      CHECK(!DeltaFile::Open(small.dir.File("short")).ok());
      CHECK(!OverlayFile::Open(small.dir.File("short")).ok());
    }
  }
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Chains();
  tfctr::RemovedAndAddedAgain();
  tfctr::AnEmptySlabGoes();
  tfctr::Refusals();
  tfctr::BitFlips();
  return 0;
}
