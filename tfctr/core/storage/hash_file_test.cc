// Hash files: every key is found, whatever the keys, sizes and windows; damage, lies in the metadata, full disks,
// kills.
#include "tfctr/core/storage/hash_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/hash_plan.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// A row's stored bytes, by its key; `salt` 1: the default row.
std::string RowOf(int64_t key, int64_t bytes, uint64_t salt = 0) {
  std::string row;
  std::mt19937_64 random(static_cast<uint64_t>(key) * 3 + salt);
  while (static_cast<int64_t>(row.size()) < bytes) row += static_cast<char>(random());
  return row;
}

std::vector<int64_t> RandomKeys(size_t n, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> keys = {0, -1, kMin, kMax, 1, kMin + 1, kMax - 1};
  keys.resize(std::min(keys.size(), n));
  while (keys.size() < n) keys.push_back(static_cast<int64_t>(random()));
  return keys;
}

HashFileSpec Spec(int64_t dim = 4, DType storage = DType::kFloat32) {
  HashFileSpec spec;
  spec.name = "user id%";
  spec.dim = dim;
  spec.storage = storage;
  return spec;
}

Status Write(const std::string& path, const HashFileSpec& spec, const std::vector<int64_t>& keys) {
  const int64_t bytes = StoredRowBytes(spec.storage, spec.dim);
  const HashRowReader read = [&](int64_t first, int64_t n, uint8_t* rows) {
    for (int64_t i = first; i < first + n; ++i) {
      std::memcpy(rows + (i - first) * bytes, RowOf(keys[static_cast<size_t>(i)], bytes).data(),
                  static_cast<size_t>(bytes));
    }
    return Status::Ok();
  };
  return WriteHashFile(path, spec, keys, RowOf(0, bytes, 1).data(), read);
}

bool Holds(const HashFile& file, int64_t number, const std::string& row) {
  const uint8_t* at = file.rows() + number * file.row_bytes();
  const bool zeros = std::all_of(at + row.size(), at + file.row_bytes(), [](uint8_t byte) { return byte == 0; });
  return zeros && std::memcmp(at, row.data(), row.size()) == 0;
}

void CheckAll(const HashFile& file, const std::vector<int64_t>& keys) {
  const int64_t bytes = StoredRowBytes(file.storage(), file.dim());
  const size_t n = keys.size();
  CHECK_EQ(file.size(), static_cast<int64_t>(n));
  std::vector<int64_t> numbers(n);
  file.index().Find(keys.data(), n, numbers.data());
  std::vector<bool> seen(n);
  for (size_t i = 0; i < n; ++i) {
    CHECK(numbers[i] >= 0 && numbers[i] < file.size());
    CHECK(!seen[static_cast<size_t>(numbers[i])]);
    seen[static_cast<size_t>(numbers[i])] = true;
    CHECK(Holds(file, numbers[i], RowOf(keys[i], bytes)));
  }
  CHECK(Holds(file, file.size(), RowOf(0, bytes, 1)));
  std::vector<int64_t> by_number(n);
  CHECK_OK(file.Keys(0, file.size(), by_number.data()));
  for (size_t i = 0; i < n; ++i) CHECK_EQ(by_number[static_cast<size_t>(numbers[i])], keys[i]);
  for (int64_t first = 0; first < file.size(); first += 13) {
    int64_t some[3];
    const int64_t count = std::min<int64_t>(3, file.size() - first);
    CHECK_OK(file.Keys(first, count, some));
    CHECK(std::equal(some, some + count, by_number.begin() + first));
  }
  std::vector<int64_t> others = RandomKeys(100, 77);
  std::vector<int64_t> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> in_place = others;
  file.index().Find(in_place.data(), in_place.size(), in_place.data());
  for (size_t i = 0; i < others.size(); ++i) {
    CHECK_EQ(in_place[i] != file.size(), std::binary_search(sorted.begin(), sorted.end(), others[i]));
  }
  CHECK_OK(file.VerifyIndex());
  CHECK_OK(file.VerifyChecksums());
}

