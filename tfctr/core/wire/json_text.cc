#include "tfctr/core/wire/json_text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace tfctr {
namespace {

constexpr size_t kLongestKey = 80;
constexpr size_t kDeepestPath = 16;

enum Kind : uint8_t { kOther, kQuote, kOpen, kClose, kColon };

constexpr std::array<uint8_t, 256> MakeKinds() {
  std::array<uint8_t, 256> kinds{};
  kinds['"'] = kQuote;
  kinds['{'] = kinds['['] = kOpen;
  kinds['}'] = kinds[']'] = kClose;
  kinds[':'] = kColon;
  return kinds;
}

constexpr std::array<uint8_t, 256> kKinds = MakeKinds();

// The quote that ends the string whose first character is at `i`; the text's end where there is none.
size_t StringEnd(std::string_view text, size_t i) {
  while (i < text.size()) {
    const void* found = std::memchr(text.data() + i, '"', text.size() - i);
    if (found == nullptr) return text.size();
    const size_t quote = static_cast<const char*>(found) - text.data();
    size_t backslashes = 0;
    while (quote - backslashes > i && text[quote - backslashes - 1] == '\\') ++backslashes;
    if (backslashes % 2 == 0) return quote;
    i = quote + 1;
  }
  return text.size();
}

// An object or list that a position is inside of.
struct Level {
  bool object;
  int64_t index;
  std::string_view key;
};

std::string Join(const std::vector<Level>& levels, size_t deeper) {
  std::string path;
  for (const Level& level : levels) {
    if (!level.object) {
      path += "[" + std::to_string(level.index) + "]";
    } else if (!level.key.empty()) {
      if (!path.empty()) path += ".";
      path += level.key.substr(0, kLongestKey);
      if (level.key.size() > kLongestKey) path += "...";
    }
  }
  if (deeper > 0) path += "...";
  return path;
}

}  // namespace

JsonShape ScanJson(std::string_view text) {
  JsonShape shape;
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (kKinds[static_cast<uint8_t>(text[i])]) {
      case kQuote:
        i = StringEnd(text, i + 1);
        break;
      case kOpen:
        shape.depth = std::max(shape.depth, ++depth);
        break;
      case kClose:
        --depth;
        break;
      case kColon:
        ++shape.keys;
        break;
      default:
        break;
    }
  }
  return shape;
}

std::string JsonPath(std::string_view text, size_t position) {
  text = text.substr(0, position);
  std::vector<Level> levels;
  size_t deeper = 0;  // levels that are not kept
  std::string_view last;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const size_t end = StringEnd(text, i + 1);
      if (end == text.size()) break;  // the position is inside this string
      last = text.substr(i + 1, end - i - 1);
      i = end;
    } else if (c == '{' || c == '[') {
      if (levels.size() < kDeepestPath && deeper == 0) {
        levels.push_back({c == '{', 0, {}});
      } else {
        ++deeper;
      }
    } else if (c == '}' || c == ']') {
      if (deeper > 0) {
        --deeper;
      } else if (!levels.empty()) {
        levels.pop_back();
      }
    } else if (deeper == 0 && !levels.empty()) {
      if (c == ':') levels.back().key = last;
      if (c == ',') {
        ++levels.back().index;
        levels.back().key = {};
      }
    }
  }
  return Join(levels, deeper);
}

}  // namespace tfctr
