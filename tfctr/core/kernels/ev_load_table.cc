// LoadTable of ev_bundle.h.
#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/kernels/ev_bundle_column.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/storage/json.h"

namespace tfctr {
namespace {

using tensorflow::BundleReader;
using tensorflow::Tensor;
using tensorflow::tstring;

constexpr size_t kNamesInMessage = 8;

// What NAME/config says about a saved table.
struct Description {
  int64_t rows = 0;
  int64_t step = 0;
  bool left_out_slots = false;
  std::string key_dtype;
};

std::string WhatOf(const EvConfig& config, const std::string& prefix) {
  return absl::StrCat("embedding variable '", config.name, "' can't be restored from checkpoint '", prefix, "': ");
}

// Names of all embedding variables of the bundle, for a message.
std::string Variables(BundleReader* reader) {
  std::vector<std::string> names;
  size_t more = 0;
  std::string last;
  for (reader->Seek(""); reader->Valid(); reader->Next()) {
    const absl::string_view key = reader->key();
    if (absl::EndsWith(key, "/config") || key == "config") {
      last = std::string(key.substr(0, key.size() - std::string("config").size()));
    } else if (absl::EndsWith(key, "keys") && !last.empty() && key == absl::StrCat(last, "keys")) {
      if (names.size() < kNamesInMessage) {
        names.push_back(absl::StrCat("'", last.substr(0, last.size() - 1), "'"));
      } else {
        ++more;
      }
    }
  }
  if (names.empty()) return "it has no embedding variables";
  return absl::StrCat("it has ", absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

int64_t WholeNumber(const Json& map, const char* member, int64_t otherwise) {
  const auto it = map.map.find(member);
  int64_t value = otherwise;
  if (it == map.map.end() || it->second.kind != Json::Kind::kText || !absl::SimpleAtoi(it->second.text, &value)) {
    return otherwise;
  }
  return value;
}

absl::Status ReadDescription(BundleReader* reader, const std::string& what, const std::string& name,
                             Description* description) {
  const std::string tensor_name = TensorName(name, "config");
  if (!reader->Contains(tensor_name)) {
    return absl::NotFoundError(absl::StrCat(what, "there is no tensor '", tensor_name, "'; ", Variables(reader)));
  }
  Tensor text(tensorflow::DT_STRING, tensorflow::TensorShape({}));
  const absl::Status read = reader->Lookup(tensor_name, &text);
  if (!read.ok()) {
    return absl::Status(read.code(), absl::StrCat(what, "tensor '", tensor_name, "': ", read.message()));
  }
  const Result<Json> parsed = ParseJson(std::string(text.scalar<tstring>()()));
  const Json* format = nullptr;
  if (parsed.ok()) {
    const auto it = parsed.value().map.find("format");
    if (it != parsed.value().map.end() && it->second.kind == Json::Kind::kNumber) format = &it->second;
  }
  if (format == nullptr || format->number < 1) {
    return absl::DataLossError(absl::StrCat(
        what, "tensor '", tensor_name,
        "' does not say the format: ", parsed.ok() ? "it has no number 'format' from 1 on" : parsed.status().message));
  }
  if (format->number > kEvBundleFormat) {
    return absl::FailedPreconditionError(absl::StrCat(what, "it is of format ", format->number,
                                                      ", written by a newer tfctr; this one reads formats up to ",
                                                      kEvBundleFormat));
  }
  const Json& told = parsed.value();
  description->rows = WholeNumber(told, "rows", -1);
  description->step = WholeNumber(told, "step", 0);
  const auto key_dtype = told.map.find("key_dtype");
  if (key_dtype != told.map.end()) description->key_dtype = key_dtype->second.text;
  const auto left_out = told.map.find("left_out");
  if (left_out != told.map.end()) {
    for (const Json& part : left_out->second.list) description->left_out_slots |= part.text == "slots";
  }
  return absl::OkStatus();
}

// Names of the slots that a table has in the bundle. Keys are sorted, so they lie together.
std::vector<std::string> StoredSlots(BundleReader* reader, const std::string& name) {
  const std::string folder = TensorName(name, "slots/");
  std::vector<std::string> slots;
  for (reader->Seek(folder); reader->Valid() && absl::StartsWith(reader->key(), folder); reader->Next()) {
    slots.emplace_back(reader->key().substr(folder.size()));
  }
  return slots;
}

std::string Listed(std::vector<std::string> names) {
  if (names.empty()) return "none";
  std::sort(names.begin(), names.end());
  return absl::StrJoin(names, ", ");
}

// The rows of one window of all columns.
struct Window {
  int64_t rows = 0;
  Tensor keys;
  Tensor values;
  std::vector<Tensor> slots;
  Tensor frequency;
  Tensor last_step;
  Tensor last_time;
  std::vector<uint32_t> narrow;  // frequency, as rows hold it
  std::vector<int64_t> same_step;
  std::vector<int64_t> same_time;
};

// Reads the columns of a table and puts its rows into a new one.
class TableLoader {
 public:
  TableLoader(BundleReader* reader, std::string what, const std::string& name, const EvConfig& config,
              const CheckpointParts& parts, Now now)
      : reader_(reader),
        what_(std::move(what)),
        name_(name),
        config_(config),
        parts_(parts),
        now_(now),
        keys_(Column("keys")),
        values_(Column("values")),
        frequency_(Column("frequency")),
        last_step_(Column("last_step")),
        last_time_(Column("last_time")) {}

  absl::Status Open(const RowLayout& layout, const Description& description) {
    TF_RETURN_IF_ERROR(keys_.Open(tensorflow::DT_INT64, -1, 0));
    const int64_t rows = keys_.rows();
    if (description.rows != rows) {
      return absl::DataLossError(absl::StrCat(what_, "tensor '", keys_.name(), "' has ", rows, " rows, '",
                                              TensorName(name_, "config"), "' says ", description.rows));
    }
    TF_RETURN_IF_ERROR(values_.Open(tensorflow::DT_FLOAT, rows, layout.dim()));
    if (parts_.slots && !description.left_out_slots) TF_RETURN_IF_ERROR(OpenSlots(layout, rows));
    const auto open = [&](bool wanted, BundleColumn* column, bool* has) -> absl::Status {
      *has = wanted && column->exists();
      return *has ? column->Open(tensorflow::DT_INT64, rows, 0) : absl::OkStatus();
    };
    TF_RETURN_IF_ERROR(open(layout.has_frequency() && parts_.counters, &frequency_, &has_frequency_));
    TF_RETURN_IF_ERROR(open(layout.has_last_step() && parts_.steps, &last_step_, &has_last_step_));
    return open(layout.has_last_time() && parts_.steps, &last_time_, &has_last_time_);
  }

  absl::Status LoadRows(EmbeddingTable* table, const Parallel& parallel) {
    const auto room = table->Reserve(static_cast<uint64_t>(keys_.rows()));
    if (!room.ok()) return Failed(room);
    const auto& pieces = keys_.pieces();
    std::vector<std::pair<int64_t, int64_t>> windows;
    const int64_t most = SliceRows(config_.dim);
    for (const auto& [first, rows] : pieces) {
      for (int64_t at = 0; at < rows; at += most) windows.emplace_back(first + at, std::min(most, rows - at));
    }
    Window current;
    Window next;
    if (!windows.empty()) TF_RETURN_IF_ERROR(Read(windows[0], &current));
    for (size_t i = 0; i < windows.size(); ++i) {
      // The next window is read while this one's rows are inserted.
      std::future<absl::Status> reading;
      if (i + 1 < windows.size()) {
        reading = std::async(std::launch::async, [&, i] { return Read(windows[i + 1], &next); });
      }
      const absl::Status put = Put(&current, table, parallel);
      if (reading.valid()) {
        const absl::Status read = reading.get();
        TF_RETURN_IF_ERROR(put);
        TF_RETURN_IF_ERROR(read);
      } else {
        TF_RETURN_IF_ERROR(put);
      }
      std::swap(current, next);
    }
    if (table->size() != static_cast<uint64_t>(keys_.rows())) {
      return absl::DataLossError(absl::StrCat(what_, "tensor '", keys_.name(), "' has ", keys_.rows(), " keys, but ",
                                              table->size(), " different ones"));
    }
    return absl::OkStatus();
  }

  absl::Status LoadCounters(EmbeddingTable* table) {
    const std::shared_ptr<Admission>& admission = table->admission();
    if (admission == nullptr || !parts_.counters) return absl::OkStatus();
    BundleColumn keys = Column("counters/keys");
    BundleColumn bloom = Column("bloom");
    if (bloom.exists()) return LoadBloom(&bloom, admission.get());
    return keys.exists() ? LoadCounts(&keys, table) : absl::OkStatus();
  }

 private:
  BundleColumn Column(const std::string& part) const { return BundleColumn(reader_, TensorName(name_, part), what_); }

  absl::Status Failed(const Status& status) const {
    Status told = status;
    told.message = what_ + told.message;
    return ToTensorFlow(told);
  }

  absl::Status OpenSlots(const RowLayout& layout, int64_t rows) {
    std::vector<std::string> wanted;
    for (const SlotSpec& slot : layout.slots()) wanted.push_back(slot.name);
    const std::vector<std::string> stored = StoredSlots(reader_, name_);
    if (Listed(wanted) != Listed(stored)) {
      return absl::InvalidArgumentError(absl::StrCat(what_, "it has the optimizer slots ", Listed(stored),
                                                     ", the variable has ", Listed(wanted),
                                                     ": restore with slots=False to start with initial slots"));
    }
    for (const SlotSpec& slot : layout.slots()) {
      slots_.push_back(Column(absl::StrCat("slots/", slot.name)));
      TF_RETURN_IF_ERROR(slots_.back().Open(tensorflow::DT_FLOAT, rows, slot.width));
    }
    return absl::OkStatus();
  }

  absl::Status Read(std::pair<int64_t, int64_t> window, Window* to) {
    const auto [first, rows] = window;
    to->rows = rows;
    TF_RETURN_IF_ERROR(keys_.Read(first, rows, &to->keys));
    TF_RETURN_IF_ERROR(values_.Read(first, rows, &to->values));
    to->slots.resize(slots_.size());
    for (size_t i = 0; i < slots_.size(); ++i) TF_RETURN_IF_ERROR(slots_[i].Read(first, rows, &to->slots[i]));
    if (has_frequency_) TF_RETURN_IF_ERROR(frequency_.Read(first, rows, &to->frequency));
    if (has_last_step_) TF_RETURN_IF_ERROR(last_step_.Read(first, rows, &to->last_step));
    if (has_last_time_) TF_RETURN_IF_ERROR(last_time_.Read(first, rows, &to->last_time));
    return absl::OkStatus();
  }

  // Columns that the checkpoint lacks get what an insertion of now would.
  absl::Status Put(Window* window, EmbeddingTable* table, const Parallel& parallel) const {
    const size_t n = static_cast<size_t>(window->rows);
    RowColumns columns;
    columns.values = window->values.flat<float>().data();
    for (const Tensor& slot : window->slots) columns.slots.push_back(slot.flat<float>().data());
    if (has_frequency_) {
      const auto counts = window->frequency.flat<int64_t>();
      window->narrow.resize(n);
      for (size_t i = 0; i < n; ++i) {
        window->narrow[i] = static_cast<uint32_t>(std::min<int64_t>(std::max<int64_t>(counts(i), 0), UINT32_MAX));
      }
    } else {
      window->narrow.assign(n, std::max<uint32_t>(1, config_.admission.min_count));
    }
    columns.frequency = window->narrow.data();
    if (has_last_step_) {
      columns.last_step = window->last_step.flat<int64_t>().data();
    } else {
      window->same_step.assign(n, now_.step);
      columns.last_step = window->same_step.data();
    }
    if (has_last_time_) {
      columns.last_time_ms = window->last_time.flat<int64_t>().data();
    } else {
      window->same_time.assign(n, now_.time_ms);
      columns.last_time_ms = window->same_time.data();
    }
    const Status put = table->Put(window->keys.flat<int64_t>().data(), n, columns, parallel);
    return put.ok() ? absl::OkStatus() : Failed(put);
  }

  absl::Status LoadBloom(BundleColumn* column, Admission* admission) {
    if (admission->config().kind != AdmissionConfig::Kind::kBloom) {
      return absl::InvalidArgumentError(
          absl::StrCat(what_,
                       "it counted keys in a Bloom filter, the variable counts them one by one: restore with "
                       "counters=False to count from 0"));
    }
    TF_RETURN_IF_ERROR(column->Open(tensorflow::DT_UINT8, -1, 0));
    const auto wanted = static_cast<int64_t>(admission->state_bytes());
    Tensor cells;
    for (const auto& [first, bytes] : column->pieces()) {
      TF_RETURN_IF_ERROR(column->Read(first, bytes, &cells));
      const Status written = admission->WriteState(static_cast<uint64_t>(first), static_cast<uint64_t>(bytes),
                                                   cells.flat<uint8_t>().data());
      if (!written.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(what_, written.message, ": restore with counters=False to count from 0"));
      }
    }
    if (column->rows() < wanted) {  // longer ones and those of another geometry are refused above
      return absl::DataLossError(
          absl::StrCat(what_, "tensor '", column->name(), "' has ", column->rows(), " bytes, expected ", wanted));
    }
    return absl::OkStatus();
  }

  absl::Status LoadCounts(BundleColumn* keys, EmbeddingTable* table) {
    BundleColumn counts = Column("counters/counts");
    BundleColumn last_step = Column("counters/last_step");
    BundleColumn last_time = Column("counters/last_time");
    TF_RETURN_IF_ERROR(keys->Open(tensorflow::DT_INT64, -1, 0));
    TF_RETURN_IF_ERROR(counts.Open(tensorflow::DT_INT64, keys->rows(), 0));
    const bool has_step = parts_.steps && last_step.exists();
    const bool has_time = parts_.steps && last_time.exists();
    if (has_step) TF_RETURN_IF_ERROR(last_step.Open(tensorflow::DT_INT64, keys->rows(), 0));
    if (has_time) TF_RETURN_IF_ERROR(last_time.Open(tensorflow::DT_INT64, keys->rows(), 0));
    Tensor key_tensor;
    Tensor count_tensor;
    Tensor step_tensor;
    Tensor time_tensor;
    std::vector<KeyCount> counted;
    for (const auto& [first, n] : keys->pieces()) {
      TF_RETURN_IF_ERROR(keys->Read(first, n, &key_tensor));
      TF_RETURN_IF_ERROR(counts.Read(first, n, &count_tensor));
      if (has_step) TF_RETURN_IF_ERROR(last_step.Read(first, n, &step_tensor));
      if (has_time) TF_RETURN_IF_ERROR(last_time.Read(first, n, &time_tensor));
      counted.clear();
      for (int64_t i = 0; i < n; ++i) {
        const int64_t count = std::min<int64_t>(count_tensor.flat<int64_t>()(i), UINT32_MAX);
        if (count <= 0) continue;
        counted.push_back({key_tensor.flat<int64_t>()(i), static_cast<uint32_t>(count),
                           has_step ? step_tensor.flat<int64_t>()(i) : now_.step,
                           has_time ? time_tensor.flat<int64_t>()(i) : now_.time_ms});
      }
      PutCounts(std::move(counted), now_, table);
      counted = {};
    }
    return absl::OkStatus();
  }

  BundleReader* reader_;
  const std::string what_;
  const std::string& name_;
  const EvConfig& config_;
  const CheckpointParts parts_;
  const Now now_;
  BundleColumn keys_;
  BundleColumn values_;
  std::vector<BundleColumn> slots_;
  BundleColumn frequency_;
  BundleColumn last_step_;
  BundleColumn last_time_;
  bool has_frequency_ = false;
  bool has_last_step_ = false;
  bool has_last_time_ = false;
};

}  // namespace

void PutCounts(std::vector<KeyCount> counts, Now now, EmbeddingTable* table) {
  Admission* admission = table->admission().get();
  std::vector<int64_t> keys(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) keys[i] = counts[i].key;
  std::vector<float*> rows(counts.size());
  {
    const ReadGuard guard(*table);
    table->Find(keys.data(), keys.size(), rows.data());
  }
  size_t kept = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (rows[i] == nullptr) counts[kept++] = counts[i];
  }
  if (admission->config().kind != AdmissionConfig::Kind::kBloom) {
    admission->Put(counts.data(), kept);
    return;
  }
  std::vector<uint32_t> added(kept);
  for (size_t i = 0; i < kept; ++i) {
    keys[i] = counts[i].key;
    added[i] = counts[i].count;
  }
  std::vector<uint8_t> admitted(kept);
  std::vector<uint32_t> totals(kept);
  admission->Add(keys.data(), added.data(), kept, now, admitted.data(), totals.data());
}

absl::Status LoadTable(BundleReader* reader, const std::string& prefix, const TablePlace& place, const EvConfig& config,
                       const CheckpointParts& parts, Now now, const Parallel& parallel,
                       std::shared_ptr<EmbeddingTable>* table) {
  const std::string what = WhatOf(config, prefix);
  Description description;
  TF_RETURN_IF_ERROR(ReadDescription(reader, what, place.name, &description));
  if (!place.key_dtype.empty() && !description.key_dtype.empty() && place.key_dtype != description.key_dtype) {
    return absl::InvalidArgumentError(absl::StrCat(what, "its keys are ", description.key_dtype,
                                                   ", the variable's are ", place.key_dtype,
                                                   ": no key would be found"));
  }
  if (now.step < 0) now.step = std::max<int64_t>(description.step, 0);
  Result<std::shared_ptr<EmbeddingTable>> made = MakeTable(config);
  if (!made.ok()) return ToTensorFlow(made.status());
  TableLoader loader(reader, what, place.name, config, parts, now);
  TF_RETURN_IF_ERROR(loader.Open(made.value()->layout(), description));
  TF_RETURN_IF_ERROR(loader.LoadRows(made.value().get(), parallel));
  TF_RETURN_IF_ERROR(loader.LoadCounters(made.value().get()));
  *table = made.Take();
  return absl::OkStatus();
}

}  // namespace tfctr
