// Options of the provider and the page in front of its compiled models: no OpenVINO needed.
#include "tfctr/core/openvino/options.h"

#include <string>

#include "tfctr/core/openvino/compiled_blob.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

void Buckets() {
  const auto options =
      OpenVinoOptions::Parse(R"({"buckets": [64, 8, 8], "pad": {"8": 3, "64": 50}, "chunk": 64})").Take();
  CHECK_EQ(options.buckets.size(), 2u);
  const std::pair<int64_t, int64_t> expected[] = {{1, 0}, {2, 0}, {3, 8}, {8, 8}, {9, 0}, {49, 0}, {50, 64}, {64, 64}};
  for (const auto& [rows, bucket] : expected) CHECK_EQ(options.BucketFor(rows), bucket);
  CHECK_EQ(options.BucketFor(65), 0);
  const std::pair<int64_t, int64_t> pieces[] = {{0, 0}, {1, 0}, {8, 0}, {64, 0}, {65, 1}, {128, 1}, {129, 2}};
  for (const auto& [rows, whole] : pieces) CHECK_EQ(options.WholePieces(rows), whole);
  CHECK_EQ(OpenVinoOptions::Parse("").Take().BucketFor(7), 0);
  CHECK_EQ(OpenVinoOptions::Parse("{}").Take().WholePieces(7), 0);

  const auto fixed = OpenVinoOptions::Parse(R"({"buckets": [8, 16], "dynamic": false, "users": 2})").Take();
  CHECK_EQ(fixed.BucketFor(1), 8);
  CHECK_EQ(fixed.BucketFor(9), 16);
  CHECK_EQ(fixed.BucketFor(17), -1);
  CHECK_EQ(fixed.users, 2);
}

void Refused() {
  const auto fails = [](const std::string& text, const std::string& part) {
    CHECK_FAILS(OpenVinoOptions::Parse(text).status(), Code::kInvalid, part);
  };
  fails("{", "is no JSON");
  fails("[]", "no JSON object");
  fails(R"({"nothing": 1})", "no option 'nothing'");
  fails(R"({"buckets": [1.5]})", "'buckets'");
  fails(R"({"buckets": [1e300]})", "'buckets'");
  fails(R"({"pad": {"8": 3}})", "'pad'");
  fails(R"({"buckets": [8], "pad": {"8": 0}})", "'pad'");
  fails(R"({"chunk": 4})", "'chunk'");
  fails(R"({"contexts": 2000})", "'contexts'");
  fails(R"({"dynamic": false})", "'buckets'");
}

void Blobs() {
  const BlobIdentity identity{"0123456789abcdef", "2026.1-7", "avx2", "fp32", 32, 1, 1};
  const std::string payload(5000, 'p');
  const std::string file = WrapBlob(identity, payload);
  CHECK_EQ(std::string(UnwrapBlob(identity, file).Take()), payload);
  const auto other = [&](BlobIdentity changed, const std::string& part) {
    CHECK_FAILS(UnwrapBlob(changed, file).status(), Code::kInvalid, part);
  };
  BlobIdentity changed = identity;
  changed.isa = "amx_bf16";
  other(changed, "it was made for isa avx2, not for amx_bf16");
  changed = identity;
  changed.rows = 0;
  other(changed, "made for rows 32, not for 0");
  changed = identity;
  changed.version = "2027.1-7";
  other(changed, "openvino 2026.1-7");
  for (size_t at : {size_t{0}, size_t{30}, size_t{5000}, file.size() - 1}) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    CHECK(!UnwrapBlob(identity, damaged).ok());
  }
  for (size_t size : {size_t{0}, size_t{10}, size_t{4096}, file.size() - 1}) {
    CHECK_FAILS(UnwrapBlob(identity, file.substr(0, size)).status(), Code::kCorrupt, "");
  }
}

void FilledRows() {
  int64_t before = 0;
  int sizes = 0;
  for (int64_t rows = 1; rows <= 4096; ++rows) {
    const int64_t filled = OpenVinoOptions::FilledRows(rows);
    CHECK(filled >= rows && filled >= before);
    CHECK(rows > 32 ? (filled - rows) * 16 < rows : filled == rows);
    CHECK_EQ(OpenVinoOptions::FilledRows(filled), filled);
    sizes += filled != before;
    before = filled;
  }
  CHECK_EQ(sizes, 32 + 7 * 16);
  for (int64_t rows : {64, 128, 256, 320, 512, 1024, 4096}) CHECK_EQ(OpenVinoOptions::FilledRows(rows), rows);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Buckets();
  tfctr::FilledRows();
  tfctr::Refused();
  tfctr::Blobs();
  return 0;
}
