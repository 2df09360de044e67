// Served tables while overlays come and go: readers see one version whole, places behind the base are used again, the
// base is mapped once, huge pages hold what the file holds, a store's files are shared.
#include "tfctr/core/storage/served_table.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/store.h"
#include "tfctr/core/storage/table_space.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int64_t kRows = 2000;
constexpr int64_t kWidth = 17;

// Rows whose every number says which version they are of: version * 10000 + key.
std::vector<float> Row(int64_t version, int64_t key) {
  return std::vector<float>(kWidth, static_cast<float>(version * 10000 + key));
}

void WriteBases(const TempDir& dir) {
  auto table = TableWriter::Create(dir.File("table"), "fixed", DType::kFloat32, {kRows, kWidth});
  CHECK_OK(table.status());
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < kRows; ++key) {
    const std::vector<float> row = Row(0, key);
    CHECK_OK(table.value()->Append(row.data(), row.size() * sizeof(float)));
    keys.push_back(key);
  }
  CHECK_OK(table.value()->Finish());
  HashFileSpec spec;
  spec.name = "hashed";
  spec.dim = kWidth;
  const std::vector<float> default_row(kWidth, -1.0f);
  CHECK_OK(WriteHashFile(dir.File("hash"), spec, keys, default_row.data(), [](int64_t first, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; ++i) {
      const std::vector<float> row = Row(0, first + i);
      std::memcpy(out + i * kWidth * 4, row.data(), kWidth * 4);
    }
    return Status::Ok();
  }));
}

// Every third key changed to what `version` says; the same keys in every version.
std::shared_ptr<const OverlayFile> MakeOverlay(const TempDir& dir, const TableBase& base, int64_t version) {
  const std::string delta_path = dir.File("delta");
  auto writer = DeltaFileWriter::Create(delta_path, base.name, base.shape, base.rows);
  CHECK_OK(writer.status());
  for (int64_t key = 0; key < kRows; key += 3) {
    CHECK_OK(writer.value()->Add(&key, 1, Row(version, key).data(), kWidth * 4));
  }
  CHECK_OK(writer.value()->Finish());
  const auto delta = DeltaFile::Open(delta_path).Take();
  const std::string path = dir.File(base.name + std::to_string(version));
  CHECK_OK(BuildOverlay(path, base, nullptr, {delta.get()}, {}, nullptr));
  auto opened = Store::Global().Overlay(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

struct Version {
  int64_t number;
  std::shared_ptr<const ServedTable> fixed;
  std::shared_ptr<const ServedTable> hashed;
};

float First(const ServedTable& table, int64_t number) {
  float value = 0;
  std::memcpy(&value, table.data() + number * table.row_bytes(), sizeof(value));
  return value;
}

void CheckVersion(const Version& version) {
  int64_t keys[64];
  int64_t numbers[64];
  for (int64_t i = 0; i < 64; ++i) keys[i] = (i * 97) % kRows;
  for (const auto& table : {version.fixed, version.hashed}) {
    table->Find(keys, 64, numbers);
    for (int64_t i = 0; i < 64; ++i) {
      CHECK_EQ(First(*table, numbers[i]), Row(keys[i] % 3 == 0 ? version.number : 0, keys[i])[0]);
    }
  }
}

// Readers look both tables up while another thread swaps versions: never a mix, and nothing unmapped under them.
void Swaps(TableMemory memory) {
  TempDir dir;
  WriteBases(dir);
  const auto table = Store::Global().Table(dir.File("table")).Take();
  const auto hash = Store::Global().Hash(dir.File("hash")).Take();
  const auto make = [&](int64_t number) {
    auto version = std::make_shared<Version>();
    version->number = number;
    version->fixed = ServedTable::Make(table, MakeOverlay(dir, BaseOf(*table), number), memory).Take();
    version->hashed = ServedTable::Make(hash, MakeOverlay(dir, BaseOf(*hash), number), memory).Take();
    return std::shared_ptr<const Version>(std::move(version));
  };
  std::mutex mutex;
  std::shared_ptr<const Version> current = make(1);
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!done.load()) {
        std::shared_ptr<const Version> mine;
        {
          std::lock_guard<std::mutex> lock(mutex);
          mine = current;
        }
        CheckVersion(*mine);
        CHECK_OK(mine->fixed->Dense().status());
      }
    });
  }
  for (int64_t number = 2; number < 32; ++number) {
    std::shared_ptr<const Version> next = make(number);
    std::lock_guard<std::mutex> lock(mutex);
    current.swap(next);
  }
  done.store(true);
  for (std::thread& reader : readers) reader.join();
  CheckVersion(*current);
  int64_t spaces = 0;
  for (const TableSpace::Stats& stats : TableSpace::AllStats()) {
    ++spaces;
    CHECK(stats.memory == memory);
    CHECK_EQ(stats.overlays, 1);  // those of old versions were given back
  }
  CHECK_EQ(spaces, 2);
  current.reset();
  CHECK(TableSpace::AllStats().empty());
}

