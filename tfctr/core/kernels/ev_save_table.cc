// SaveTable of ev_bundle.h.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/storage/json.h"
#include "tfctr/core/storage/table_snapshot.h"

namespace tfctr {
namespace {

using tensorflow::BundleWriter;
using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorSlice;

// Memory of somebody else as a tensor's, for as long as one call of the writer takes: nothing is copied.
class BorrowedBuffer : public tensorflow::TensorBuffer {
 public:
  BorrowedBuffer(const void* data, size_t bytes) : TensorBuffer(const_cast<void*>(data)), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("tfctr_borrowed");
  }

 private:
  const size_t bytes_;
};

Tensor Borrow(DataType dtype, const TensorShape& shape, const void* data) {
  // A tensor of no elements needs no memory, but some address.
  static const int64_t kNothing = 0;
  auto* buffer = new BorrowedBuffer(data == nullptr ? &kNothing : data,
                                    static_cast<size_t>(shape.num_elements()) * tensorflow::DataTypeSize(dtype));
  Tensor tensor(dtype, shape, buffer);
  buffer->Unref();
  return tensor;
}

// One tensor of a bundle, written piece by piece from the first row to the last.
class Column {
 public:
  // width 0: a vector.
  Column(BundleWriter* writer, std::string name, DataType dtype, int64_t rows, int64_t width)
      : writer_(writer), name_(std::move(name)), dtype_(dtype), total_(rows), width_(width) {}

  absl::Status Append(const void* data, int64_t rows) {
    if (rows == 0 && total_ != 0) return absl::OkStatus();
    const TensorShape piece = Shape(rows);
    if (written_ == 0 && rows == total_) {
      written_ = rows;
      return writer_->Add(name_, Borrow(dtype_, piece, data));
    }
    TensorSlice slice(piece.dims());
    slice.set_start(0, written_);
    slice.set_length(0, rows);
    written_ += rows;
    return writer_->AddSlice(name_, Shape(total_), slice, Borrow(dtype_, piece, data));
  }

 private:
  TensorShape Shape(int64_t rows) const { return width_ == 0 ? TensorShape({rows}) : TensorShape({rows, width_}); }

  BundleWriter* writer_;
  const std::string name_;
  const DataType dtype_;
  const int64_t total_;
  const int64_t width_;
  int64_t written_ = 0;
};

// All columns of a table's rows.
class RowColumnsWriter {
 public:
  RowColumnsWriter(const RowLayout& layout, const std::string& name, const CheckpointParts& parts, int64_t rows,
                   BundleWriter* writer)
      : dim_(layout.dim()),
        keys_(writer, TensorName(name, "keys"), tensorflow::DT_INT64, rows, 0),
        values_(writer, TensorName(name, "values"), tensorflow::DT_FLOAT, rows, layout.dim()) {
    const auto vector = [&](const char* part) {
      return std::make_unique<Column>(writer, TensorName(name, part), tensorflow::DT_INT64, rows, 0);
    };
    for (const SlotSpec& slot : layout.slots()) {
      widths_.push_back(slot.width);
      if (!parts.slots) continue;
      slots_.emplace_back(writer, TensorName(name, absl::StrCat("slots/", slot.name)), tensorflow::DT_FLOAT, rows,
                          slot.width);
    }
    if (layout.has_frequency() && parts.counters) frequency_ = vector("frequency");
    if (layout.has_last_step() && parts.steps) last_step_ = vector("last_step");
    if (layout.has_last_time() && parts.steps) last_time_ = vector("last_time");
  }

