// Numbers in the metadata of a container file.
// Thread-safety: pure functions.
#ifndef TFCTR_CORE_STORAGE_METADATA_FIELDS_H_
#define TFCTR_CORE_STORAGE_METADATA_FIELDS_H_

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

#include "tfctr/core/storage/file_format.h"

namespace tfctr {

// False, and `*out` unchanged, unless `key` is there and is all a number of that base.
template <typename Int>
bool ParseField(const Metadata& metadata, const char* key, Int* out, int base = 10) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return false;
  const char* end = it->second.data() + it->second.size();
  const auto [next, error] = std::from_chars(it->second.data(), end, *out, base);
  return error == std::errc() && next == end;
}

// "" when it is not there.
inline std::string TextField(const Metadata& metadata, const char* key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? std::string() : it->second;
}

inline uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_METADATA_FIELDS_H_