// Many versions alive at once: each has its own place, all over one mapping of the base.
void ManyVersions() {
  TempDir dir;
  WriteBases(dir);
  const auto table = Store::Global().Table(dir.File("table")).Take();
  std::vector<std::shared_ptr<const ServedTable>> versions;
  for (int64_t number = 0; number < 40; ++number) {
    auto overlay = number == 0 ? nullptr : MakeOverlay(dir, BaseOf(*table), number);
    versions.push_back(ServedTable::Make(table, std::move(overlay)).Take());
    CHECK_EQ(versions.back()->data(), versions.front()->data());
  }
  for (int64_t number = 0; number < 40; ++number) {
    int64_t key = 3;
    versions[static_cast<size_t>(number)]->Find(&key, 1, &key);
    CHECK_EQ(First(*versions[static_cast<size_t>(number)], key), Row(number, 3)[0]);
  }
}

// Overlays that outgrow the room behind a small base get a larger range; old versions keep theirs.
void OutgrownRoom() {
  TempDir dir;
  HashFileSpec spec;
  spec.name = "hashed";
  spec.dim = 2048;
  const std::vector<float> row(2048, 1.0f);
  CHECK_OK(
      WriteHashFile(dir.File("hash"), spec, {}, row.data(), [](int64_t, int64_t, uint8_t*) { return Status::Ok(); }));
  const auto hash = HashFile::Open(dir.File("hash")).Take();
  auto writer = DeltaFileWriter::Create(dir.File("delta"), "hashed", BaseOf(*hash).shape, 0).Take();
  for (int64_t key = 0; key < 9000; ++key) CHECK_OK(writer->Add(&key, 1, row.data()));  // 73 MB
  CHECK_OK(writer->Finish());
  const auto delta = DeltaFile::Open(dir.File("delta")).Take();
  CHECK_OK(BuildOverlay(dir.File("overlay"), BaseOf(*hash), nullptr, {delta.get()}, {}, nullptr));
  const auto overlay = OverlayFile::Open(dir.File("overlay")).Take();
  const auto before = ServedTable::Make(hash).Take();
  for (const TableMemory memory : {TableMemory::kMapped, TableMemory::kHugePages}) {
    const auto served = ServedTable::Make(hash, overlay, memory);
    CHECK_OK(served.status());
    int64_t key = 8999;
    served.value()->Find(&key, 1, &key);
    CHECK_EQ(First(*served.value(), key), 1.0f);
    const auto next = ServedTable::Make(hash, overlay, memory);
    CHECK_OK(next.status());
  }
  int64_t key = 8999;
  before->Find(&key, 1, &key);
  CHECK_EQ(key, 0);
}

void Words() {
  CHECK(TableMemoryFromName("huge_pages").value() == TableMemory::kHugePages);
  CHECK_FAILS(TableMemoryFromName("large").status(), Code::kInvalid, "neither 'mapped' nor 'huge_pages'");
  ::setenv("TFCTR_TABLE_MEMORY", "large", 1);
  CHECK_FAILS(DefaultTableMemory().status(), Code::kInvalid, "TFCTR_TABLE_MEMORY: table memory 'large'");
  ::setenv("TFCTR_TABLE_MEMORY", "huge_pages", 1);
  CHECK(DefaultTableMemory().value() == TableMemory::kHugePages);
  SetDefaultTableMemory(TableMemory::kMapped);
  CHECK(DefaultTableMemory().value() == TableMemory::kMapped);
}

// The array of a static table can't get its rows from a file that took the base's place.
void ReplacedBase() {
  TempDir dir;
  WriteBases(dir);
  const auto table = TableFile::Open(dir.File("table")).Take();
  const auto served = ServedTable::Make(table, MakeOverlay(dir, BaseOf(*table), 1)).Take();
  std::filesystem::rename(dir.File("hash"), dir.File("table"));
  CHECK_FAILS(served->Dense().status(), Code::kIo, "was replaced since it was opened");
  int64_t key = 3;
  served->Find(&key, 1, &key);
  CHECK_EQ(First(*served, key), Row(1, 3)[0]);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Swaps(tfctr::TableMemory::kMapped);
  tfctr::Swaps(tfctr::TableMemory::kHugePages);
  tfctr::ManyVersions();
  tfctr::OutgrownRoom();
  tfctr::Words();
  tfctr::ReplacedBase();
  return 0;
}
