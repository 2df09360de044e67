#include "tfctr/core/storage/hash_file_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/hash_plan.h"
#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;               // of rows asked for at a time
constexpr uint64_t kSmallWindow = uint64_t{32} << 20;  // one pass up to here

class Window {
 public:
  explicit Window(uint64_t bytes) : bytes_(bytes), data_(static_cast<uint8_t*>(MapMemory(bytes))) {}
  ~Window() { UnmapMemory(data_, bytes_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  uint8_t* data() { return data_; }

 private:
  const uint64_t bytes_;
  uint8_t* const data_;
};

uint64_t WindowRows(const HashFileSpec& spec, uint64_t stride, uint64_t rows) {
  uint64_t bytes = spec.window_bytes;
  if (bytes == 0) {
    bytes = std::max(kSmallWindow, (rows * stride + 1) / 2);
    bytes = std::min(bytes, std::max(kSmallWindow, static_cast<uint64_t>(MachineMemory() / 4)));
  }
  return std::clamp<uint64_t>((bytes + stride - 1) / stride, 1, rows);
}

Metadata FileMetadata(const HashFileSpec& spec, const HashPlan& plan, uint64_t index_offset) {
  char salt[17];
  std::snprintf(salt, sizeof(salt), "%016llx", static_cast<unsigned long long>(plan.salt));
  Metadata metadata = spec.extra;
  metadata["kind"] = "hash";
  metadata["name"] = spec.name;
  metadata["dim"] = std::to_string(spec.dim);
  metadata["dtype"] = "float32";
  metadata["storage"] = DTypeName(spec.storage);
  metadata["row_bytes"] = std::to_string(HashRowStride(spec.storage, spec.dim));
  metadata["rows"] = std::to_string(plan.numbers.size());
  metadata["homes"] = std::to_string(plan.homes);
  metadata["lines"] = std::to_string(plan.lines.size());
  metadata["salt"] = salt;
  metadata["index_offset"] = std::to_string(index_offset);
  return metadata;
}

// Writes all rows, the default row last, window by window.
class RowsWriter {
 public:
  RowsWriter(const HashFileSpec& spec, const HashPlan& plan, ContainerWriter* writer, const HashRowReader& read,
             const HashFileProgress& progress)
      : plan_(plan),
        writer_(writer),
        read_(read),
        progress_(progress),
        name_(spec.name),
        stored_(static_cast<uint64_t>(StoredRowBytes(spec.storage, spec.dim))),
        stride_(static_cast<uint64_t>(HashRowStride(spec.storage, spec.dim))),
        rows_(plan.numbers.size() + 1),
        window_rows_(WindowRows(spec, stride_, rows_)),
        block_(std::max<uint64_t>(1, kReadBytes / stored_)),
        window_(window_rows_ * stride_),
        buffer_(new uint8_t[std::min(block_, rows_) * stored_]) {}

  Status Run(const void* default_row) {
    if (window_.data() == nullptr) {
      return Status::Io("table '" + name_ + "': no memory for " + std::to_string(window_rows_ * stride_) +
                        " bytes of rows");
    }
    const uint64_t passes = (rows_ + window_rows_ - 1) / window_rows_;
    total_ = passes * plan_.numbers.size() * stored_;
    for (uint64_t begin = 0; begin < rows_; begin += window_rows_) {
      const uint64_t end = std::min(rows_, begin + window_rows_);
      TFCTR_RETURN_IF_ERROR(Fill(begin, end));
      if (end == rows_) std::memcpy(window_.data() + (rows_ - 1 - begin) * stride_, default_row, stored_);
      TFCTR_RETURN_IF_ERROR(writer_->Append(window_.data(), (end - begin) * stride_));
    }
    return Status::Ok();
  }

 private:
  // Bytes of padding are never touched, so they stay 0 in every window.
  Status Fill(uint64_t begin, uint64_t end) {
    const uint64_t keys = plan_.numbers.size();
    for (uint64_t at = 0; at < keys; at += block_) {
      const uint64_t n = std::min(block_, keys - at);
      TFCTR_RETURN_IF_ERROR(read_(static_cast<int64_t>(at), static_cast<int64_t>(n), buffer_.get()));
      const uint8_t* row = buffer_.get();
      for (uint64_t i = at; i < at + n; ++i, row += stored_) {
        const uint64_t place = plan_.numbers[i] - begin;  // below begin: wraps around
        if (place < end - begin) std::memcpy(window_.data() + place * stride_, row, stored_);
      }
      done_ += n * stored_;
      if (progress_ != nullptr && !progress_(done_, total_)) return Status::Invalid("stopped");
    }
    return Status::Ok();
  }

  const HashPlan& plan_;
  ContainerWriter* const writer_;
  const HashRowReader& read_;
  const HashFileProgress& progress_;
  const std::string& name_;
  const uint64_t stored_;
  const uint64_t stride_;
  const uint64_t rows_;  // with the default row
  const uint64_t window_rows_;
  const uint64_t block_;
  Window window_;
  std::unique_ptr<uint8_t[]> buffer_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

Status CheckHashFileSpec(const HashFileSpec& spec, int64_t rows) {
  const std::string table = "table '" + spec.name + "': ";
  if (spec.dim <= 0 || spec.dim > kMaxHashDim)
    return Status::Invalid(table + "dim is " + std::to_string(spec.dim) + ", expected 1 to " +
                           std::to_string(kMaxHashDim));
  if (StoredRowBytes(spec.storage, spec.dim) == 0) {
    return Status::Invalid(table + "rows can't be stored as " + DTypeName(spec.storage) +
                           ", expected float32, float16, bfloat16 or int8");
  }
  if (rows > kMaxHashRows) {
    return Status::Invalid(table + std::to_string(rows) + " rows, at most " + std::to_string(kMaxHashRows) +
                           " (2^32 - 1) fit into a hash file");
  }
  return Status::Ok();
}

Status WriteHashFile(const std::string& path, const HashFileSpec& spec, std::vector<int64_t> keys,
                     const void* default_row, const HashRowReader& read, const HashFileProgress& progress) {
  TFCTR_RETURN_IF_ERROR(CheckHashFileSpec(spec, static_cast<int64_t>(keys.size())));
  Result<HashPlan> plan = PlanHashFile(spec.name, keys);
  if (!plan.ok()) return plan.status();
  keys = std::vector<int64_t>();
  Result<std::unique_ptr<ContainerWriter>> container = ContainerWriter::Create(path, FileKind::kHash);
  if (!container.ok()) return container.status();
  ContainerWriter& writer = *container.value();
  TFCTR_RETURN_IF_ERROR(RowsWriter(spec, plan.value(), &writer, read, progress).Run(default_row));
  const char zeros[sizeof(HashLine)] = {};
  const uint64_t index_offset = (writer.bytes_written() + sizeof(HashLine) - 1) / sizeof(HashLine) * sizeof(HashLine);
  TFCTR_RETURN_IF_ERROR(writer.Append(zeros, index_offset - writer.bytes_written()));
  const std::vector<HashLine>& lines = plan.value().lines;
  TFCTR_RETURN_IF_ERROR(writer.Append(lines.data(), lines.size() * sizeof(HashLine)));
  return writer.Finish(FileMetadata(spec, plan.value(), index_offset));
}

}  // namespace tfctr
