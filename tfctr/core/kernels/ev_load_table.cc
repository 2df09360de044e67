// LoadTable of ev_bundle.h.
#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/kernels/ev_bundle_chain.h"
#include "tfctr/core/kernels/ev_bundle_column.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
namespace {

using tensorflow::BundleReader;
using tensorflow::Tensor;

std::string VariableOf(const EvConfig& config) { return absl::StrCat("embedding variable '", config.name, "'"); }

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

// Reads the columns of one save of a table and puts its rows into a new one.
class TableLoader {
 public:
  // `exact` (may be null): takes counts in the place of a Bloom filter, which could only add those of several saves.
  TableLoader(const ChainLink& link, const std::string& name, const EvConfig& config, const CheckpointParts& parts,
              Now now, Admission* exact)
      : reader_(link.reader),
        what_(CannotRestore(VariableOf(config), link.prefix)),
        saved_(link.table),
        name_(name),
        config_(config),
        parts_(parts),
        now_(now),
        exact_(exact),
        keys_(Column("keys")),
        values_(Column("values")),
        frequency_(Column("frequency")),
        last_step_(Column("last_step")),
        last_time_(Column("last_time")) {}

  absl::Status Open(const RowLayout& layout) {
    TF_RETURN_IF_ERROR(keys_.Open(tensorflow::DT_INT64, -1, 0));
    const int64_t rows = keys_.rows();
    if (saved_.rows != rows) {
      return absl::DataLossError(absl::StrCat(what_, "tensor '", keys_.name(), "' has ", rows, " rows, '",
                                              TensorName(name_, "config"), "' says ", saved_.rows));
    }
    TF_RETURN_IF_ERROR(values_.Open(tensorflow::DT_FLOAT, rows, layout.dim()));
    if (parts_.slots && !saved_.left_out_slots) TF_RETURN_IF_ERROR(OpenSlots(layout, rows));
    const auto open = [&](bool wanted, BundleColumn* column, bool* has) -> absl::Status {
      *has = wanted && column->exists();
      return *has ? column->Open(tensorflow::DT_INT64, rows, 0) : absl::OkStatus();
    };
    TF_RETURN_IF_ERROR(open(layout.has_frequency() && parts_.counters, &frequency_, &has_frequency_));
    TF_RETURN_IF_ERROR(open(layout.has_last_step() && parts_.steps, &last_step_, &has_last_step_));
    return open(layout.has_last_time() && parts_.steps, &last_time_, &has_last_time_);
  }

  // Whether the save and the table keep the same, so that the table becomes exactly what was saved.
  bool IsExact(const RowLayout& layout, const Admission* admission) const {
    const auto kind = admission == nullptr ? AdmissionConfig::Kind::kNone : admission->config().kind;
    const bool counts = kind == AdmissionConfig::Kind::kCounter;
    return parts_.slots && parts_.counters && parts_.steps && !saved_.left_out_any &&
           frequency_.exists() == layout.has_frequency() && last_step_.exists() == layout.has_last_step() &&
           last_time_.exists() == layout.has_last_time() && Column("counters/keys").exists() == counts &&
           (saved_.delta || Column("bloom").exists() == (kind == AdmissionConfig::Kind::kBloom)) &&
           Column("counters/last_step").exists() == (counts && admission->config().last_step) &&
           Column("counters/last_time").exists() == (counts && admission->config().last_time);
  }

  // Of a delta: takes the rows and counts that went.
  absl::Status Remove(EmbeddingTable* table) {
    BundleColumn removed = Column("removed");
    TF_RETURN_IF_ERROR(removed.Open(tensorflow::DT_INT64, -1, 0));
    Admission* const counted = exact_ != nullptr ? exact_ : table->admission().get();
    Tensor tensor;
    for (const auto& [first, n] : removed.pieces()) {
      TF_RETURN_IF_ERROR(removed.Read(first, n, &tensor));
      const int64_t* const keys = tensor.flat<int64_t>().data();
      table->EraseIf(keys, static_cast<size_t>(n), [](int64_t, const float*) { return true; });
      if (counted == nullptr) continue;
      counted->EraseIf(keys, static_cast<size_t>(n), [](const KeyCount&) { return true; });
    }
    return absl::OkStatus();
  }