void RoundTrip() {
  TempDir dir;
  const std::string path = dir.File("t");
  for (const size_t n : {0, 1, 6, 7, 8, 9, 100, 3000}) {
    const std::vector<int64_t> keys = RandomKeys(n);
    CHECK_OK(Write(path, Spec(), keys));
    const auto opened = HashFile::Open(path);
    CHECK_OK(opened.status());
    CheckAll(*opened.value(), keys);
    CHECK_EQ(opened.value()->name(), std::string("user id%"));
    CHECK_EQ(reinterpret_cast<uintptr_t>(opened.value()->index().lines) % 64, 0u);
  }
  CHECK_EQ(dir.Entries(), 1u);
}

void EveryStorageAndWindow() {
  TempDir dir;
  const std::string path = dir.File("t");
  struct Case {
    DType storage;
    int64_t dim;
    int64_t stride;
  };
  for (const Case& c : {Case{DType::kFloat32, 1, 16}, Case{DType::kFloat32, 16, 64}, Case{DType::kFloat32, 17, 80},
                        Case{DType::kFloat16, 17, 48}, Case{DType::kBFloat16, 8, 16}, Case{DType::kInt8, 16, 32},
                        Case{DType::kInt8, 12, 16}, Case{DType::kFloat32, 300000, 1200000}}) {
    std::string whole;
    const std::vector<int64_t> keys = RandomKeys(c.dim > 1000 ? 5 : 100);
    for (const uint64_t window : {uint64_t{0}, uint64_t{1}, uint64_t{1000}}) {
      HashFileSpec spec = Spec(c.dim, c.storage);
      spec.window_bytes = window;
      CHECK_OK(Write(path, spec, keys));
      const auto opened = HashFile::Open(path);
      CHECK_OK(opened.status());
      CHECK_EQ(opened.value()->row_bytes(), c.stride);
      CHECK(opened.value()->storage() == c.storage);
      CheckAll(*opened.value(), keys);
      if (!whole.empty()) CHECK(whole == ReadWhole(path));
      whole = ReadWhole(path);
    }
  }
}

void MetadataIsKept() {
  TempDir dir;
  HashFileSpec spec = Spec();
  spec.extra = {{"step", "12"}, {"config", "{\"name\": \"a b\"}"}, {"rows", "overwritten"}};
  CHECK_OK(Write(dir.File("t"), spec, {5}));
  const auto opened = HashFile::Open(dir.File("t"));
  CHECK_OK(opened.status());
  CHECK_EQ(opened.value()->metadata().at("step"), std::string("12"));
  CHECK_EQ(opened.value()->metadata().at("config"), std::string("{\"name\": \"a b\"}"));
  CHECK_EQ(opened.value()->metadata().at("rows"), std::string("1"));
}

void SameFileWhateverTheOrder() {
  TempDir dir;
  std::vector<int64_t> keys = RandomKeys(5000);
  CHECK_OK(Write(dir.File("a"), Spec(), keys));
  std::shuffle(keys.begin(), keys.end(), std::mt19937_64(3));
  CHECK_OK(Write(dir.File("b"), Spec(), keys));
  CHECK(ReadWhole(dir.File("a")) == ReadWhole(dir.File("b")));
}

void Refusals() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_FAILS(Write(path, Spec(), {7, 3, -9, 3}), Code::kInvalid,
              "table 'user id%': key 3 is given twice (rows 1 and 3)");
  CHECK_FAILS(Write(path, Spec(0), {}), Code::kInvalid, "dim is 0");
  CHECK_FAILS(Write(path, Spec(4, DType::kFloat64), {}), Code::kInvalid, "stored as float64");
  CHECK_FAILS(CheckHashFileSpec(Spec(), int64_t{1} << 32), Code::kInvalid, "4294967296 rows, at most 4294967295");
  CHECK_OK(CheckHashFileSpec(Spec(), (int64_t{1} << 32) - 1));
  CHECK_FAILS(Write(dir.File("no/such/t"), Spec(), {1}), Code::kNotFound, "cannot create");
  CHECK_EQ(dir.Entries(), 0u);
  CHECK_OK(Write(path, Spec(), {1}));
  int64_t key;
  CHECK_FAILS(HashFile::Open(path).value()->Keys(1, 1, &key), Code::kInvalid, "it has 1");
  CHECK_FAILS(HashFile::Open(path).value()->Keys(-1, 1, &key), Code::kInvalid, "it has 1");
}

