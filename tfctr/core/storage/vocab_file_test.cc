// Vocabulary files: round trip of both key kinds, extremes, duplicates, damaged payloads, store sharing.
#include "tfctr/core/storage/vocab_file.h"

#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tfctr/core/storage/other_format.h"
#include "tfctr/core/storage/store.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

template <typename Key>
Status Write(const std::string& path, KeyKind kind, const std::vector<Key>& keys, int64_t first_value = 0) {
  auto writer = VocabWriter::Create(path, "v", kind);
  if (!writer.ok()) return writer.status();
  for (size_t i = 0; i < keys.size(); ++i) {
    TFCTR_RETURN_IF_ERROR(writer.value()->Add(keys[i], first_value + static_cast<int64_t>(i)));
  }
  return writer.value()->Finish();
}

std::shared_ptr<const VocabFile> Open(const std::string& path) {
  auto opened = VocabFile::Open(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

void Strings() {
  TempDir dir;
  std::vector<std::string> keys = {"", "a", std::string("\0", 1), std::string("\0\0", 2), std::string(100000, 'x')};
  for (int i = 0; i < 5000; ++i) keys.push_back("key" + std::to_string(i) + std::string(i % 40, 'k'));
  std::vector<std::string_view> views(keys.begin(), keys.end());
  CHECK_OK(Write(dir.File("v"), KeyKind::kString, views, -3));
  const auto vocab = Open(dir.File("v"));
  CHECK_EQ(vocab->size(), static_cast<int64_t>(keys.size()));
  CHECK(vocab->key_kind() == KeyKind::kString);
  CHECK_OK(vocab->VerifyChecksums());
  int64_t value = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(vocab->Find(std::string_view(keys[i]), &value));
    CHECK_EQ(value, static_cast<int64_t>(i) - 3);
    std::string_view key;
    CHECK(vocab->EntryAt(static_cast<int64_t>(i), &key, &value));
    CHECK(key == keys[i] && value == static_cast<int64_t>(i) - 3);
  }
  CHECK(!vocab->Find(std::string_view("key"), &value));
  CHECK(!vocab->Find(std::string_view("\0\0\0", 3), &value));
  CHECK(!vocab->Find(int64_t{1}, &value));  // the other kind of key
  std::string_view key;
  CHECK(!vocab->EntryAt(-1, &key, &value));
  CHECK(!vocab->EntryAt(vocab->size(), &key, &value));

  views.push_back("missing");
  views.insert(views.begin(), "missing too");
  std::vector<int64_t> found(views.size());
  vocab->FindBatch(views.data(), static_cast<int64_t>(views.size()), kMin, found.data());
  CHECK_EQ(found.front(), kMin);
  CHECK_EQ(found.back(), kMin);
  for (size_t i = 0; i < keys.size(); ++i) CHECK_EQ(found[i + 1], static_cast<int64_t>(i) - 3);
}

// Buckets that their 8 tags and offsets cannot describe: many keys in one, and long ones.
void CrowdedBuckets() {
  TempDir dir;
  std::vector<std::string> keys;
  for (int i = 0; keys.size() < 40; ++i) {  // the writer makes 32 buckets for 40 keys
    const std::string key = std::to_string(i);
    if ((VocabHash(key) & 31) == 3) keys.push_back(key);
  }
  for (const size_t length : {0, 5000}) {
    for (std::string& key : keys) key += std::string(length, 'x');
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    CHECK_OK(Write(dir.File("v"), KeyKind::kString, views));
    const auto vocab = Open(dir.File("v"));
    std::vector<int64_t> found(keys.size());
    vocab->FindBatch(views.data(), static_cast<int64_t>(views.size()), -1, found.data());
    for (size_t i = 0; i < keys.size(); ++i) CHECK_EQ(found[i], static_cast<int64_t>(i));
    int64_t value = 0;
    CHECK(!vocab->Find(std::string_view("none"), &value));
  }
}

// Every length around those at which the hash and the comparison change their ways, one byte off at every place.
void NearKeys() {
  TempDir dir;
  std::vector<std::string> keys;
  for (size_t n = 0; n <= 40; ++n)
    keys.push_back(std::string("abcdefghijklmnopqrstuvwxyz0123456789ABCDEF").substr(0, n));
  CHECK_OK(Write(dir.File("v"), KeyKind::kString, std::vector<std::string_view>(keys.begin(), keys.end())));
  const auto vocab = Open(dir.File("v"));
  for (size_t n = 0; n <= 40; ++n) {
    int64_t value = 0;
    CHECK(vocab->Find(std::string_view(keys[n]), &value));
    CHECK_EQ(value, static_cast<int64_t>(n));
    for (size_t at = 0; at < n; ++at) {
      std::string other = keys[n];
      other[at] ^= 1;
      CHECK(!vocab->Find(std::string_view(other), &value));
    }
  }
}

void Ints() {
  TempDir dir;
  std::vector<int64_t> keys = {kMin, kMin + 1, kMax, -1, 0, 1};
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < 3000; ++i) keys.push_back(1000 + i * 1024);  // strides that a weak hash would pile up
  for (int64_t i = 0; i < 3000; ++i) keys.push_back(static_cast<int64_t>(random() | 0x4000000000000001ull));
  CHECK_OK(Write(dir.File("v"), KeyKind::kInt64, keys));
  const auto vocab = Open(dir.File("v"));
  int64_t value = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(vocab->Find(keys[i], &value));
    CHECK_EQ(value, static_cast<int64_t>(i));
    int64_t key = 0;
    CHECK(vocab->EntryAt(static_cast<int64_t>(i), &key, &value));
    CHECK_EQ(key, keys[i]);
  }
  for (const int64_t missing : {kMin + 2, int64_t{2}, kMax - 1}) CHECK(!vocab->Find(missing, &value));
  CHECK(!vocab->Find(std::string_view("1"), &value));
  keys.push_back(kMin + 2);  // this file's mark of an empty slot
  std::vector<int64_t> found(keys.size());
  vocab->FindBatch(keys.data(), static_cast<int64_t>(keys.size()), -7, found.data());
  CHECK_EQ(found.back(), -7);
  CHECK_EQ(found[2], 2);
}

