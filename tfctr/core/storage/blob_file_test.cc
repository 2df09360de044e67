// Blob files: contents, fingerprint, sharing through the store, errors.
#include "tfctr/core/storage/blob_file.h"

#include <string>

#include "tfctr/core/storage/store.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

void Contents() {
  TempDir dir;
  const std::string bytes = std::string("any\0bytes", 9) + std::string(100000, 'x');
  WriteWhole(dir.File("b.onnx"), bytes);
  const auto blob = BlobFile::Open(dir.File("b.onnx")).Take();
  CHECK_EQ(std::string(reinterpret_cast<const char*>(blob->data()), blob->bytes()), bytes);
  CHECK_EQ(blob->name(), std::string("b.onnx"));
  CHECK_EQ(blob->fingerprint(), BlobFingerprint(bytes.data(), bytes.size()));
}

void Fingerprints() {
  CHECK_EQ(BlobFingerprint("123456789", 9), std::string("e306928300000009"));  // crc32c's check value
  CHECK(BlobFingerprint("123456789", 9) != BlobFingerprint("123456788", 9));
  CHECK_EQ(BlobFingerprint("", 0), std::string("0000000000000000"));
}

void Shared() {
  TempDir dir;
  Store store;
  WriteWhole(dir.File("b"), "abcd");
  const auto first = store.Blob(dir.File("b")).Take();
  CHECK(first == store.Blob(dir.File("b")).value());
  const auto stats = store.Stats();
  CHECK_EQ(stats.size(), 1u);
  CHECK_EQ(std::string(FileKindName(stats[0].kind)), std::string("blob"));
  CHECK_EQ(stats[0].bytes, 4u);
  WriteWhole(dir.File("c"), "wxyz");
  std::filesystem::rename(dir.File("c"), dir.File("b"));
  const auto fresh = store.Blob(dir.File("b")).Take();
  CHECK(first != fresh);
  CHECK_EQ(first->data()[0], uint8_t{'a'});  // its pages stay
}

void Errors() {
  TempDir dir;
  Store store;
  CHECK_FAILS(store.Blob(dir.File("gone")).status(), Code::kNotFound, "gone");
  WriteWhole(dir.File("empty"), "");
  CHECK_FAILS(store.Blob(dir.File("empty")).status(), Code::kCorrupt, "is empty");
  std::filesystem::create_directory(dir.File("folder"));
  CHECK_FAILS(store.Blob(dir.File("folder")).status(), Code::kInvalid, "not a regular file");
  CHECK(store.Stats().empty());
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Contents();
  tfctr::Fingerprints();
  tfctr::Shared();
  tfctr::Errors();
  return 0;
}
