#include "tfctr/core/lookup/table_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tfctr/core/lookup/row_format.h"
#include "tfctr/core/lookup/row_narrowing.h"
#include "tfctr/core/storage/dtype.h"

namespace tfctr {
namespace {

constexpr uint64_t kBlockOfRows = uint64_t{4} << 20;  // bytes that are read at a time
constexpr int64_t kMostRows = 64 << 10;
constexpr int64_t kAhead = 16;        // rows in flight
constexpr int64_t kSampleEvery = 64;  // of trusted rows, one in so many is compared

void Prefetch(const uint8_t* row, uint64_t bytes) {
  for (uint64_t at = 0; at < std::min<uint64_t>(bytes, 256); at += 64) __builtin_prefetch(row + at);
}

}  // namespace

TableDiff::TableDiff(std::shared_ptr<const ServedTable> base, const DiffOptions& options, DeltaFileWriter* writer)
    : base_(std::move(base)), options_(options), writer_(writer) {}

Result<std::unique_ptr<TableDiff>> TableDiff::Make(std::shared_ptr<const ServedTable> base, const DiffOptions& options,
                                                   DeltaFileWriter* writer) {
  const RowShape& shape = base->shape();
  // A narrow static table is a file of the narrow dtype; int8 rows are uint8 elements there and int8 in hash files.
  const DType stored =
      !shape.hashed && shape.dtype == DType::kUInt8 && options.dtype == DType::kFloat32 ? DType::kInt8 : shape.dtype;
  const bool narrow = stored != options.dtype;
  const int64_t width = stored == DType::kInt8 && narrow && !shape.hashed ? shape.width - kScaleBytes : shape.width;
  if ((narrow && (options.dtype != DType::kFloat32 || RowNarrowerOf(stored) == nullptr)) || width != options.width) {
    return Status::Invalid("table '" + base->name() + "' holds " + RowShapeText(shape) + ", the new rows are " +
                           DTypeName(options.dtype) + " x " + std::to_string(options.width));
  }
  std::unique_ptr<TableDiff> made(new TableDiff(std::move(base), options, writer));
  const ServedTable& table = *made->base_;
  made->narrow_ = narrow;
  made->in_bytes_ = DTypeSize(options.dtype) * static_cast<uint64_t>(options.width);
  made->stored_bytes_ =
      narrow ? DTypeSize(FileDType(options.dtype, stored)) * static_cast<uint64_t>(FileWidth(options.width, stored))
             : made->in_bytes_;
  made->unknown_ = table.hashed() ? table.base_rows() - 1 : -1;
  made->seen_.assign(static_cast<size_t>(table.rows() + 63) / 64, 0);
  made->counts_.base_rows = table.size();
  return made;
}

Status TableDiff::Named(Status status) const {
  if (!status.ok()) status.message = "table '" + base_->name() + "': " + status.message;
  return status;
}

Status TableDiff::Compare(RowSource* source, const std::function<bool(uint64_t)>& progress) {
  const uint64_t expected = source->stored() ? stored_bytes_ : in_bytes_;
  if (source->row_bytes() != expected) {
    return Named(Status::Invalid("the new rows have " + std::to_string(source->row_bytes()) + " bytes, expected " +
                                 std::to_string(expected)));
  }
  const int64_t most =
      std::clamp<int64_t>(static_cast<int64_t>(kBlockOfRows / std::max<uint64_t>(1, expected)), 1, kMostRows);
  keys_.resize(static_cast<size_t>(most));
  numbers_.resize(keys_.size());
  steps_.resize(keys_.size());
  rows_.resize(keys_.size() * expected);
  for (int64_t left = source->rows(); left > 0;) {
    const int64_t n = std::min(left, most);
    TFCTR_RETURN_IF_ERROR(Named(source->Read(n, keys_.data(), rows_.data(), steps_.data())));
    TFCTR_RETURN_IF_ERROR(Named(Block(*source, n)));
    left -= n;
    if (progress && !progress(static_cast<uint64_t>(n) * expected)) return Named(Status::Invalid("stopped"));
  }
  return Status::Ok();
}

Status TableDiff::Block(const RowSource& source, int64_t n) {
  const uint64_t in_bytes = source.row_bytes();
  const bool narrow = narrow_ && !source.stored();
  const bool has_steps = options_.with_steps && source.has_last_step();
  base_->Find(keys_.data(), static_cast<size_t>(n), numbers_.data());
  out_keys_.clear();
  out_rows_.clear();
  std::vector<uint8_t> stored(stored_bytes_);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      // A row id may be any number here; only the address of one that is in the table is formed.
      const int64_t next = numbers_[i + kAhead];
      if (next >= 0 && next < base_->rows()) Prefetch(base_->data() + next * base_->row_bytes(), stored_bytes_);
    }
    const int64_t key = keys_[i], number = numbers_[i];
    const bool known = number != unknown_;
    TFCTR_RETURN_IF_ERROR(Mark(key, number, known));
    const bool trusted = known && Trusted(i, has_steps);
    if (trusted && counts_.trusted++ % kSampleEvery != 0) continue;
    const uint8_t* row = rows_.data() + static_cast<uint64_t>(i) * in_bytes;
    if (narrow) {
      TFCTR_RETURN_IF_ERROR(ToStored(i, row, stored.data()));
      row = stored.data();
    }
    if (known && std::memcmp(row, base_->data() + number * base_->row_bytes(), stored_bytes_) == 0) continue;
    if (trusted) {
      return Status::Invalid("the last steps can't be trusted: the row of key " + std::to_string(key) +
                             " was last updated in step " + std::to_string(steps_[i]) +
                             ", before the served table's step " + std::to_string(options_.base_step) +
                             ", and yet it differs");
    }
    ++(known ? counts_.changed : counts_.added);
    if (known && has_steps && steps_[i] < options_.base_step) ++counts_.old_steps;
    if (!source.stored()) CountFinite(key, rows_.data() + static_cast<uint64_t>(i) * in_bytes);
    out_keys_.push_back(key);
    out_rows_.insert(out_rows_.end(), row, row + stored_bytes_);
  }
  counts_.rows += n;
  if (out_keys_.empty()) return Status::Ok();
  return writer_->Add(out_keys_.data(), static_cast<int64_t>(out_keys_.size()), out_rows_.data(),
                      static_cast<int64_t>(stored_bytes_));
}