void StoppedOrFailedReading() {
  TempDir dir;
  const std::string path = dir.File("t");
  const float row[4] = {};
  const HashRowReader fails = [](int64_t, int64_t, uint8_t*) { return Status::Corrupt("the source is damaged"); };
  CHECK_FAILS(WriteHashFile(path, Spec(), {1, 2}, row, fails), Code::kCorrupt, "the source is damaged");
  const HashRowReader zeros = [](int64_t, int64_t n, uint8_t* rows) {
    std::memset(rows, 0, static_cast<size_t>(n) * 16);
    return Status::Ok();
  };
  uint64_t told = 0;
  const HashFileProgress stop = [&](uint64_t done, uint64_t total) {
    CHECK_EQ(done, 32u);
    told = total;
    return false;
  };
  CHECK_FAILS(WriteHashFile(path, Spec(), {1, 2}, row, zeros, stop), Code::kInvalid, "stopped");
  CHECK_EQ(told, 32u);
  CHECK_EQ(dir.Entries(), 0u);
}

// The inverse of HashOfKey.
int64_t KeyOfHash(uint64_t hash, uint64_t salt) {
  const auto inverse = [](uint64_t odd) {  // Newton: the number of right bits doubles
    uint64_t x = odd;
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  uint64_t x = hash ^ (hash >> 29) ^ (hash >> 58);
  x *= inverse(0xd6e8feb86659fd93ull);
  x ^= x >> 32;
  x *= inverse(0x9e3779b97f4a7c15ull);
  return static_cast<int64_t>(x ^ salt);
}

void KeysBuiltToCollide() {
  TempDir dir;
  CHECK_OK(Write(dir.File("plain"), Spec(), RandomKeys(10)));
  const uint64_t usual = HashFile::Open(dir.File("plain")).value()->index().salt;
  std::vector<int64_t> keys;
  for (uint64_t i = 0; i < 5000; ++i) {
    keys.push_back(KeyOfHash(uint64_t{1} << 63 | i, usual));
    CHECK_EQ(HashOfKey(keys.back(), usual), uint64_t{1} << 63 | i);
  }
  CHECK_OK(Write(dir.File("t"), Spec(), keys));
  const auto opened = HashFile::Open(dir.File("t"));
  CHECK_OK(opened.status());
  CHECK(opened.value()->index().salt != usual);
  CheckAll(*opened.value(), keys);
  // As many as may lie in one home stay under the usual salt.
  keys.resize(100);
  CHECK_OK(Write(dir.File("t"), Spec(), keys));
  const auto few = HashFile::Open(dir.File("t"));
  CHECK_EQ(few.value()->index().salt, usual);
  CheckAll(*few.value(), keys);
  // Keys at both ends of the hashes: what runs over the last home lies behind it.
  keys.clear();
  for (uint64_t i = 0; i < 50; ++i) keys.insert(keys.end(), {KeyOfHash(~i, usual), KeyOfHash(i, usual)});
  CHECK_OK(Write(dir.File("t"), Spec(), keys));
  const auto ends = HashFile::Open(dir.File("t"));
  CHECK(ends.value()->index().line_count > ends.value()->index().homes);
  CheckAll(*ends.value(), keys);
}

// Consecutive numbers, multiples and few bits: what ids look like.
void KeysOfAKind() {
  for (const int64_t step : {int64_t{1}, int64_t{1} << 32, int64_t{1} << 48, int64_t{1000003}}) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < 20000; ++i) keys.push_back(static_cast<int64_t>(static_cast<uint64_t>(i) * step));
    const auto plan = PlanHashFile("t", keys);
    CHECK_OK(plan.status());
    const auto random = PlanHashFile("t", RandomKeys(keys.size()));
    CHECK_EQ(plan.value().salt, random.value().salt);
  }
}

