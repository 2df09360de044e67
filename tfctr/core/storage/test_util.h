// Macros and helpers of the native tests of storage and what is built on it: statuses and files.
#ifndef TFCTR_CORE_STORAGE_TEST_UTIL_H_
#define TFCTR_CORE_STORAGE_TEST_UTIL_H_

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "tfctr/core/storage/status.h"
#include "tfctr/core/test_check.h"

#define CHECK_OK(expression)                                                                                  \
  do {                                                                                                        \
    const ::tfctr::Status check_status = (expression);                                                        \
    if (!check_status.ok()) {                                                                                 \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " #expression ": " << check_status.message << std::endl; \
      std::_Exit(1);                                                                                          \
    }                                                                                                         \
  } while (false)

// The expression's status has this code and its message contains `part`.
#define CHECK_FAILS(expression, expected_code, part)                                                                \
  do {                                                                                                              \
    const ::tfctr::Status check_status = (expression);                                                              \
    if (check_status.code != (expected_code) || check_status.message.find(part) == std::string::npos) {             \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " #expression ": code " << static_cast<int>(check_status.code) \
                << ", '" << check_status.message << "', expected '" << (part) << "'" << std::endl;                  \
      std::_Exit(1);                                                                                                \
    }                                                                                                               \
  } while (false)

namespace tfctr {

// A fresh directory that is removed with everything in it.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tfctr_test_XXXXXX").string();
    CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  size_t Entries() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::string path_;
};

inline std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

inline void WriteWhole(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good());
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_TEST_UTIL_H_