void Empty() {
  TempDir dir;
  CHECK_OK(Write(dir.File("s"), KeyKind::kString, std::vector<std::string_view>()));
  CHECK_OK(Write(dir.File("i"), KeyKind::kInt64, std::vector<int64_t>()));
  int64_t value = 0;
  CHECK_EQ(Open(dir.File("s"))->size(), 0);
  CHECK(!Open(dir.File("s"))->Find(std::string_view(""), &value));
  CHECK(!Open(dir.File("i"))->Find(kMin, &value));
  CHECK(!Open(dir.File("i"))->Find(int64_t{0}, &value));
  CHECK_OK(Open(dir.File("i"))->VerifyChecksums());
}

void Duplicates() {
  TempDir dir;
  const std::vector<std::string_view> strings = {"a", "b", "a"};
  CHECK_FAILS(Write(dir.File("v"), KeyKind::kString, strings), Code::kInvalid,
              "key 'a' is given twice (entries 0 and 2)");
  const std::vector<int64_t> ints = {5, 7, 7};
  CHECK_FAILS(Write(dir.File("v"), KeyKind::kInt64, ints), Code::kInvalid, "key 7 is given twice (entries 1 and 2)");
  CHECK_FAILS(Write(dir.File("v"), KeyKind::kInt64, strings), Code::kInvalid, "has int64 keys");
  CHECK_EQ(dir.Entries(), 0u);
}

void WrongKindOfFile() {
  TempDir dir;
  CHECK_OK(Write(dir.File("v"), KeyKind::kInt64, std::vector<int64_t>{1}));
  CHECK_FAILS(TableFile::Open(dir.File("v")).status(), Code::kInvalid, "is a vocabulary file, expected a table file");
  auto writer = TableWriter::Create(dir.File("t"), "t", DType::kInt8, {0});
  CHECK_OK(writer.value()->Finish());
  CHECK_FAILS(VocabFile::Open(dir.File("t")).status(), Code::kInvalid, "is a table file, expected a vocabulary file");
}

