#include "tfctr/core/runtime/table_parts.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tfctr/core/runtime/checkpoint_index.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/file_io.h"
#include "tfctr/core/storage/table_file.h"

namespace tfctr {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{8} << 20;

// One part: its metadata (from the opened file) and a descriptor to read it with.
struct Part {
  std::shared_ptr<const TableFile> table;
  UniqueFd fd;
  uint64_t row_bytes = 0;

  Status Read(uint64_t row, uint64_t rows, uint8_t* out) const {
    return ReadAt(fd, table->path(), row * row_bytes, out, rows * row_bytes);
  }
};

std::string Shape(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

Status OpenParts(const std::vector<std::string>& paths, std::vector<Part>* parts) {
  if (paths.empty()) return Status::Invalid("no parts to merge");
  for (const std::string& path : paths) {
    Part part;
    Result<std::shared_ptr<const TableFile>> table = TableFile::Open(path);
    if (!table.ok()) return table.status();
    part.table = table.Take();
    Result<UniqueFd> fd = OpenForRead(path);
    if (!fd.ok()) return fd.status();
    part.fd = fd.Take();
    const std::vector<int64_t> shape = part.table->shape();
    if (shape.empty()) return Status::Invalid("'" + path + "' is a scalar, not a part of a table");
    part.row_bytes = static_cast<uint64_t>(part.table->width()) * DTypeSize(part.table->dtype());
    parts->push_back(std::move(part));
    const TableFile& first = *parts->front().table;
    const bool same_rows =
        shape.size() == first.shape().size() && std::equal(shape.begin() + 1, shape.end(), first.shape().begin() + 1);
    if (!same_rows) {
      return Status::Invalid("'" + path + "' is " + Shape(shape) + ", another part is " + Shape(first.shape()));
    }
    if (parts->back().table->dtype() != first.dtype()) {
      return Status::Invalid("'" + path + "' has another dtype than the first part");
    }
  }
  return Status::Ok();
}

Status Concatenate(const std::vector<Part>& parts, TableWriter* writer) {
  std::vector<uint8_t> block(kBlockBytes);
  for (const Part& part : parts) {
    const uint64_t bytes = part.table->bytes();
    for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
      const uint64_t n = std::min(kBlockBytes, bytes - at);
      TFCTR_RETURN_IF_ERROR(ReadAt(part.fd, part.table->path(), at, block.data(), n));
      TFCTR_RETURN_IF_ERROR(writer->Append(block.data(), n));
    }
  }
  return Status::Ok();
}

Status Interleave(const std::vector<Part>& parts, TableWriter* writer) {
  const uint64_t count = parts.size();
  const uint64_t row_bytes = parts.front().row_bytes;
  const uint64_t most = static_cast<uint64_t>(parts.front().table->rows());
  const uint64_t step = std::max<uint64_t>(1, kBlockBytes / std::max<uint64_t>(1, row_bytes * count));
  std::vector<uint8_t> in(step * row_bytes);
  std::vector<uint8_t> out(step * row_bytes * count);
  for (uint64_t row = 0; row < most; row += step) {
    uint64_t rows_out = 0;
    for (uint64_t p = 0; p < count; ++p) {
      const uint64_t have = static_cast<uint64_t>(parts[p].table->rows());
      const uint64_t n = have > row ? std::min(step, have - row) : 0;
      if (n == 0) continue;
      TFCTR_RETURN_IF_ERROR(parts[p].Read(row, n, in.data()));
      for (uint64_t k = 0; k < n; ++k) {
        std::memcpy(out.data() + (k * count + p) * row_bytes, in.data() + k * row_bytes, row_bytes);
      }
      rows_out += n;
    }
    TFCTR_RETURN_IF_ERROR(writer->Append(out.data(), rows_out * row_bytes));
  }
  return Status::Ok();
}

// Rows of interleaved parts: all equal, or one less from some part on.
Status CheckInterleaved(const std::vector<Part>& parts) {
  const int64_t first = parts.front().table->rows();
  int64_t before = first;
  for (const Part& part : parts) {
    const int64_t rows = part.table->rows();
    if (rows > before || rows < first - 1) {
      return Status::Invalid("parts of " + std::to_string(before) + " and " + std::to_string(rows) +
                             " rows can't be interleaved");
    }
    before = rows;
  }
  return Status::Ok();
}

}  // namespace

Status CopyPartToTable(const std::string& prefix, const std::string& key, const std::vector<int64_t>& start,
                       const std::vector<int64_t>& length, const std::string& out_path, const std::string& name,
                       const CopyProgress& progress) {
  const Result<CheckpointIndex> index = ReadCheckpointIndex(prefix);
  if (!index.ok()) return index.status();
  const Result<const CheckpointEntry*> found = FindEntry(index.value(), prefix, key);
  if (!found.ok()) return found.status();
  const CheckpointEntry& entry = *found.value();
  const DType dtype = DTypeFromName(TypeName(entry.dtype));
  if (dtype == DType::kInvalid) {
    return Status::Invalid("tensor '" + key + "' is " + TypeName(entry.dtype) + ", which a table file cannot hold");
  }
  for (const CheckpointSlice& slice : entry.slices) {
    if (slice.start != start || slice.length != length) continue;
    Result<std::unique_ptr<TableWriter>> writer = TableWriter::Create(out_path, name, dtype, length);
    if (!writer.ok()) return writer.status();
    TFCTR_RETURN_IF_ERROR(CopyCheckpointTensor(slice.extent, writer.value().get(), progress));
    return writer.value()->Finish();
  }
  return Status::Invalid("tensor '" + key + "' of '" + prefix + "' is not stored with a part " + Shape(length) +
                         " at " + Shape(start));
}

Status MergeTables(const std::vector<std::string>& paths, MergeOrder order, const std::string& out_path,
                   const std::string& name) {
  std::vector<Part> parts;
  TFCTR_RETURN_IF_ERROR(OpenParts(paths, &parts));
  if (order == MergeOrder::kInterleave) TFCTR_RETURN_IF_ERROR(CheckInterleaved(parts));
  std::vector<int64_t> shape = parts.front().table->shape();
  shape[0] = 0;
  for (const Part& part : parts) shape[0] += part.table->rows();
  Result<std::unique_ptr<TableWriter>> writer =
      TableWriter::Create(out_path, name, parts.front().table->dtype(), shape);
  if (!writer.ok()) return writer.status();
  TFCTR_RETURN_IF_ERROR(order == MergeOrder::kInterleave ? Interleave(parts, writer.value().get())
                                                         : Concatenate(parts, writer.value().get()));
  return writer.value()->Finish();
}

}  // namespace tfctr
