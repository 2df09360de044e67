#include "tfctr/core/openvino/variant.h"

#include <exception>

namespace tfctr {
namespace {

// OpenVINO's messages have many lines, with paths of its sources.
std::string OneLine(const std::string& text) {
  std::string line;
  bool space = false;
  for (const char c : text) {
    const bool blank = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!blank) {
      if (space && !line.empty()) line += ' ';
      line += c;
    }
    space = blank;
  }
  constexpr size_t kMost = 600;
  return line.size() > kMost ? line.substr(0, kMost) + "..." : line;
}

}  // namespace

Status Guarded(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Status::Invalid("OpenVINO: " + OneLine(error.what()));
  }
}

}  // namespace tfctr