// String keys lay in slots once; such files are whole, and of no use any more.
void EarlierFormatSaysConvertAgain() {
  TempDir dir;
  auto writer = ContainerWriter::Create(dir.File("v"), FileKind::kVocab);
  CHECK_OK(writer.status());
  CHECK_OK(writer.value()->Finish({{"kind", "vocab"},
                                   {"name", "city"},
                                   {"keys", "string"},
                                   {"size", "0"},
                                   {"slots", "8"},
                                   {"order_offset", "0"},
                                   {"records_offset", "0"},
                                   {"records_bytes", "0"}}));
  const Status status = VocabFile::Open(dir.File("v")).status();
  CHECK_FAILS(status, Code::kInvalid,
              "/v' has string keys in slots, the earlier format of vocabularies, this build reads buckets: convert the "
              "model again with this tfctr");
  CHECK(IsOtherFormat(status));
  CHECK(!IsOtherFormat(Status::Corrupt(status.message)));
  CHECK(!IsOtherFormat(VocabFile::Open(dir.File("gone")).status()));
}

// Opening does not check the payload, so a find over damaged bytes must stay inside the mapping and end.
void DamagedPayloadIsSafe() {
  TempDir dir;
  std::vector<std::string> keys;
  for (int i = 0; i < 300; ++i) keys.push_back("key" + std::to_string(i));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  CHECK_OK(Write(dir.File("good"), KeyKind::kString, views));
  CHECK_OK(Write(dir.File("ints"), KeyKind::kInt64, std::vector<int64_t>{1, 2, 3}));
  std::mt19937_64 random(3);
  for (const char* name : {"good", "ints"}) {
    const std::string good = ReadWhole(dir.File(name));
    const uint64_t payload = Open(dir.File(name))->bytes();
    for (int round = 0; round < 40; ++round) {
      std::string bad = good;
      for (size_t at = 0; at < payload; ++at) {
        if (round == 0) bad[at] = '\xff';
        if (round > 0 && random() % 8 == 0) bad[at] = static_cast<char>(random());
      }
      WriteWhole(dir.File("bad"), bad);
      const auto vocab = Open(dir.File("bad"));
      std::vector<int64_t> found(views.size());
      vocab->FindBatch(views.data(), static_cast<int64_t>(views.size()), -1, found.data());
      int64_t value = 0;
      for (int64_t key = -10; key < 10; ++key) vocab->Find(key, &value);
      std::string_view text;
      int64_t number = 0;
      for (int64_t i = 0; i < vocab->size(); ++i) {
        vocab->EntryAt(i, &text, &value);
        vocab->EntryAt(i, &number, &value);
      }
      CHECK(vocab->VerifyChecksums().code == Code::kCorrupt);
    }
  }
}

void EveryDamagedMetadataByteIsNoticed() {
  TempDir dir;
  CHECK_OK(Write(dir.File("v"), KeyKind::kInt64, std::vector<int64_t>{1, 2, 3}));
  const std::string good = ReadWhole(dir.File("v"));
  const size_t tail = 4096;
  for (size_t at = tail; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 1;
    WriteWhole(dir.File("bad"), bad);
    CHECK(VocabFile::Open(dir.File("bad")).status().code == Code::kCorrupt);
  }
}

void FindEachCallsInOrder() {
  TempDir dir;
  std::vector<int64_t> keys(100);
  for (int64_t i = 0; i < 100; ++i) keys[static_cast<size_t>(i)] = i * 2;
  CHECK_OK(Write(dir.File("v"), KeyKind::kInt64, keys));
  const auto vocab = Open(dir.File("v"));
  std::vector<int64_t> order;
  int64_t misses = 0;
  vocab->FindEach(
      150, [](int64_t i) { return i; },
      [&](int64_t i, int64_t value) {
        CHECK_EQ(value * 2, i);
        order.push_back(i);
      },
      [&](int64_t i, int64_t key) {
        CHECK_EQ(key, i);
        order.push_back(i);
        ++misses;
      });
  CHECK_EQ(order.size(), 150u);
  for (int64_t i = 0; i < 150; ++i) CHECK_EQ(order[static_cast<size_t>(i)], i);
  CHECK_EQ(misses, 75);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Strings();
  tfctr::CrowdedBuckets();
  tfctr::NearKeys();
  tfctr::Ints();
  tfctr::Empty();
  tfctr::Duplicates();
  tfctr::WrongKindOfFile();
  tfctr::EarlierFormatSaysConvertAgain();
  tfctr::DamagedPayloadIsSafe();
  tfctr::EveryDamagedMetadataByteIsNoticed();
  tfctr::FindEachCallsInOrder();
  return 0;
}