void EveryDamagedTailByteIsNoticed() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, Spec(), RandomKeys(20)));
  const std::string good = ReadWhole(path);
  for (size_t at = 4096; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 0x10;
    WriteWhole(path, bad);
    CHECK(HashFile::Open(path).status().code == Code::kCorrupt);
  }
  for (const size_t size : {size_t{0}, size_t{63}, size_t{400}, good.size() - 1}) {
    WriteWhole(path, good.substr(0, size));
    CHECK(HashFile::Open(path).status().code == Code::kCorrupt);
  }
}

void EveryFlippedBitOfTheIndexIsFound() {
  TempDir dir;
  const std::string path = dir.File("t");
  const std::vector<int64_t> keys = RandomKeys(20);
  CHECK_OK(Write(path, Spec(), keys));
  const std::string good = ReadWhole(path);
  const auto first = HashFile::Open(path);
  const size_t begin =
      static_cast<size_t>(reinterpret_cast<const uint8_t*>(first.value()->index().lines) - first.value()->rows());
  const size_t end = begin + first.value()->index().line_count * sizeof(HashLine);
  size_t refused = 0;
  size_t unseen = 0;
  for (size_t bit = begin * 8; bit < end * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    WriteWhole(path, bad);
    const auto opened = HashFile::Open(path);
    if (!opened.ok()) {
      CHECK_FAILS(opened.status(), Code::kCorrupt, "does not count 20 keys");
      ++refused;
      continue;
    }
    // A bit of a key may make another key that belongs in the same place; only the checksum tells then.
    const Status index = opened.value()->VerifyIndex();
    const bool header = (bit / 8 - begin) % sizeof(HashLine) >= HashLine::kKeys * sizeof(int64_t);
    if (index.ok()) {
      CHECK(!header);
      ++unseen;
    } else {
      CHECK_FAILS(index, Code::kCorrupt, path);
    }
    CHECK_FAILS(opened.value()->VerifyChecksums(), Code::kCorrupt, "checksum of bytes 0 to");
    std::vector<int64_t> numbers(keys.size());
    opened.value()->index().Find(keys.data(), keys.size(), numbers.data());
    for (const int64_t number : numbers) CHECK(number >= 0 && number <= 20);
  }
  CHECK(refused > 30);
  CHECK(unseen < 20 * 64 / 4);
}

void FlippedRowIsFoundByVerify() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, Spec(), RandomKeys(60)));
  std::string bad = ReadWhole(path);
  bad[100] ^= 1;
  WriteWhole(path, bad);
  const auto opened = HashFile::Open(path);
  CHECK_OK(opened.status());
  CHECK_OK(opened.value()->VerifyIndex());
  CHECK_FAILS(opened.value()->VerifyChecksums(), Code::kCorrupt, "checksum of bytes 0 to");
}

// Whatever an index holds, a search ends and stays inside it (under AddressSanitizer).
void GarbageInTheIndex() {
  std::mt19937_64 random(9);
  for (int round = 0; round < 200; ++round) {
    std::vector<HashLine> lines(1 + random() % 20);
    for (HashLine& line : lines) {
      uint64_t words[8];
      for (uint64_t& word : words) word = random() % 4 == 0 ? random() : random() % 3;
      std::memcpy(&line, words, sizeof(line));
      if (random() % 2 == 0) line.overflow = 0xffff;
    }
    HashIndex index;
    index.lines = lines.data();
    index.line_count = lines.size();
    index.homes = 1 + random() % lines.size();
    index.missing = static_cast<int64_t>(random() % 50);
    std::vector<int64_t> keys(200);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % 3);
    index.Find(keys.data(), keys.size(), keys.data());
    for (const int64_t number : keys) CHECK(number >= 0 && number <= index.missing);
  }
}

