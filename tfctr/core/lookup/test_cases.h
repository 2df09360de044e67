// Generated lookups for the native tests: random specs and inputs, good and bad, in buffers of the exact size, so that
// the sanitizers see every read outside; and a way to run them, the work cut anywhere and spread over threads.
#ifndef TFCTR_CORE_LOOKUP_TEST_CASES_H_
#define TFCTR_CORE_LOOKUP_TEST_CASES_H_

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tfctr/core/lookup/fused_lookup.h"
#include "tfctr/core/lookup/half.h"
#include "tfctr/core/lookup/narrow_table.h"
#include "tfctr/core/lookup/row_format.h"
#include "tfctr/core/lookup/sip_hash.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {

constexpr int64_t kRows = 23;

struct Column {
  DType dtype = DType::kInt64;
  bool is_string = false;
  std::vector<int64_t> dims;
  std::vector<char> bytes;
  std::vector<std::string> strings;

  template <typename T>
  static Column Of(DType dtype, const std::vector<T>& values, std::vector<int64_t> dims) {
    Column column;
    column.dtype = dtype;
    column.dims = std::move(dims);
    column.bytes.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(column.bytes.data(), values.data(), column.bytes.size());
    return column;
  }
};

inline void StringsOf(const void* data, int64_t begin, int64_t n, std::string_view* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const std::string*>(data)[begin + i];
}

inline uint64_t TestHash(std::string_view text) {
  const uint64_t key[2] = {1, 2};
  return SipHash::Hash(key, text);
}

class Inputs : public LookupInputs {
 public:
  explicit Inputs(const std::vector<Column>& columns) : columns_(columns) {}
  Status Get(Source source, TensorView* view) const override {
    const Column& column = columns_[source.index];
    view->dtype = column.dtype;
    view->is_string = column.is_string;
    view->rank = static_cast<int32_t>(column.dims.size());
    view->elements = 1;
    for (size_t d = 0; d < column.dims.size(); ++d) {
      view->dims[d] = column.dims[d];
      view->elements *= column.dims[d];
    }
    view->data = column.is_string ? static_cast<const void*>(column.strings.data()) : column.bytes.data();
    view->strings_at = &StringsOf;
    return Status::Ok();
  }
  StepContext Steps() const override { return {&TestHash, nullptr, 0}; }

 private:
  const std::vector<Column>& columns_;
};

