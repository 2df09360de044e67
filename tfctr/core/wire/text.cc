#include "tfctr/core/wire/text.h"

#include <cstring>
#include <vector>

namespace tfctr {

namespace {

// Bytes of the UTF-8 sequence at `at`, 0 when there is none.
size_t SequenceBytes(const uint8_t* at, size_t left) {
  const uint8_t first = at[0];
  if (first < 0x80) return 1;
  const auto follows = [&](size_t i, uint8_t low, uint8_t high) { return i < left && at[i] >= low && at[i] <= high; };
  if (first >= 0xC2 && first <= 0xDF) return follows(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const uint8_t low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;
    return follows(1, low, high) && follows(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const uint8_t low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2, 0x80, 0xBF) && follows(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

// Characters in the longest piece that both have, and in those before and after it.
size_t Matching(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return 0;
  std::vector<size_t> run(b.size() + 1, 0);  // length of the common piece that ends at b[j-1]
  size_t longest = 0, end_a = 0, end_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = b.size(); j > 0; --j) {
      run[j] = a[i] == b[j - 1] ? run[j - 1] + 1 : 0;
      if (run[j] > longest) {
        longest = run[j];
        end_a = i + 1;
        end_b = j;
      }
    }
  }
  if (longest == 0) return 0;
  return longest + Matching(a.substr(0, end_a - longest), b.substr(0, end_b - longest)) +
         Matching(a.substr(end_a), b.substr(end_b));
}

}  // namespace

bool IsUtf8(std::string_view text) {
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  size_t left = text.size();
  while (left >= sizeof(uint64_t)) {  // most text is ASCII
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    if ((word & 0x8080808080808080u) != 0) break;
    at += sizeof(word);
    left -= sizeof(word);
  }
  while (left > 0) {
    const size_t bytes = SequenceBytes(at, left);
    if (bytes == 0) return false;
    at += bytes;
    left -= bytes;
  }
  return true;
}

std::string ShownText(std::string_view text) {
  constexpr size_t kShown = 120;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown = "'";
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  size_t i = 0;
  while (i < text.size() && i < kShown) {
    const size_t bytes = SequenceBytes(at + i, text.size() - i);
    if (bytes == 0 || at[i] < 0x20 || at[i] == 0x7F) {
      shown += "\\x";
      shown += kDigits[at[i] >> 4];
      shown += kDigits[at[i] & 15];
      ++i;
      continue;
    }
    shown.append(text.data() + i, bytes);
    i += bytes;
  }
  return shown + (i < text.size() ? "'... (" + std::to_string(text.size()) + " bytes)" : "'");
}

double Likeness(std::string_view a, std::string_view b) {
  constexpr size_t kLongest = 80;  // a person's spelling mistake; more would be work that a client may give us
  if (a.size() + b.size() == 0) return 1;
  if (a.size() > kLongest || b.size() > kLongest) return 0;
  return 2.0 * static_cast<double>(Matching(a, b)) / static_cast<double>(a.size() + b.size());
}

}  // namespace tfctr
