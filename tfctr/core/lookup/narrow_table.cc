#include "tfctr/core/lookup/narrow_table.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tfctr/core/lookup/row_format.h"
#include "tfctr/core/lookup/row_narrowing.h"
#include "tfctr/core/storage/file_io.h"
#include "tfctr/core/storage/table_file.h"

namespace tfctr {
namespace {

// Passes bytes on to a table writer in whole blocks: the kernel keeps a file that is written so in large pages, and a
// lookup in it has fewer TLB misses (measured: 40 % of its time for rows of 68 bytes).
class BlockWriter {
 public:
  BlockWriter(TableWriter* writer, const std::function<bool(uint64_t)>& progress)
      : writer_(writer), progress_(progress) {
    block_.reserve(kBlockBytes);
  }
  // False: stopped by the progress callback.
  Result<bool> Write(const uint8_t* data, uint64_t bytes) {
    while (bytes > 0) {
      const uint64_t n = std::min<uint64_t>(bytes, kBlockBytes - block_.size());
      block_.insert(block_.end(), data, data + n);
      data += n;
      bytes -= n;
      if (block_.size() < kBlockBytes) continue;
      const Result<bool> flushed = Flush();
      if (!flushed.ok() || !flushed.value()) return flushed;
    }
    return true;
  }
  Result<bool> Flush() {
    if (block_.empty()) return true;
    const uint64_t bytes = block_.size();
    TFCTR_RETURN_IF_ERROR(writer_->Append(block_.data(), bytes));
    block_.clear();
    return !progress_ || progress_(bytes);
  }

 private:
  TableWriter* const writer_;
  const std::function<bool(uint64_t)>& progress_;
  std::vector<uint8_t> block_;
};

std::vector<int64_t> FileShape(const TableFile& table, DType storage) {
  if (storage != DType::kInt8) return table.shape();
  return {table.rows(), FileWidth(table.width(), storage)};
}

}  // namespace

Result<NarrowResult> NarrowTable(const std::string& in_path, DType storage, const std::string& out_path,
                                 const std::function<bool(uint64_t)>& progress) {
  Result<std::shared_ptr<const TableFile>> opened = TableFile::Open(in_path);
  if (!opened.ok()) return opened.status();
  const TableFile& table = *opened.value();
  const RowNarrower write = RowNarrowerOf(storage);
  const auto fail = [&](const std::string& what) { return Status::Invalid("table '" + table.name() + "': " + what); };
  if (write == nullptr) return fail(std::string("can't be stored as ") + DTypeName(storage));
  if (table.dtype() != DType::kFloat32 || table.shape().empty()) {
    return fail(std::string("only float32 tables with rows are stored as ") + DTypeName(storage));
  }
  Result<UniqueFd> fd = OpenForRead(in_path);
  if (!fd.ok()) return fd.status();
  const DType dtype = FileDType(table.dtype(), storage);
  Result<std::unique_ptr<TableWriter>> writer =
      TableWriter::Create(out_path, table.name(), dtype, FileShape(table, storage));
  if (!writer.ok()) return writer.status();
  const int64_t width = table.width();
  const uint64_t in_bytes = static_cast<uint64_t>(width) * sizeof(float);
  const uint64_t out_bytes = static_cast<uint64_t>(FileWidth(width, storage)) * DTypeSize(dtype);
  const int64_t step = static_cast<int64_t>(std::max<uint64_t>(1, kBlockBytes / std::max<uint64_t>(1, in_bytes)));
  const uint64_t most = static_cast<uint64_t>(std::min(step, table.rows()));
  std::vector<float> in(most * static_cast<uint64_t>(width));
  std::vector<uint8_t> out(most * out_bytes);
  NarrowResult result;
  BlockWriter blocks(writer.value().get(), progress);
  const auto go_on = [&fail](const Result<bool>& written) {
    if (!written.ok()) return written.status();
    return written.value() ? Status::Ok() : fail("stopped");
  };
  for (int64_t row = 0; row < table.rows(); row += step) {
    const int64_t rows = std::min(step, table.rows() - row);
    const uint64_t at = static_cast<uint64_t>(row) * in_bytes;
    TFCTR_RETURN_IF_ERROR(ReadAt(fd.value(), in_path, at, in.data(), static_cast<uint64_t>(rows) * in_bytes));
    for (int64_t k = 0; k < rows; ++k) {
      const std::string wrong =
          write(in.data() + k * width, width, out.data() + static_cast<uint64_t>(k) * out_bytes, &result.max_abs_error);
      if (!wrong.empty()) {
        return fail("row " + std::to_string(row + k) + " " + wrong + ", so it can't be stored as " +
                    DTypeName(storage));
      }
    }
    TFCTR_RETURN_IF_ERROR(go_on(blocks.Write(out.data(), static_cast<uint64_t>(rows) * out_bytes)));
  }
  TFCTR_RETURN_IF_ERROR(go_on(blocks.Flush()));
  TFCTR_RETURN_IF_ERROR(writer.value()->Finish());
  return result;
}

}  // namespace tfctr