// Files whose checksums are right and whose metadata lies.
void MetadataThatLies() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, Spec(), RandomKeys(20)));
  const auto opened = HashFile::Open(path);
  const HashFile& file = *opened.value();
  const auto lie = [&](const char* key, const std::string& value) {
    Metadata metadata = file.metadata();
    metadata[key] = value;
    if (value.empty()) metadata.erase(key);
    auto writer = ContainerWriter::Create(dir.File("lie"), FileKind::kHash);
    CHECK_OK(writer.value()->Append(file.rows(), file.bytes()));
    CHECK_OK(writer.value()->Finish(metadata));
    return HashFile::Open(dir.File("lie")).status();
  };
  CHECK_OK(lie("step", "3"));
  for (const char* key : {"name", "dim", "storage", "row_bytes", "rows", "homes", "lines", "salt", "index_offset"}) {
    CHECK_FAILS(lie(key, ""), Code::kCorrupt, "does not describe a hash table");
    if (std::strcmp(key, "name") == 0) continue;
    for (const char* value : {"-1", "0", "1000000000000", "9223372036854775807", "18446744073709551615", "x", "21"}) {
      if (std::strcmp(key, "salt") == 0 && std::strcmp(value, "x") != 0) continue;  // any salt is possible
      if (std::strcmp(key, "homes") == 0 && std::strcmp(value, "21") != 0) continue;
      CHECK(lie(key, value).code == Code::kCorrupt);
    }
  }
  CHECK_FAILS(lie("rows", "19"), Code::kCorrupt, "not those of the hash table");
  CHECK_FAILS(lie("rows", "21"), Code::kCorrupt, "does not count 21 keys");
  CHECK_FAILS(lie("storage", "float64"), Code::kCorrupt, "metadata describes");
}

void WrongKindOfFile() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, Spec(), {1}));
  auto writer = ContainerWriter::Create(dir.File("v"), FileKind::kVocab);
  CHECK_OK(writer.value()->Finish({}));
  CHECK_FAILS(HashFile::Open(dir.File("v")).status(), Code::kInvalid, "a vocabulary file, expected a hash file");
  CHECK_FAILS(HashFile::Open(dir.File("missing")).status(), Code::kNotFound, "missing");
}

void FullDiskLeavesNothingBehind() {
  TempDir dir;
  ::signal(SIGXFSZ, SIG_IGN);
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, Spec(), {1}));
  struct rlimit before;
  CHECK(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  for (const rlim_t limit : {1 << 12, 1 << 16, (1 << 16) + (1 << 14)}) {  // in the rows, at the index, in the index
    struct rlimit small = before;
    small.rlim_cur = limit;
    CHECK(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const Status full = Write(path, Spec(), RandomKeys((1 << 12) - 1));
    CHECK(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK_FAILS(full, Code::kNoSpace, path.substr(path.rfind('/') + 1));
    CHECK_EQ(dir.Entries(), 1u);
    CHECK_EQ(HashFile::Open(path).value()->size(), 1);
  }
}

void KilledWhileBuilding() {
  TempDir dir;
  const std::string path = dir.File("t");
  const pid_t child = ::fork();
  if (child == 0) {
    const float row[4] = {};
    (void)WriteHashFile(path, Spec(), {1, 2}, row, [](int64_t, int64_t, uint8_t*) {
      ::kill(::getpid(), SIGKILL);
      return Status::Ok();
    });
    ::_exit(0);
  }
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(HashFile::Open(path).status().code == Code::kNotFound);  // only a name that starts with a dot is left
  CHECK_OK(Write(path, Spec(), {1, 2}));
  CheckAll(*HashFile::Open(path).value(), {1, 2});
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::RoundTrip();
  tfctr::EveryStorageAndWindow();
  tfctr::MetadataIsKept();
  tfctr::SameFileWhateverTheOrder();
  tfctr::Refusals();
  tfctr::StoppedOrFailedReading();
  tfctr::KeysBuiltToCollide();
  tfctr::KeysOfAKind();
  tfctr::EveryDamagedTailByteIsNoticed();
  tfctr::EveryFlippedBitOfTheIndexIsFound();
  tfctr::FlippedRowIsFoundByVerify();
  tfctr::GarbageInTheIndex();
  tfctr::MetadataThatLies();
  tfctr::WrongKindOfFile();
  tfctr::FullDiskLeavesNothingBehind();
  tfctr::KilledWhileBuilding();
  return 0;
}