  // Rows [begin, begin + rows) of the block.
  absl::Status Append(const RowBlock& block, size_t begin, int64_t rows) {
    TF_RETURN_IF_ERROR(keys_.Append(block.keys.data() + begin, rows));
    TF_RETURN_IF_ERROR(values_.Append(block.values.data() + begin * dim_, rows));
    for (size_t i = 0; i < slots_.size(); ++i) {
      TF_RETURN_IF_ERROR(slots_[i].Append(block.slots[i].data() + begin * static_cast<size_t>(widths_[i]), rows));
    }
    if (frequency_) {
      wide_.assign(block.frequency.begin() + static_cast<int64_t>(begin),
                   block.frequency.begin() + static_cast<int64_t>(begin) + rows);
      TF_RETURN_IF_ERROR(frequency_->Append(wide_.data(), rows));
    }
    if (last_step_) TF_RETURN_IF_ERROR(last_step_->Append(block.last_step.data() + begin, rows));
    if (last_time_) TF_RETURN_IF_ERROR(last_time_->Append(block.last_time_ms.data() + begin, rows));
    return absl::OkStatus();
  }

 private:
  const size_t dim_;
  std::vector<int> widths_;
  Column keys_;
  Column values_;
  std::vector<Column> slots_;
  std::unique_ptr<Column> frequency_;
  std::unique_ptr<Column> last_step_;
  std::unique_ptr<Column> last_time_;
  std::vector<int64_t> wide_;
};

template <typename T>
void AppendTo(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

// A small table is one piece per tensor: its shards are put together first.
absl::Status SaveRowsAtOnce(TableSnapshot* snapshot, size_t slots, RowColumnsWriter* writer) {
  RowBlock all;
  RowBlock block;
  all.slots.resize(slots);
  for (int shard = 0; shard < snapshot->shards(); ++shard) {
    snapshot->ReadShard(shard, &block);
    all.rows += block.rows;
    AppendTo(block.keys, &all.keys);
    AppendTo(block.values, &all.values);
    for (size_t i = 0; i < slots; ++i) AppendTo(block.slots[i], &all.slots[i]);
    AppendTo(block.frequency, &all.frequency);
    AppendTo(block.last_step, &all.last_step);
    AppendTo(block.last_time_ms, &all.last_time_ms);
  }
  return writer->Append(all, 0, static_cast<int64_t>(all.rows));
}

absl::Status SaveRows(TableSnapshot* snapshot, const RowLayout& layout, const std::function<void()>& written,
                      RowColumnsWriter* writer) {
  const int64_t slice_rows = SliceRows(layout.dim());
  if (static_cast<int64_t>(snapshot->rows()) <= slice_rows) {
    return SaveRowsAtOnce(snapshot, layout.slots().size(), writer);
  }
  RowBlock block;
  for (int shard = 0; shard < snapshot->shards(); ++shard) {
    snapshot->ReadShard(shard, &block);
    for (size_t begin = 0; begin < block.rows; begin += static_cast<size_t>(slice_rows)) {
      const int64_t rows = std::min<int64_t>(slice_rows, static_cast<int64_t>(block.rows - begin));
      TF_RETURN_IF_ERROR(writer->Append(block, begin, rows));
      written();
    }
  }
  return absl::OkStatus();
}

// Counters are written before the rows: a key that is admitted in between is then in both, and a restore prefers the
// row; in the other order it could be in neither. The number of counters of each part is fixed by a first pass, since
// a tensor's shape is written with its first slice; where counters went meanwhile, entries of count 0 fill the place
// (they mean nothing), and where some came, those are left out as new rows are.
absl::Status SaveCounters(const Admission& admission, const std::string& name, bool steps, BundleWriter* writer) {
  std::vector<int64_t> planned(admission.parts(), 0);
  int64_t total = 0;
  for (size_t part = 0; part < planned.size(); ++part) {
    admission.Visit(part, [&](const KeyCount&) { ++planned[part]; });
    total += planned[part];
  }
  const auto column = [&](const char* of) {
    return Column(writer, TensorName(name, absl::StrCat("counters/", of)), tensorflow::DT_INT64, total, 0);
  };
  Column keys = column("keys");
  Column counts = column("counts");
  Column last_step = column("last_step");
  Column last_time = column("last_time");
  const bool with_step = steps && admission.config().last_step;
  const bool with_time = steps && admission.config().last_time;
  std::vector<int64_t> columns[4];
  int64_t gathered = 0;
  const auto flush = [&]() -> absl::Status {
    TF_RETURN_IF_ERROR(keys.Append(columns[0].data(), gathered));
    TF_RETURN_IF_ERROR(counts.Append(columns[1].data(), gathered));
    if (with_step) TF_RETURN_IF_ERROR(last_step.Append(columns[2].data(), gathered));
    if (with_time) TF_RETURN_IF_ERROR(last_time.Append(columns[3].data(), gathered));
    for (std::vector<int64_t>& values : columns) values.clear();
    gathered = 0;
    return absl::OkStatus();
  };
  for (size_t part = 0; part < planned.size(); ++part) {
    int64_t room = planned[part];
    const auto take = [&](const KeyCount& counted) {
      if (room == 0) return;
      --room;
      ++gathered;
      columns[0].push_back(counted.key);
      columns[1].push_back(counted.count);
      columns[2].push_back(counted.last_step);
      columns[3].push_back(counted.last_time_ms);
    };
    admission.Visit(part, take);
    while (room > 0) take(KeyCount());
    if (gathered >= kSliceRows && part + 1 < planned.size()) TF_RETURN_IF_ERROR(flush());
  }
  return flush();
}

// Counts that changed, all of them: unlike above, none may be left out for want of a place.
absl::Status SaveCounts(const std::vector<KeyCount>& counts, const AdmissionConfig& config, const std::string& name,
                        BundleWriter* writer) {
  const int64_t total = static_cast<int64_t>(counts.size());
  std::vector<int64_t> values(counts.size());
  const auto write = [&](const char* of, const auto& value) {
    std::transform(counts.begin(), counts.end(), values.begin(), value);
    Column column(writer, TensorName(name, absl::StrCat("counters/", of)), tensorflow::DT_INT64, total, 0);
    return column.Append(values.data(), total);
  };
  TF_RETURN_IF_ERROR(write("keys", [](const KeyCount& counted) { return counted.key; }));
  TF_RETURN_IF_ERROR(write("counts", [](const KeyCount& counted) { return static_cast<int64_t>(counted.count); }));
  if (config.last_step) {
    TF_RETURN_IF_ERROR(write("last_step", [](const KeyCount& counted) { return counted.last_step; }));
  }
  if (!config.last_time) return absl::OkStatus();
  return write("last_time", [](const KeyCount& counted) { return counted.last_time_ms; });
}

absl::Status SaveBloom(const Admission& admission, const std::string& name, BundleWriter* writer) {
  const uint64_t bytes = admission.state_bytes();
  const uint64_t piece = std::min<uint64_t>(bytes, kSliceBytes);
  Column cells(writer, TensorName(name, "bloom"), tensorflow::DT_UINT8, static_cast<int64_t>(bytes), 0);
  std::vector<uint8_t> buffer(piece);
  for (uint64_t at = 0; at < bytes; at += piece) {
    const uint64_t size = std::min(piece, bytes - at);
    admission.ReadState(at, size, buffer.data());
    TF_RETURN_IF_ERROR(cells.Append(buffer.data(), static_cast<int64_t>(size)));
  }
  return absl::OkStatus();
}

// `members`: further ones of the object, each with a comma behind it.
std::string Description(const std::string& config_json, const std::string& key_dtype, int format, int64_t rows,
                        const CheckpointParts& parts, Now now, const std::string& members) {
  std::vector<std::string> left_out;
  if (!parts.slots) left_out.emplace_back("\"slots\"");
  if (!parts.counters) left_out.emplace_back("\"counters\"");
  if (!parts.steps) left_out.emplace_back("\"steps\"");
  return absl::StrCat("{\"format\": ", format, ", ", members, "\"rows\": \"", rows, "\", \"step\": \"", now.step,
                      "\", \"time_ms\": \"", now.time_ms, "\", \"key_dtype\": ", JsonText(key_dtype),
                      ", \"left_out\": [", absl::StrJoin(left_out, ", "), "], \"table\": ", config_json, "}");
}

absl::Status SaveText(const std::string& name, const std::string& text, BundleWriter* writer) {
  Tensor tensor(tensorflow::DT_STRING, TensorShape({}));
  tensor.scalar<tensorflow::tstring>()() = text;
  return writer->Add(name, tensor);
}

// What changed in a table since a mark. Memory: `most` bytes, or it is not known.
struct Delta {
  bool known = false;
  std::vector<KeyCount> counts;
  ChangedRows rows;
};

Delta DeltaOf(const Admission* admission, TableSnapshot* snapshot, uint32_t mark, uint64_t most) {
  constexpr uint64_t kRowBytes = sizeof(int64_t) + sizeof(const float*);
  Delta delta;
  std::vector<int64_t> removed;
  // Counters first, for the reason that SaveCounters has.
  for (size_t part = 0; admission != nullptr && part < admission->parts(); ++part) {
    const bool known = admission->VisitChanged(
        part, mark, [&delta](const KeyCount& counted) { delta.counts.push_back(counted); }, &removed);
    if (!known || delta.counts.size() > most / sizeof(KeyCount)) return Delta();
  }
  delta.rows = snapshot->Changes(mark, most / kRowBytes);
  delta.known = delta.rows.known;
  AppendTo(removed, &delta.rows.removed);
  return delta;
}

// The keys that were removed and have no row of the delta, in order.
std::vector<int64_t> Gone(const ChangedRows& changed) {
  std::vector<int64_t> removed = changed.removed;
  std::sort(removed.begin(), removed.end());
  removed.erase(std::unique(removed.begin(), removed.end()), removed.end());
  std::vector<bool> back(removed.size());
  for (const int64_t key : changed.keys) {
    const auto at = std::lower_bound(removed.begin(), removed.end(), key);
    if (at != removed.end() && *at == key) back[static_cast<size_t>(at - removed.begin())] = true;
  }
  size_t kept = 0;
  for (size_t i = 0; i < removed.size(); ++i) {
    if (!back[i]) removed[kept++] = removed[i];
  }
  removed.resize(kept);
  return removed;
}

absl::Status SaveChangedRows(const ChangedRows& changed, const RowLayout& layout, const std::function<void()>& written,
                             TableSnapshot* snapshot, RowColumnsWriter* writer) {
  const size_t rows = changed.rows.size();
  const size_t slice_rows = static_cast<size_t>(SliceRows(layout.dim()));
  RowBlock block;
  for (size_t begin = 0; begin == 0 || begin < rows; begin += slice_rows) {
    const size_t n = std::min(slice_rows, rows - begin);
    snapshot->ReadRows(changed, begin, n, &block);
    TF_RETURN_IF_ERROR(writer->Append(block, 0, static_cast<int64_t>(n)));
    written();
  }
  return absl::OkStatus();
}

// `saved` stays false where the table is to be saved whole.
absl::Status SaveDelta(const std::shared_ptr<EmbeddingTable>& table, const std::string& config_json,
                       const TablePlace& place, Now now, const SaveIdentity& identity, uint32_t mark,
                       const std::function<void()>& written, BundleWriter* writer, bool* saved) {
  constexpr uint64_t kLeastMemory = 1 << 20;
  const std::string& name = place.name;
  const Admission* admission = table->admission().get();
  TableSnapshot snapshot(table);
  const Delta delta = DeltaOf(admission, &snapshot, mark, std::max(kLeastMemory, table->bytes() / 16));
  if (!delta.known) return absl::OkStatus();
  if (admission != nullptr && admission->config().kind == AdmissionConfig::Kind::kBloom) {
    if (admission->ChangedSince(mark)) TF_RETURN_IF_ERROR(SaveBloom(*admission, name, writer));
  } else if (admission != nullptr) {
    TF_RETURN_IF_ERROR(SaveCounts(delta.counts, admission->config(), name, writer));
  }
  const int64_t rows = static_cast<int64_t>(delta.rows.rows.size());
  RowColumnsWriter columns(table->layout(), name, CheckpointParts(), rows, writer);
  TF_RETURN_IF_ERROR(SaveChangedRows(delta.rows, table->layout(), written, &snapshot, &columns));
  const std::vector<int64_t> gone = Gone(delta.rows);
  const int64_t removed = static_cast<int64_t>(gone.size());
  TF_RETURN_IF_ERROR(
      Column(writer, TensorName(name, "removed"), tensorflow::DT_INT64, removed, 0).Append(gone.data(), removed));
  const std::string members = absl::StrCat("\"save\": ", JsonText(identity.save),
                                           ", \"previous\": {\"name\": ", JsonText(identity.previous_name),
                                           ", \"save\": ", JsonText(identity.previous_save), "}, \"removed\": \"",
                                           removed, "\", \"table_rows\": \"", snapshot.rows(), "\", ");
  *saved = true;
  return SaveText(TensorName(name, "config"),
                  Description(config_json, place.key_dtype, kEvDeltaFormat, rows, CheckpointParts(), now, members),
                  writer);
}

}  // namespace

absl::Status GetPlaces(tensorflow::OpKernelConstruction* context, int count, std::vector<TablePlace>* places) {
  std::vector<std::string> names;
  std::vector<std::string> key_dtypes;
  TF_RETURN_IF_ERROR(context->GetAttr("names", &names));
  TF_RETURN_IF_ERROR(context->GetAttr("key_dtypes", &key_dtypes));
  if (key_dtypes.empty()) key_dtypes.resize(names.size());
  if (static_cast<int>(names.size()) != count || key_dtypes.size() != names.size()) {
    return absl::InvalidArgumentError(absl::StrCat(context->def().op(), ": ", count, " handles, but ", names.size(),
                                                   " names and ", key_dtypes.size(), " key_dtypes"));
  }
  for (size_t i = 0; i < names.size(); ++i) places->push_back({names[i], key_dtypes[i]});
  return absl::OkStatus();
}

absl::Status SaveTable(const std::shared_ptr<EmbeddingTable>& table, const std::string& config_json,
                       const TablePlace& place, const CheckpointParts& parts, Now now, const SaveIdentity& identity,
                       int64_t since, const std::function<void()>& written, BundleWriter* writer) {
  if (since >= 0 && table->layout().has_change()) {
    bool saved = false;
    TF_RETURN_IF_ERROR(
        SaveDelta(table, config_json, place, now, identity, static_cast<uint32_t>(since), written, writer, &saved));
    if (saved) return absl::OkStatus();
  }
  const std::string& name = place.name;
  const Admission* admission = table->admission().get();
  if (admission != nullptr && parts.counters) {
    if (admission->config().kind == AdmissionConfig::Kind::kBloom) {
      TF_RETURN_IF_ERROR(SaveBloom(*admission, name, writer));
    } else {
      TF_RETURN_IF_ERROR(SaveCounters(*admission, name, parts.steps, writer));
    }
  }
  TableSnapshot snapshot(table);
  const int64_t rows = static_cast<int64_t>(snapshot.rows());
  RowColumnsWriter columns(table->layout(), name, parts, rows, writer);
  TF_RETURN_IF_ERROR(SaveRows(&snapshot, table->layout(), written, &columns));
  const std::string members =
      identity.save.empty() ? std::string() : absl::StrCat("\"save\": ", JsonText(identity.save), ", ");
  return SaveText(TensorName(name, "config"),
                  Description(config_json, place.key_dtype, kEvBundleFormat, rows, parts, now, members), writer);
}

}  // namespace tfctr
