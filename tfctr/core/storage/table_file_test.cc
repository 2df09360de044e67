// Table files: round trip, every way a file can be damaged, full disk, surrogates.
#include "tfctr/core/storage/table_file.h"

#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

Status Write(const std::string& path, DType dtype, const std::vector<int64_t>& shape, const std::string& data,
             const std::string& name = "emb/user table%") {
  auto writer = TableWriter::Create(path, name, dtype, shape);
  if (!writer.ok()) return writer.status();
  TFCTR_RETURN_IF_ERROR(writer.value()->Append(data.data(), data.size()));
  return writer.value()->Finish();
}

std::string Bytes(size_t n) {
  std::mt19937_64 random(n);
  std::string data(n, '\0');
  for (char& c : data) c = static_cast<char>(random());
  return data;
}

Status OpenStatus(const std::string& path) { return TableFile::Open(path).status(); }

void RoundTrip() {
  TempDir dir;
  struct Case {
    DType dtype;
    std::vector<int64_t> shape;
  };
  const Case cases[] = {
      {DType::kFloat32, {100, 16}}, {DType::kBFloat16, {}},     {DType::kFloat16, {3}}, {DType::kFloat64, {2, 3, 4}},
      {DType::kInt64, {0, 8}},      {DType::kBool, {5, 0}},     {DType::kInt8, {4096}}, {DType::kUInt8, {4097}},
      {DType::kInt32, {2, 0, 7}},   {DType::kUInt8, {9 << 20}},  // more than one checksum block
  };
  for (const Case& c : cases) {
    const uint64_t bytes = DenseBytes(c.dtype, c.shape).value();
    const std::string data = Bytes(bytes);
    const std::string path = dir.File("t");
    CHECK_OK(Write(path, c.dtype, c.shape, data));
    auto opened = TableFile::Open(path);
    CHECK_OK(opened.status());
    const TableFile& table = *opened.value();
    CHECK_EQ(table.bytes(), bytes);
    CHECK(table.dtype() == c.dtype);
    CHECK(table.shape() == c.shape);
    CHECK_EQ(table.name(), std::string("emb/user table%"));
    CHECK_EQ(reinterpret_cast<uintptr_t>(table.data()) % kPageBytes, 0u);
    CHECK(bytes == 0 || std::memcmp(table.data(), data.data(), bytes) == 0);
    CHECK_EQ(table.fingerprint().size(), 16u);
    CHECK_OK(table.VerifyChecksums());
  }
  CHECK_EQ(dir.Entries(), 1u);  // no temporary file is left
}

void WidthAndRows() {
  TempDir dir;
  CHECK_OK(Write(dir.File("a"), DType::kUInt8, {4, 3, 2}, Bytes(24)));
  CHECK_EQ(TableFile::Open(dir.File("a")).value()->rows(), 4);
  CHECK_EQ(TableFile::Open(dir.File("a")).value()->width(), 6);
  CHECK_OK(Write(dir.File("b"), DType::kUInt8, {}, Bytes(1)));
  CHECK_EQ(TableFile::Open(dir.File("b")).value()->rows(), 1);
  CHECK_EQ(TableFile::Open(dir.File("b")).value()->width(), 1);
}

void FingerprintFollowsContent() {
  TempDir dir;
  std::string data = Bytes(20 << 20);
  CHECK_OK(Write(dir.File("a"), DType::kUInt8, {20 << 20}, data));
  CHECK_OK(Write(dir.File("b"), DType::kUInt8, {20 << 20}, data));
  data[19 << 20] ^= 1;
  CHECK_OK(Write(dir.File("c"), DType::kUInt8, {20 << 20}, data));
  const std::string a = TableFile::Open(dir.File("a")).value()->fingerprint();
  CHECK_EQ(a, TableFile::Open(dir.File("b")).value()->fingerprint());
  CHECK(a != TableFile::Open(dir.File("c")).value()->fingerprint());
}

void WrongAmountOfData() {
  TempDir dir;
  CHECK_FAILS(Write(dir.File("t"), DType::kFloat32, {2, 2}, Bytes(15)), Code::kInvalid, "15 of 16 bytes");
  CHECK_FAILS(Write(dir.File("t"), DType::kFloat32, {2, 2}, Bytes(17)), Code::kInvalid, "more data");
  CHECK_FAILS(Write(dir.File("t"), DType::kFloat32, {2, -2}, ""), Code::kInvalid, "negative dimension -2");
  CHECK_FAILS(Write(dir.File("t"), DType::kFloat32, {int64_t{1} << 62, 8}, ""), Code::kInvalid, "too large");
  CHECK_FAILS(Write(dir.File("t"), DType::kInvalid, {1}, ""), Code::kInvalid, "no such element type");
  CHECK_FAILS(Write(dir.File("no/such/dir"), DType::kInt8, {1}, "x"), Code::kNotFound, "cannot create");
  CHECK_EQ(dir.Entries(), 0u);
}

void EveryDamagedTailByteIsNoticed() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, DType::kFloat32, {10, 10}, Bytes(400)));
  const std::string good = ReadWhole(path);
  CHECK(good.size() > 4096 + kFooterBytes);
  for (size_t at = 4096; at < good.size(); ++at) {  // checksum list, metadata, footer
    std::string bad = good;
    bad[at] ^= 0x40;
    WriteWhole(path, bad);
    const Status status = OpenStatus(path);
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.message.find(path) != std::string::npos);
  }
}

