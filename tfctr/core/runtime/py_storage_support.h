// What the Python faces of the storage library share: statuses become exceptions, paths become strings.
#ifndef TFCTR_CORE_RUNTIME_PY_STORAGE_SUPPORT_H_
#define TFCTR_CORE_RUNTIME_PY_STORAGE_SUPPORT_H_

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "tfctr/core/storage/status.h"

namespace tfctr {

// Raises the Python exception of a status: ValueError, FileNotFoundError, OSError (errno EIO, ENOSPC), CorruptFile or
// VersionError (a file of another format).
[[noreturn]] void Raise(const Status& status);

// Raises unless ok.
void Check(const Status& status);

// The value, or raises.
template <typename T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return result.Take();
}

// A str, bytes or os.PathLike as a string.
std::string PathOf(const pybind11::object& path);

// The dict that `file_info` returns.
pybind11::dict FileInfo(const std::string& path);

// Adds the functions over hash files and the class HashTable; called by BindStorage.
void BindHashTables(pybind11::module_& module);

// Adds the functions over checkpoints; called by BindStorage.
void BindCheckpoint(pybind11::module_& module);

// Adds what the checkpoint tools need; called by BindStorage.
void BindCheckpointTools(pybind11::module_& module);

// Adds the comparison that deltas are made by; called by BindStorage.
void BindDiff(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_STORAGE_SUPPORT_H_