inline std::shared_ptr<const TableFile> MakeTable(const TempDir& folder, DType dtype, int64_t width,
                                                  int64_t rows = kRows) {
  const std::string path = folder.File(DTypeName(dtype) + std::to_string(width) + "x" + std::to_string(rows));
  std::mt19937 random(static_cast<uint32_t>(width));
  auto writer = TableWriter::Create(path, "t", dtype, {rows, width});
  CHECK_OK(writer.status());
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < rows * width; ++i) {
    const double value = normal(random);
    const float single = static_cast<float>(value);
    const Half half = ToHalf(single);
    const BFloat16 brain = ToBFloat16(single);
    const void* data = dtype == DType::kFloat64   ? static_cast<const void*>(&value)
                       : dtype == DType::kFloat32 ? static_cast<const void*>(&single)
                       : dtype == DType::kFloat16 ? static_cast<const void*>(&half)
                                                  : static_cast<const void*>(&brain);
    CHECK_OK(writer.value()->Append(data, DTypeSize(dtype)));
  }
  CHECK_OK(writer.value()->Finish());
  auto opened = TableFile::Open(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

struct Case {
  std::string words;
  std::vector<Column> columns;
  std::vector<ValueType> types;
};

template <typename T>
T Pick(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

inline Case MakeCase(std::mt19937& random) {
  Case c;
  const bool bad = random() % 4 == 0;
  const auto id = [&]() -> int64_t {
    if (bad && random() % 20 == 0) {
      return Pick<int64_t>(random,
                           {kRows, -5, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()});
    }
    return static_cast<int64_t>(random() % (kRows + 1)) - 1;
  };
  const auto add = [&c](const char* word, Column column) {
    c.words += std::string(" ") + word + "=arg:" + std::to_string(c.columns.size());
    c.types.push_back({column.dtype, column.is_string});
    c.columns.push_back(std::move(column));
  };
  const int rows = static_cast<int>(random() % 9);
  std::vector<int64_t> ids;
  std::vector<int64_t> numbers;
  std::vector<int64_t> splits = {0};
  const std::string form = Pick<const char*>(random, {"dense", "sparse", "ragged", "segments"});
  const int fixed = Pick(random, {0, 1, 2, 17});
  for (int r = 0; r < rows; ++r) {
    const int n = form == "dense" ? fixed : Pick(random, {0, 1, 2, 3, 8, 9, 10, 17, 33});
    for (int k = 0; k < n; ++k) {
      ids.push_back(id());
      numbers.push_back(r);
    }
    splits.push_back(static_cast<int64_t>(ids.size()));
  }
  const int64_t n = static_cast<int64_t>(ids.size());
  if (bad && random() % 3 == 0 && n > 1) std::swap(numbers[random() % n], numbers[random() % n]);
  if (bad && random() % 3 == 0 && n > 0) numbers[random() % n] = Pick<int64_t>(random, {-1, 99, INT64_MIN, INT64_MAX});
  if (bad && random() % 3 == 0)
    splits[random() % splits.size()] = Pick<int64_t>(random, {-1, 99, 2, INT64_MIN, INT64_MAX});
  const bool narrow = !bad && random() % 3 == 0;
  const std::vector<int64_t> dims = form == "dense" ? std::vector<int64_t>{rows, fixed} : std::vector<int64_t>{n};
  if (narrow) {
    add("ids", Column::Of(DType::kInt32, std::vector<int32_t>(ids.begin(), ids.end()), dims));
  } else {
    add("ids", Column::Of(DType::kInt64, ids, dims));
  }
  c.words += " form=" + form;
  if (form == "sparse") {
    std::vector<int64_t> indices;
    for (const int64_t number : numbers) indices.insert(indices.end(), {number, 0});
    add("rows", Column::Of(DType::kInt64, indices, {n, 2}));
    add("shape", Column::Of(DType::kInt64, std::vector<int64_t>{rows, 40}, {2}));
  } else if (form == "segments") {
    if (narrow) {
      add("rows", Column::Of(DType::kInt32, std::vector<int32_t>(numbers.begin(), numbers.end()), {n}));
    } else {
      add("rows", Column::Of(DType::kInt64, numbers, {n}));
    }
    add("shape", Column::Of(DType::kInt64, std::vector<int64_t>{rows}, {}));
  } else if (form == "ragged") {
    if (narrow) {
      add("rows", Column::Of(DType::kInt32, std::vector<int32_t>(splits.begin(), splits.end()), {rows + 1}));
    } else {
      add("rows", Column::Of(DType::kInt64, splits, {rows + 1}));
    }
  }
  if (form == "dense" && random() % 4 == 0) {
    c.words += " combiner=none steps=wrap_negative:" + std::to_string(kRows);
    if (fixed > 0) c.words += " ids_per_row=" + std::to_string(fixed);
    return c;
  }
  c.words += std::string(" combiner=") + Pick<const char*>(random, {"sum", "mean", "sqrtn"});
  if (form == "sparse" || form == "segments") c.words += " sort_rows=" + std::to_string(random() % 2);
  c.words += Pick<const char*>(random, {"", " steps=prune_negative", " steps=prune_negative", " steps=wrap_negative:23",
                                        " steps=mod:23|add:0|prune_equal:3", " steps=as_string|hash_fast:23",
                                        " steps=as_string|hash_fast:22|add:1|select_equal:0;5"});
  if (random() % 3 == 0) {
    std::vector<float> weights;
    for (int64_t i = 0; i < n; ++i) weights.push_back(static_cast<float>(random() % 5) - 1.f);
    add("weights", Column::Of(DType::kFloat32, weights, dims));
    c.words += " accumulation=sequential denominator=no_nan prune_weights=" + std::to_string(random() % 2);
  } else {
    c.words +=
        Pick<const char*>(random, {"", "", " accumulation=sequential", " accumulation=sequential denominator=max1"});
  }
  if (form == "dense" && random() % 2 == 0) {
    std::vector<uint8_t> mask;
    for (int64_t i = 0; i < n; ++i) mask.push_back(static_cast<uint8_t>(random() % 2));
    add("mask", Column::Of(DType::kBool, mask, dims));
  }
  if (random() % 4 == 0) c.words += " fill_id=" + std::to_string(Pick<int64_t>(random, {0, kRows - 1, kRows}));
  if (random() % 5 == 0) c.words += " max_norm=0.75";
  return c;
}

// A file of the store to look up in, as a spec names it.
struct Target {
  std::shared_ptr<const ServedTable> table;
  int64_t rows = kRows;  // table_rows of the spec
  int64_t width = 0;
  DType dtype = DType::kInvalid;    // of the values
  DType storage = DType::kInvalid;  // kInvalid: as dtype
  std::string steps;                // put behind those of the case
};

inline std::shared_ptr<const ServedTable> Serve(std::shared_ptr<const TableFile> table,
                                                std::shared_ptr<const OverlayFile> overlay = nullptr) {
  auto served = ServedTable::Make(std::move(table), std::move(overlay));
  CHECK_OK(served.status());
  return served.Take();
}

// A table, what it is stored as (kInvalid: as it is), and the table of the values that it stands for.
struct Stored {
  std::shared_ptr<const TableFile> file;
  DType storage = DType::kInvalid;
  std::shared_ptr<const TableFile> values;

  Target Lies() const { return {Serve(file), file->rows(), values->width(), values->dtype(), storage, ""}; }
  Target Values() const {
    return {Serve(values), values->rows(), values->width(), values->dtype(), DType::kInvalid, ""};
  }
};

inline Stored Narrow(const TempDir& folder, const std::shared_ptr<const TableFile>& wide, DType storage) {
  const std::string path = wide->path() + DTypeName(storage);
  CHECK_OK(NarrowTable(wide->path(), storage, path, nullptr).status());
  auto opened = TableFile::Open(path);
  CHECK_OK(opened.status());
  const std::shared_ptr<const TableFile> file = opened.Take();
  CHECK_EQ(file->width(), FileWidth(wide->width(), storage));
  auto writer = TableWriter::Create(path + ".values", "t", DType::kFloat32, {wide->rows(), wide->width()});
  CHECK_OK(writer.status());
  for (int64_t row = 0; row < wide->rows(); ++row) {
    const uint8_t* at = file->data() + row * file->width() * static_cast<int64_t>(DTypeSize(file->dtype()));
    for (int64_t c = 0; c < wide->width(); ++c) {
      float value;
      if (storage == DType::kInt8) {
        std::memcpy(&value, at, sizeof(value));
        value *= static_cast<float>(static_cast<int8_t>(at[kScaleBytes + c]));
      } else if (storage == DType::kFloat16) {
        value = ToFloat(Half{reinterpret_cast<const uint16_t*>(at)[c]});
      } else {
        value = ToFloat(BFloat16{reinterpret_cast<const uint16_t*>(at)[c]});
      }
      CHECK_OK(writer.value()->Append(&value, sizeof(value)));
    }
  }
  CHECK_OK(writer.value()->Finish());
  auto values = TableFile::Open(path + ".values");
  CHECK_OK(values.status());
  return {file, storage, values.Take()};
}

inline std::string WithSteps(std::string words, const std::string& steps) {
  if (steps.empty()) return words;
  const size_t at = words.find(" steps=");
  if (at == std::string::npos) return words + " steps=" + steps;
  const size_t end = words.find(' ', at + 1);
  return words.insert(end == std::string::npos ? words.size() : end, "|" + steps);
}

// The output's bytes; `status` says how it went. The work is cut at `cuts` and spread over two threads. The lookup is
// there three times, with an output each: as f, as the same once more (a copy of f's result), and from another file of
// the store with the same rows (which shares f's ids where they are dear).
inline std::vector<char> Execute(const Case& c, const Target& target, Isa isa, std::vector<int64_t> cuts,
                                 Status* status) {
  const int64_t per_row = c.words.find("ids_per_row=17") != std::string::npos  ? 17
                          : c.words.find("ids_per_row=2") != std::string::npos ? 2
                                                                               : 1;
  const int64_t columns = target.width * per_row;
  const std::string dtype = DTypeName(target.dtype);
  const std::string stored =
      target.storage == DType::kInvalid ? "" : std::string(" storage=") + DTypeName(target.storage);
  const std::string output_words = " form=rows columns=" + std::to_string(columns) + " dtype=" + dtype + "\n";
  const std::string words = " table_rows=" + std::to_string(target.rows) +
                            " table_width=" + std::to_string(target.width) + " table_dtype=" + dtype + stored +
                            (target.table->hashed() ? " hashed=1" : "") + " column=0" +
                            WithSteps(c.words, target.steps) + "\n";
  std::string spec = "tfctr-lookup 1\n";
  for (const char* output : {"output 0", "output 1", "output 2"}) spec += output + output_words;
  spec += "lookup name=f table=0 output=0" + words + "lookup name=again table=0 output=1" + words +
          "lookup name=other table=1 output=2" + words;
  auto plan = FusedLookup::Create(spec, {}, c.types, isa);
  CHECK_OK(plan.status());
  LookupTables tables;
  const ServedTable* table = target.table.get();
  CHECK_OK(plan.value()->ResolveTables({table, table}, &tables));
  CHECK_FAILS(plan.value()->ResolveTables({nullptr}, &tables), Code::kInvalid, "file 0 of the store is no table");
  CHECK_OK(plan.value()->ResolveTables({table, table}, &tables));
  const Inputs inputs(c.columns);
  Call call;
  *status = plan.value()->Prepare(inputs, tables, &call);
  if (!status->ok()) return {};
  std::vector<std::vector<char>> outputs(3);
  for (size_t k = 0; k < outputs.size(); ++k) {
    outputs[k].assign(static_cast<size_t>(call.outputs()[k].rows * columns) * DTypeSize(target.dtype), '\x55');
    call.SetOutput(k, outputs[k].data());
  }
  const int64_t half = call.id_work() * 3 / 7;
  std::thread first_ids([&] { plan.value()->RunIds(0, half, &call); });
  plan.value()->RunIds(half, call.id_work(), &call);
  first_ids.join();
  std::vector<int64_t> ends = {0};
  for (const int64_t cut : cuts) ends.push_back(call.work() * cut / 100);
  ends.push_back(call.work());
  const auto run = [&](size_t first) {
    for (size_t i = first; i + 1 < ends.size(); i += 2) plan.value()->Run(ends[i], ends[i + 1], &call);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  *status = plan.value()->Finish(&call);
  if (status->ok()) CHECK(outputs[1] == outputs[0] && outputs[2] == outputs[0]);
  return outputs[0];
}

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_TEST_CASES_H_