void TruncatedOrForeign() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, DType::kFloat32, {10, 10}, Bytes(400)));
  const std::string good = ReadWhole(path);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{400}, good.size() - 1}) {
    WriteWhole(path, good.substr(0, size));
    CHECK(OpenStatus(path).code == Code::kCorrupt);
  }
  WriteWhole(path, good.substr(1));  // whole footer, wrong size
  CHECK_FAILS(OpenStatus(path), Code::kCorrupt, "its footer says");
  WriteWhole(path, good + "x");
  CHECK_FAILS(OpenStatus(path), Code::kCorrupt, "no footer");
  CHECK_FAILS(OpenStatus(dir.File("missing")), Code::kNotFound, "missing");
  CHECK_FAILS(OpenStatus(dir.File("")), Code::kInvalid, "not a regular file");
}

void FlippedDataIsFoundByVerify() {
  TempDir dir;
  const std::string path = dir.File("t");
  const size_t size = (17 << 20) + 5;  // two whole blocks and a bit
  CHECK_OK(Write(path, DType::kUInt8, {static_cast<int64_t>(size)}, Bytes(size)));
  const std::string good = ReadWhole(path);
  for (const size_t at : {size_t{0}, size_t{9} << 20, size - 1}) {
    std::string bad = good;
    bad[at] ^= 1;
    WriteWhole(path, bad);
    auto table = TableFile::Open(path);
    CHECK_OK(table.status());  // opening does not read the data
    const uint64_t block = at / kBlockBytes * kBlockBytes;
    CHECK_FAILS(table.value()->VerifyChecksums(), Code::kCorrupt, "checksum of bytes " + std::to_string(block) + " to");
  }
}

void VerifyNoticesReplacement() {
  TempDir dir;
  const std::string path = dir.File("t");
  CHECK_OK(Write(path, DType::kUInt8, {4}, "abcd"));
  auto table = TableFile::Open(path);
  CHECK_OK(Write(path, DType::kUInt8, {5}, "abcde"));
  CHECK_FAILS(table.value()->VerifyChecksums(), Code::kInvalid, "replaced");
  CHECK_EQ(table.value()->data()[3], uint8_t{'d'});  // the old mapping lives on
}

void FullDiskLeavesNothingBehind() {
  TempDir dir;
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before;
  CHECK(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit small = before;
  small.rlim_cur = 1 << 20;
  CHECK(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string kept = dir.File("kept");
  CHECK_OK(Write(kept, DType::kUInt8, {4}, "abcd"));
  const Status dense = Write(kept, DType::kUInt8, {2 << 20}, Bytes(2 << 20));
  const int64_t row = 0;
  const Status sparse = WriteSurrogateTable(dir.File("s"), "s", DType::kUInt8, {2 << 20, 1}, &row, 1, "x");
  CHECK(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK_FAILS(dense, Code::kNoSpace, "kept");
  CHECK(sparse.code == Code::kNoSpace);
  CHECK_EQ(dir.Entries(), 1u);
  CHECK_EQ(TableFile::Open(kept).value()->bytes(), 4u);  // what was there before is untouched
}

void Surrogate() {
  TempDir dir;
  const std::string path = dir.File("s");
  const int64_t rows = int64_t{1} << 24;  // 4 GiB of 64 floats
  const std::vector<int64_t> ids = {0, 5, rows - 1};
  std::vector<float> data(3 * 64);
  std::iota(data.begin(), data.end(), 1.0f);
  CHECK_OK(WriteSurrogateTable(path, "s", DType::kFloat32, {rows, 64}, ids.data(), 3, data.data()));
  auto opened = TableFile::Open(path);
  CHECK_OK(opened.status());
  const TableFile& table = *opened.value();
  CHECK_EQ(table.bytes(), uint64_t{4} << 30);
  CHECK(!table.has_checksums());
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(std::memcmp(table.data() + ids[i] * 256, data.data() + i * 64, 256) == 0);
  }
  CHECK_EQ(table.data()[6 * 256], 0);
  CHECK_FAILS(table.VerifyChecksums(), Code::kInvalid, "without checksums");
  struct stat info;
  CHECK(::stat(path.c_str(), &info) == 0);
  CHECK(info.st_blocks < 2048);  // sparse: under 1 MiB on disk
  const int64_t outside = rows;
  CHECK_FAILS(WriteSurrogateTable(path, "s", DType::kFloat32, {rows, 64}, &outside, 1, data.data()), Code::kInvalid,
              "is not in [0, ");
  CHECK_OK(WriteSurrogateTable(path, "s", DType::kFloat32, {0, 64}, nullptr, 0, nullptr));
  CHECK_EQ(dir.Entries(), 1u);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::RoundTrip();
  tfctr::WidthAndRows();
  tfctr::FingerprintFollowsContent();
  tfctr::WrongAmountOfData();
  tfctr::EveryDamagedTailByteIsNoticed();
  tfctr::TruncatedOrForeign();
  tfctr::FlippedDataIsFoundByVerify();
  tfctr::VerifyNoticesReplacement();
  tfctr::FullDiskLeavesNothingBehind();
  tfctr::Surrogate();
  return 0;
}
