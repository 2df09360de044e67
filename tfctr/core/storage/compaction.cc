#include "tfctr/core/storage/compaction.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tfctr/core/storage/table_base.h"

namespace tfctr {
namespace {

constexpr int64_t kBlockKeys = 4096;
constexpr uint64_t kBlock = 8 << 20;
constexpr int64_t kGone = -1;

// A hash file's keys as the compacted file has them, and where the row of each is: rows of the base by number, those of
// the overlay behind them.
struct Sources {
  std::vector<int64_t> keys;
  std::vector<int64_t> numbers;
};

Status CollectKeys(const HashFile& base, const OverlayFile& overlay, Sources* sources) {
  OverlayIndex index = overlay.index();
  index.first_row = base.size();
  index.missing = kGone;
  const size_t total = static_cast<size_t>(base.size() - overlay.removed() + overlay.added());
  sources->keys.reserve(total);
  sources->numbers.reserve(total);
  int64_t keys[kBlockKeys];
  int64_t numbers[kBlockKeys];
  for (int64_t first = 0; first < base.size(); first += kBlockKeys) {
    const int64_t n = std::min(kBlockKeys, base.size() - first);
    TFCTR_RETURN_IF_ERROR(base.Keys(first, n, keys));
    for (int64_t i = 0; i < n; ++i) numbers[i] = first + i;
    index.Redirect(keys, static_cast<size_t>(n), numbers);
    for (int64_t i = 0; i < n; ++i) {
      if (numbers[i] == kGone) continue;
      sources->keys.push_back(keys[i]);
      sources->numbers.push_back(numbers[i]);
    }
  }
  for (int64_t first = 0; first < overlay.rows(); first += kBlockKeys) {
    const int64_t n = std::min(kBlockKeys, overlay.rows() - first);
    base.index().Find(overlay.keys() + first, static_cast<size_t>(n), numbers);
    for (int64_t i = 0; i < n; ++i) {
      if (numbers[i] != base.size()) continue;  // taken above
      sources->keys.push_back(overlay.keys()[first + i]);
      sources->numbers.push_back(base.size() + first + i);
    }
  }
  if (sources->keys.size() == total) return Status::Ok();
  return Status::Corrupt("'" + overlay.path() + "' is damaged: it gives table '" + base.name() + "' " +
                         std::to_string(sources->keys.size()) + " keys, expected " + std::to_string(total));
}

}  // namespace

Status CompactTable(const std::string& path, const TableFile& base, const OverlayFile& overlay,
                    const HashFileProgress& progress) {
  TFCTR_RETURN_IF_ERROR(overlay.CheckBase(BaseOf(base)));
  Result<std::unique_ptr<TableWriter>> writer = TableWriter::Create(path, base.name(), base.dtype(), base.shape());
  if (!writer.ok()) return writer.status();
  const uint64_t row_bytes = static_cast<uint64_t>(overlay.shape().row_bytes);
  const uint64_t block_rows = std::max<uint64_t>(1, kBlock / row_bytes);
  const uint64_t rows = static_cast<uint64_t>(base.rows());
  std::unique_ptr<uint8_t[]> block(new uint8_t[block_rows * row_bytes]);
  int64_t next = 0;  // of the overlay's rows, whose keys ascend
  for (uint64_t first = 0; first < rows; first += block_rows) {
    const uint64_t n = std::min(block_rows, rows - first);
    std::memcpy(block.get(), base.data() + first * row_bytes, n * row_bytes);
    for (; next < overlay.rows() && static_cast<uint64_t>(overlay.keys()[next]) < first + n; ++next) {
      const uint64_t id = static_cast<uint64_t>(overlay.keys()[next]);
      if (id < first) break;
      std::memcpy(block.get() + (id - first) * row_bytes, overlay.row(next), row_bytes);
    }
    TFCTR_RETURN_IF_ERROR(writer.value()->Append(block.get(), n * row_bytes));
    if (progress != nullptr && !progress((first + n) * row_bytes, rows * row_bytes)) return Status::Invalid("stopped");
  }
  if (next != overlay.rows()) {
    return Status::Corrupt("'" + overlay.path() + "' is damaged: " + std::to_string(overlay.keys()[next]) +
                           " at place " + std::to_string(next) + " is no row id of table '" + base.name() +
                           "', or does not ascend");
  }
  return writer.value()->Finish();
}

Status CompactHash(const std::string& path, const HashFile& base, const OverlayFile& overlay,
                   const HashFileProgress& progress) {
  TFCTR_RETURN_IF_ERROR(overlay.CheckBase(BaseOf(base)));
  Sources sources;
  TFCTR_RETURN_IF_ERROR(CollectKeys(base, overlay, &sources));
  HashFileSpec spec{base.name(), base.dim(), base.storage(), base.metadata(), 0};
  for (const char* field : {"step", "time_ms"}) {
    const auto newer = overlay.metadata().find(field);
    if (newer != overlay.metadata().end()) spec.extra[field] = newer->second;
  }
  const uint64_t stored = static_cast<uint64_t>(StoredRowBytes(base.storage(), base.dim()));
  const auto read = [&](int64_t first, int64_t n, uint8_t* rows) {
    for (int64_t i = first; i < first + n; ++i, rows += stored) {
      const int64_t number = sources.numbers[static_cast<size_t>(i)];
      const uint8_t* row =
          number < base.size() ? base.rows() + number * base.row_bytes() : overlay.row(number - base.size());
      std::memcpy(rows, row, stored);
    }
    return Status::Ok();
  };
  return WriteHashFile(path, spec, std::move(sources.keys), base.default_row(), read, progress);
}

}  // namespace tfctr