  absl::Status LoadRows(EmbeddingTable* table, const Parallel& parallel) {
    const auto room = saved_.delta ? Status::Ok() : table->Reserve(static_cast<uint64_t>(keys_.rows()));
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
    if (!saved_.delta && table->size() != static_cast<uint64_t>(keys_.rows())) {
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
      if (exact_ != nullptr) {
        exact_->Put(counted.data(), counted.size());
      } else {
        PutCounts(std::move(counted), now_, table);
      }
      counted = {};
    }
    return absl::OkStatus();
  }

  BundleReader* reader_;
  const std::string what_;
  const SavedTable& saved_;
  const std::string& name_;
  const EvConfig& config_;
  const CheckpointParts parts_;
  const Now now_;
  Admission* const exact_;
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

// Where counts one by one of several saves go into a Bloom filter: what takes them first. Null elsewhere.
absl::Status ExactCounts(const ChainLink& whole, const std::string& name, const EvConfig& config,
                         std::shared_ptr<Admission>* counts) {
  const bool counted = whole.reader->Contains(TensorName(name, "counters/keys"));
  if (!counted || config.admission.kind != AdmissionConfig::Kind::kBloom) return absl::OkStatus();
  AdmissionConfig exact;
  exact.kind = AdmissionConfig::Kind::kCounter;
  Result<std::shared_ptr<Admission>> made = Admission::Create(exact);
  if (!made.ok()) return ToTensorFlow(made.status());
  *counts = made.Take();
  return absl::OkStatus();
}

std::vector<KeyCount> AllCounts(const Admission& counts) {
  std::vector<KeyCount> all;
  for (size_t part = 0; part < counts.parts(); ++part) {
    counts.Visit(part, [&all](const KeyCount& counted) { all.push_back(counted); });
  }
  return all;
}

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
  std::vector<ChainLink> chain;
  TF_RETURN_IF_ERROR(OpenChain(reader, prefix, VariableOf(config), place.name, &chain));
  for (const ChainLink& link : chain) {
    if (!place.key_dtype.empty() && !link.table.key_dtype.empty() && place.key_dtype != link.table.key_dtype) {
      return absl::InvalidArgumentError(absl::StrCat(CannotRestore(VariableOf(config), link.prefix), "its keys are ",
                                                     link.table.key_dtype, ", the variable's are ", place.key_dtype,
                                                     ": no key would be found"));
    }
  }
  if (now.step < 0) now.step = std::max<int64_t>(chain.back().table.step, 0);
  Result<std::shared_ptr<EmbeddingTable>> made = MakeTable(config);
  if (!made.ok()) return ToTensorFlow(made.status());
  EmbeddingTable* const loaded = made.value().get();
  std::shared_ptr<Admission> counts;
  if (chain.size() > 1) TF_RETURN_IF_ERROR(ExactCounts(chain.front(), place.name, config, &counts));
  bool exact = true;
  for (const ChainLink& link : chain) {
    TableLoader loader(link, place.name, config, parts, now, counts.get());
    TF_RETURN_IF_ERROR(loader.Open(loaded->layout()));
    exact = exact && loader.IsExact(loaded->layout(), loaded->admission().get());
    if (link.table.delta) TF_RETURN_IF_ERROR(loader.Remove(loaded));
    TF_RETURN_IF_ERROR(loader.LoadRows(loaded, parallel));
    TF_RETURN_IF_ERROR(loader.LoadCounters(loaded));
  }
  if (counts != nullptr) PutCounts(AllCounts(*counts), now, loaded);
  loaded->EndMark();
  const std::string& save = chain.back().table.save;
  if (exact && !save.empty()) loaded->set_origin(TensorName(save, place.name));
  *table = made.Take();
  return absl::OkStatus();
}

}  // namespace tfctr
