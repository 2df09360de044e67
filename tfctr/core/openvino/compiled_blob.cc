#include "tfctr/core/openvino/compiled_blob.h"

#include <utility>
#include <vector>

#include "tfctr/core/storage/blob_file.h"

namespace tfctr {
namespace {

constexpr std::string_view kMagic = "tfctr openvino blob 1\n";
constexpr size_t kHeaderBytes = 4096;  // the payload starts on a page

std::vector<std::pair<std::string, std::string>> Lines(const BlobIdentity& identity) {
  return {{"onnx", identity.onnx},
          {"openvino", identity.version},
          {"isa", identity.isa},
          {"precision", identity.precision},
          {"rows", std::to_string(identity.rows)},
          {"users", std::to_string(identity.users)},
          {"threads", std::to_string(identity.threads)}};
}

// The next line without its end; false when there is none.
bool NextLine(std::string_view* text, std::string_view* line) {
  const size_t end = text->find('\n');
  if (end == std::string_view::npos) return false;
  *line = text->substr(0, end);
  *text = text->substr(end + 1);
  return true;
}

}  // namespace

std::string WrapBlob(const BlobIdentity& identity, std::string_view payload) {
  std::string file(kMagic);
  for (const auto& [key, value] : Lines(identity)) file += key + ' ' + value + '\n';
  file += "payload " + BlobFingerprint(payload.data(), payload.size()) + '\n';
  file.resize(kHeaderBytes, '\0');
  file += payload;
  return file;
}

Result<std::string_view> UnwrapBlob(const BlobIdentity& expected, std::string_view file) {
  if (file.size() <= kHeaderBytes || file.substr(0, kMagic.size()) != kMagic) {
    return Status::Corrupt("it is no compiled model that tfctr wrote");
  }
  const std::string_view payload = file.substr(kHeaderBytes);
  std::string_view header = file.substr(kMagic.size(), kHeaderBytes - kMagic.size());
  std::string_view line;
  for (const auto& [key, value] : Lines(expected)) {
    if (!NextLine(&header, &line) || line.substr(0, key.size() + 1) != key + ' ') {
      return Status::Corrupt("its header is damaged");
    }
    const std::string_view found = line.substr(key.size() + 1);
    if (found != value) {
      return Status::Invalid("it was made for " + key + ' ' + std::string(found) + ", not for " + value);
    }
  }
  if (!NextLine(&header, &line) || line != "payload " + BlobFingerprint(payload.data(), payload.size())) {
    return Status::Corrupt("its contents are damaged");
  }
  return payload;
}

}  // namespace tfctr
