#include "tfctr/core/runtime/py_compaction.h"

#include <memory>
#include <string>

#include "tfctr/core/runtime/py_progress.h"
#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/compaction.h"

namespace tfctr {

namespace py = pybind11;

namespace {

// Verifies what is read, so that damage never gets a new checksum.
Status CompactVerified(const std::string& path, const std::string& base_path, const std::string& overlay_path,
                       const HashFileProgress& progress) {
  Result<std::shared_ptr<const OverlayFile>> overlay = OverlayFile::Open(overlay_path);
  if (!overlay.ok()) return overlay.status();
  TFCTR_RETURN_IF_ERROR(overlay.value()->VerifyChecksums());
  TFCTR_RETURN_IF_ERROR(overlay.value()->VerifyIndex());
  Result<std::unique_ptr<Container>> container = Container::Open(base_path);
  if (!container.ok()) return container.status();
  TFCTR_RETURN_IF_ERROR(container.value()->VerifyChecksums());
  if (container.value()->kind() == FileKind::kTable) {
    Result<std::shared_ptr<const TableFile>> table = TableFile::FromContainer(container.Take());
    return table.ok() ? CompactTable(path, *table.value(), *overlay.value(), progress) : table.status();
  }
  Result<std::shared_ptr<const HashFile>> hash = HashFile::FromContainer(container.Take());
  if (!hash.ok()) return hash.status();
  TFCTR_RETURN_IF_ERROR(hash.value()->VerifyIndex());
  return CompactHash(path, *hash.value(), *overlay.value(), progress);
}

py::dict Compact(const py::object& path_object, const py::object& base, const py::object& overlay,
                 const py::object& progress) {
  const std::string path = PathOf(path_object), base_path = PathOf(base), overlay_path = PathOf(overlay);
  RunCopy(progress, [&](const auto& report) {
    uint64_t told = 0;
    return CompactVerified(path, base_path, overlay_path, [&](uint64_t done, uint64_t) {
      const uint64_t more = done - told;
      told = done;
      return report(more);
    });
  });
  return FileInfo(path);
}

}  // namespace

void BindCompaction(py::module_& module) {
  module.def(
      "compact_table", &Compact, py::arg("path"), py::arg("base"), py::arg("overlay"), py::arg("progress") = py::none(),
      "Writes at `path` the table or hash file `base` with the rows of its `overlay`; returns its file_info. The "
      "checksums of both are checked first. progress: called with bytes of rows done since the last call.");
}

}  // namespace tfctr