bool TableDiff::Trusted(int64_t i, bool has_steps) {
  return options_.trust && has_steps && steps_[i] < options_.base_step;
}

Status TableDiff::ToStored(int64_t i, const uint8_t* row, uint8_t* out) {
  const DType stored = base_->shape().dtype == DType::kUInt8 ? DType::kInt8 : base_->shape().dtype;
  double error = 0.0;
  const std::string wrong = RowNarrowerOf(stored)(reinterpret_cast<const float*>(row), options_.width, out, &error);
  if (wrong.empty()) return Status::Ok();
  return Status::Invalid(std::string(base_->hashed() ? "the row of key " : "row ") + std::to_string(keys_[i]) + " " +
                         wrong + ", so it can't be stored as " + DTypeName(stored));
}

Status TableDiff::Mark(int64_t key, int64_t number, bool known) {
  if (!known) return Status::Ok();  // one that comes twice is found when the delta is sorted
  if (!base_->hashed() && (key < 0 || key >= base_->base_rows())) {
    return Status::Corrupt("row " + std::to_string(key) + " of the new rows is outside its " +
                           std::to_string(base_->base_rows()) + " rows");
  }
  uint64_t& word = seen_[static_cast<size_t>(number) / 64];
  const uint64_t bit = uint64_t{1} << (number % 64);
  if ((word & bit) != 0) {
    return Status::Corrupt(std::string("the new rows hold ") + (base_->hashed() ? "key " : "row ") +
                           std::to_string(key) + " twice");
  }
  word |= bit;
  ++seen_count_;
  return Status::Ok();
}

void TableDiff::CountFinite(int64_t key, const uint8_t* row) {
  if (options_.dtype != DType::kFloat32) return;
  const auto* values = reinterpret_cast<const float*>(row);
  for (int64_t c = 0; c < options_.width; ++c) {
    if (std::isfinite(values[c])) continue;
    if (counts_.nonfinite++ == 0) counts_.first_nonfinite = key;
    return;
  }
}

Status TableDiff::Finish() {
  if (seen_count_ == counts_.base_rows) return Status::Ok();
  if (!base_->hashed()) {
    return Named(Status::Corrupt("the new state has " + std::to_string(seen_count_) + " of its " +
                                 std::to_string(counts_.base_rows) + " rows"));
  }
  TFCTR_RETURN_IF_ERROR(RemoveUnseen(0, base_->hash()->size(), [this](int64_t first, int64_t n, int64_t* keys) {
    return base_->hash()->Keys(first, n, keys);
  }));
  const OverlayFile* overlay = base_->overlay_file().get();
  if (overlay == nullptr) return Status::Ok();
  const int64_t first_row = base_->overlay()->first_row;
  return RemoveUnseen(first_row, first_row + overlay->rows(), [&](int64_t first, int64_t n, int64_t* keys) {
    std::copy_n(overlay->keys() + (first - first_row), n, keys);
    return Status::Ok();
  });
}

// Numbers [first, last): those that no newer row had, and that are what a lookup of their key finds.
Status TableDiff::RemoveUnseen(int64_t first, int64_t last,
                               const std::function<Status(int64_t, int64_t, int64_t*)>& keys_of) {
  constexpr int64_t kBlock = 4096;
  std::vector<int64_t> keys(kBlock), numbers(kBlock), gone;
  for (int64_t at = first; at < last; at += kBlock) {
    const int64_t n = std::min(kBlock, last - at);
    const auto seen = [&](int64_t number) { return ((seen_[static_cast<size_t>(number) / 64] >> (number % 64)) & 1); };
    bool all = true;
    for (int64_t k = 0; k < n && all; ++k) all = seen(at + k) != 0;
    if (all) continue;
    TFCTR_RETURN_IF_ERROR(Named(keys_of(at, n, keys.data())));
    base_->Find(keys.data(), static_cast<size_t>(n), numbers.data());
    gone.clear();
    for (int64_t k = 0; k < n; ++k) {
      if (seen(at + k) == 0 && numbers[k] == at + k) gone.push_back(keys[k]);
    }
    counts_.removed += static_cast<int64_t>(gone.size());
    if (!gone.empty()) TFCTR_RETURN_IF_ERROR(writer_->Remove(gone.data(), static_cast<int64_t>(gone.size())));
  }
  return Status::Ok();
}

}  // namespace tfctr
