// The store: one mapping per file, released with its last user, replaced files told apart, many threads.
#include "tfctr/core/storage/store.h"

#include <string>
#include <thread>
#include <vector>

#include "tfctr/core/storage/checkpoint_copy.h"
#include "tfctr/core/storage/crc32c.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

void WriteTable(const std::string& path, const std::string& data) {
  auto writer = TableWriter::Create(path, "t", DType::kUInt8, {static_cast<int64_t>(data.size())});
  CHECK_OK(writer.status());
  CHECK_OK(writer.value()->Append(data.data(), data.size()));
  CHECK_OK(writer.value()->Finish());
}

bool IsMapped(const std::string& path) { return ReadWhole("/proc/self/maps").find(path) != std::string::npos; }

void SharedAndReleased() {
  TempDir dir;
  Store store;
  const std::string path = dir.File("t");
  WriteTable(path, "abcd");
  std::filesystem::create_symlink(path, dir.File("link"));
  {
    const auto first = store.Table(path);
    const auto second = store.Table(dir.File("link"));
    CHECK_OK(first.status());
    CHECK(first.value() == second.value());
    CHECK(IsMapped(path));
    const auto stats = store.Stats();
    CHECK_EQ(stats.size(), 1u);
    CHECK_EQ(stats[0].refs, 2);
    CHECK_EQ(stats[0].bytes, 4u);
    CHECK_EQ(stats[0].name, std::string("t"));
  }
  CHECK(store.Stats().empty());
  CHECK(!IsMapped(path));
}

void ReplacedFileIsAnotherFile() {
  TempDir dir;
  Store store;
  const std::string path = dir.File("t");
  WriteTable(path, "abcd");
  const auto old = store.Table(path).Take();
  WriteTable(path, "wxyz");
  const auto fresh = store.Table(path).Take();
  CHECK(old != fresh);
  CHECK_EQ(old->data()[0], uint8_t{'a'});
  CHECK_EQ(fresh->data()[0], uint8_t{'w'});
  CHECK_EQ(store.Stats().size(), 2u);
}

void Errors() {
  TempDir dir;
  Store store;
  CHECK_FAILS(store.Table(dir.File("x")).status(), Code::kNotFound, "x");
  WriteTable(dir.File("t"), "abcd");
  CHECK_FAILS(store.Vocab(dir.File("t")).status(), Code::kInvalid, "expected a vocabulary file");
  CHECK(store.Stats().empty());
}

void ManyThreads() {
  TempDir dir;
  Store store;
  WriteTable(dir.File("t"), std::string(10000, 'x'));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto table = store.Table(dir.File("t"));
        CHECK_OK(table.status());
        CHECK_EQ(table.value()->data()[9999], uint8_t{'x'});
        (void)store.Stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(store.Stats().empty());
}

void CopyFromCheckpoint() {
  TempDir dir;
  const std::string data(20 << 20, 'q');
  WriteWhole(dir.File("shard"), "head" + data + "tail");
  CheckpointExtent extent{"emb/table", dir.File("shard"), 4, data.size(), MaskCrc32c(Crc32c(data.data(), data.size()))};
  const auto copy = [&](const CopyProgress& progress) {
    auto writer = TableWriter::Create(dir.File("t"), "t", DType::kUInt8, {static_cast<int64_t>(data.size())});
    CHECK_OK(writer.status());
    TFCTR_RETURN_IF_ERROR(CopyCheckpointTensor(extent, writer.value().get(), progress));
    return writer.value()->Finish();
  };
  uint64_t reported = 0;
  CHECK_OK(copy([&](uint64_t bytes) {
    reported += bytes;
    return true;
  }));
  CHECK_EQ(reported, data.size());
  CHECK_OK(TableFile::Open(dir.File("t")).value()->VerifyChecksums());
  std::filesystem::remove(dir.File("t"));

  CHECK_FAILS(copy([](uint64_t) { return false; }), Code::kInvalid, "stopped");
  extent.masked_crc32c ^= 1;
  CHECK_FAILS(copy(nullptr), Code::kCorrupt, "tensor 'emb/table' in '" + dir.File("shard"));
  extent.masked_crc32c ^= 1;
  extent.offset = 100;
  CHECK_FAILS(copy(nullptr), Code::kCorrupt, "truncated");
  extent.shard_path = dir.File("gone");
  CHECK_FAILS(copy(nullptr), Code::kNotFound, "emb/table");
  CHECK_EQ(dir.Entries(), 1u);  // the shard; no table, no temporary file
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::SharedAndReleased();
  tfctr::ReplacedFileIsAnotherFile();
  tfctr::Errors();
  tfctr::ManyThreads();
  tfctr::CopyFromCheckpoint();
  return 0;
}
