// The lookup library without TensorFlow: generated lookups (test_cases.h) give the same bits with every instruction set
// and however the work is split; narrow tables; halves.
#include "tfctr/core/lookup/fused_lookup.h"

#include <cmath>
#include <string>
#include <vector>

#include "tfctr/core/lookup/test_cases.h"

namespace tfctr {
namespace {

void TestGeneratedCases() {
  const TempDir folder;
  std::vector<Stored> tables;
  for (const DType dtype : {DType::kFloat32, DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const int64_t width : {1, 5, 8, 16, 33, 64}) {
      const auto table = MakeTable(folder, dtype, width);
      tables.push_back({table, DType::kInvalid, table});
    }
  }
  for (const int64_t width : {1, 5, 8, 16, 33, 64}) {
    const auto wide = MakeTable(folder, DType::kFloat32, width);
    for (const DType storage : {DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
      tables.push_back(Narrow(folder, wide, storage));
    }
  }
  std::mt19937 random(7);
  int failed = 0;
  constexpr int kCases = 3000;
  for (int i = 0; i < kCases; ++i) {
    const Case c = MakeCase(random);
    const Stored& table = tables[random() % tables.size()];
    Status whole_status;
    const std::vector<char> whole = Execute(c, table.Values(), Isa::kBaseline, {}, &whole_status);
    failed += !whole_status.ok();
    if (!whole_status.ok()) CHECK(whole_status.message.find("lookup 'f'") == 0);
    for (int isa = 0; isa <= static_cast<int>(DetectedIsa()); ++isa) {
      Status status;
      const std::vector<char> split = Execute(c, table.Lies(), static_cast<Isa>(isa), {20, 45, 50, 80}, &status);
      CHECK_EQ(status.message, whole_status.message);
      if (status.ok()) CHECK(split == whole);
    }
  }
  CHECK(failed > kCases / 20 && failed < kCases / 2);  // both kinds were met
}

std::shared_ptr<const TableFile> WriteRows(const std::string& path, const std::vector<std::vector<float>>& rows) {
  auto writer = TableWriter::Create(path, "emb", DType::kFloat32, {int64_t(rows.size()), int64_t(rows.front().size())});
  CHECK_OK(writer.status());
  for (const auto& row : rows) CHECK_OK(writer.value()->Append(row.data(), row.size() * sizeof(float)));
  CHECK_OK(writer.value()->Finish());
  auto opened = TableFile::Open(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

void TestInt8Rows() {
  const TempDir folder;
  const float tiny = std::numeric_limits<float>::min();
  const std::string path = folder.File("int8");
  WriteRows(path, {{0.f, -0.f, 0.f}, {127.f, -63.5f, 0.4f}, {tiny, -tiny, 0.f}, {-254.f, 1.f, 3.f}});
  const auto result = NarrowTable(path, DType::kInt8, path + ".out", nullptr);
  CHECK_OK(result.status());
  const auto file = TableFile::Open(path + ".out").Take();
  CHECK(file->dtype() == DType::kUInt8 && file->shape() == (std::vector<int64_t>{4, 7}));
  const auto row = [&](int64_t k) { return file->data() + 7 * k; };
  const auto scale = [&](int64_t k) {
    float value;
    std::memcpy(&value, row(k), sizeof(value));
    return value;
  };
  const auto number = [&](int64_t k, int64_t c) { return static_cast<int>(static_cast<int8_t>(row(k)[4 + c])); };
  CHECK_EQ(scale(0), 0.f);
  CHECK_EQ(scale(1), 1.f);
  CHECK_EQ(scale(2), 0.f);  // it would be subnormal
  CHECK_EQ(scale(3), 2.f);
  CHECK_EQ(number(1, 0), 127);
  CHECK_EQ(number(1, 1), -64);  // a tie goes to even
  CHECK_EQ(number(1, 2), 0);
  CHECK_EQ(number(3, 0), -127);
  CHECK_EQ(number(3, 1), 0);
  CHECK_EQ(number(3, 2), 2);
  CHECK_EQ(result.value().max_abs_error, 1.0);
}

void TestNarrowRefusals() {
  const TempDir folder;
  const std::string path = folder.File("t");
  const float inf = std::numeric_limits<float>::infinity();
  WriteRows(path, {{1.f, 2.f}, {3.f, -inf}});
  CHECK_OK(NarrowTable(path, DType::kFloat16, path + ".ok", nullptr).status());  // halves have infinities
  CHECK_FAILS(NarrowTable(path, DType::kInt8, path + ".out", nullptr).status(), Code::kInvalid,
              "table 'emb': row 1 holds an infinity");
  CHECK_FAILS(NarrowTable(path, DType::kInt64, path + ".out", nullptr).status(), Code::kInvalid, "int64");
  CHECK_FAILS(NarrowTable(path, DType::kFloat16, path + ".out", [](uint64_t) { return false; }).status(),
              Code::kInvalid, "stopped");
  CHECK_FAILS(NarrowTable(path + ".ok", DType::kInt8, path + ".out", nullptr).status(), Code::kInvalid,
              "only float32 tables");
  CHECK(!TableFile::Open(path + ".out").ok());
}

void TestHalves() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Half half = {static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    if (std::isnan(value)) {
      CHECK(std::isnan(ToFloat(ToHalf(value))));
    } else {
      CHECK_EQ(ToHalf(value).bits, half.bits);
    }
    const BFloat16 brain = {static_cast<uint16_t>(bits)};
    if (!std::isnan(ToFloat(brain))) CHECK_EQ(ToBFloat16(ToFloat(brain)).bits, brain.bits);
  }
  CHECK_EQ(ToHalf(65519.99f).bits, 0x7bff);
  CHECK_EQ(ToHalf(65520.f).bits, 0x7c00);
  CHECK_EQ(ToHalf(std::ldexp(1.f, -25)).bits, 0);  // a tie goes to even
  CHECK_EQ(ToHalf(std::ldexp(1.5f, -25)).bits, 1);
  CHECK_EQ(ToHalf(1.f + std::ldexp(1.f, -11)).bits, 0x3c00);  // the same
  CHECK_EQ(ToHalf(1.f + std::ldexp(3.f, -11)).bits, 0x3c02);
  CHECK_EQ(ToBFloat16(1.f + std::ldexp(1.f, -8)).bits, 0x3f80);
  CHECK_EQ(ToBFloat16(1.f + std::ldexp(3.f, -8)).bits, 0x3f82);
}

void TestIsaNames() {
  CHECK_EQ(std::string(IsaName(Isa::kBaseline)), "baseline");
  CHECK_EQ(std::string(IsaName(Isa::kAvx512)), "avx512");
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestHalves();
  tfctr::TestInt8Rows();
  tfctr::TestNarrowRefusals();
  tfctr::TestIsaNames();
  tfctr::TestGeneratedCases();
  return 0;
}
