// Python face of deltas, overlays and served tables.
#ifndef TFCTR_CORE_RUNTIME_PY_OVERLAYS_H_
#define TFCTR_CORE_RUNTIME_PY_OVERLAYS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>

#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/table_base.h"

namespace tfctr {

using Int64Keys = pybind11::array_t<int64_t, pybind11::array::c_style>;

// Any array of whole numbers that int64 holds, or an empty list; else ValueError, which begins with `what`.
Int64Keys KeysOf(const pybind11::object& value, const char* what);
// Bytes of one row without padding.
int64_t StoredBytes(const RowShape& shape);
pybind11::dict OverlayInfo(const OverlayFile& overlay);

// Adds write_delta_file, delta_info, read_delta, build_overlay, overlay_info, read_overlay, the classes MemoryOverlay
// and ServedTable, and how tables are kept in memory.
void BindOverlays(pybind11::module_& module);
// Part of it.
void BindServedTable(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_OVERLAYS_H_
