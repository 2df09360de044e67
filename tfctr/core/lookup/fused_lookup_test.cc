// The lookup library without TensorFlow: random specs and inputs, good and bad, in buffers of the exact size, so that
// the sanitizers see every read outside; the same bits with every instruction set and however the work is split.
#include "tfctr/core/lookup/fused_lookup.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tfctr/core/lookup/half.h"
#include "tfctr/core/lookup/narrow_table.h"
#include "tfctr/core/lookup/row_format.h"
#include "tfctr/core/lookup/sip_hash.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

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

void StringsOf(const void* data, int64_t begin, int64_t n, std::string_view* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const std::string*>(data)[begin + i];
}

uint64_t TestHash(std::string_view text) {
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

std::shared_ptr<const TableFile> MakeTable(const TempDir& folder, DType dtype, int64_t width) {
  const std::string path = folder.File(std::string(DTypeName(dtype)) + std::to_string(width));
  std::mt19937 random(static_cast<uint32_t>(width));
  auto writer = TableWriter::Create(path, "t", dtype, {kRows, width});
  CHECK_OK(writer.status());
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < kRows * width; ++i) {
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

// A table, what it is stored as (kInvalid: as it is), and the table of the values that it stands for.
struct Stored {
  std::shared_ptr<const TableFile> file;
  DType storage = DType::kInvalid;
  std::shared_ptr<const TableFile> values;

  int64_t width() const { return values->width(); }
};

Stored Narrow(const TempDir& folder, const std::shared_ptr<const TableFile>& wide, DType storage) {
  const std::string path = wide->path() + DTypeName(storage);
  CHECK_OK(NarrowTable(wide->path(), storage, path, nullptr).status());
  auto opened = TableFile::Open(path);
  CHECK_OK(opened.status());
  const std::shared_ptr<const TableFile> file = opened.Take();
  CHECK_EQ(file->width(), FileWidth(wide->width(), storage));
  auto writer = TableWriter::Create(path + ".values", "t", DType::kFloat32, {kRows, wide->width()});
  CHECK_OK(writer.status());
  for (int64_t row = 0; row < kRows; ++row) {
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

struct Case {
  std::string words;
  std::vector<Column> columns;
  std::vector<ValueType> types;
};

template <typename T>
T Pick(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

Case MakeCase(std::mt19937& random) {
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

// The output's bytes; `status` says how it went. The work is cut at `cuts` and spread over two threads. The lookup is
// there three times, with an output each: as f, as the same once more (a copy of f's result), and from another file of
// the store with the same rows (which shares f's ids where they are dear).
std::vector<char> Execute(const Case& c, const TableFile* table, DType storage, Isa isa, std::vector<int64_t> cuts,
                          Status* status) {
  const int64_t per_row = c.words.find("ids_per_row=17") != std::string::npos  ? 17
                          : c.words.find("ids_per_row=2") != std::string::npos ? 2
                                                                               : 1;
  const int64_t width = storage == DType::kInt8 ? table->width() - kScaleBytes : table->width();
  const int64_t columns = width * per_row;
  const DType value_dtype = storage == DType::kInvalid ? table->dtype() : DType::kFloat32;
  const std::string dtype = DTypeName(value_dtype);
  const std::string stored = storage == DType::kInvalid ? "" : std::string(" storage=") + DTypeName(storage);
  const std::string output_words = " form=rows columns=" + std::to_string(columns) + " dtype=" + dtype + "\n";
  const std::string words = " table_rows=" + std::to_string(kRows) + " table_width=" + std::to_string(width) +
                            " table_dtype=" + dtype + stored + " column=0" + c.words + "\n";
  std::string spec = "tfctr-lookup 1\n";
  for (const char* output : {"output 0", "output 1", "output 2"}) spec += output + output_words;
  spec += "lookup name=f table=0 output=0" + words + "lookup name=again table=0 output=1" + words +
          "lookup name=other table=1 output=2" + words;
  auto plan = FusedLookup::Create(spec, {}, c.types, isa);
  CHECK_OK(plan.status());
  LookupTables tables;
  CHECK_OK(plan.value()->ResolveTables({table, table}, &tables));
  CHECK_FAILS(plan.value()->ResolveTables({nullptr}, &tables), Code::kInvalid, "file 0 of the store is no table");
  CHECK_OK(plan.value()->ResolveTables({table, table}, &tables));
  const Inputs inputs(c.columns);
  Call call;
  *status = plan.value()->Prepare(inputs, tables, &call);
  if (!status->ok()) return {};
  std::vector<std::vector<char>> outputs(3);
  for (size_t k = 0; k < outputs.size(); ++k) {
    outputs[k].assign(static_cast<size_t>(call.outputs()[k].rows * columns) * DTypeSize(value_dtype), '\x55');
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

void TestGeneratedCases() {
  const TempDir folder;
  std::vector<Stored> tables;
  for (const DType dtype : {DType::kFloat32, DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const int64_t width : {1, 5, 8, 16, 33, 64}) {
      const auto table = MakeTable(folder, dtype, width);
      tables.push_back({table, DType::kInvalid, table});
    }
  }
  for (const int64_t width : {1, 5, 8, 16, 33, 64}) {
    const auto wide = MakeTable(folder, DType::kFloat32, width);
    for (const DType storage : {DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
      tables.push_back(Narrow(folder, wide, storage));
    }
  }
  std::mt19937 random(7);
  int failed = 0;
  constexpr int kCases = 3000;
  for (int i = 0; i < kCases; ++i) {
    const Case c = MakeCase(random);
    const Stored& table = tables[random() % tables.size()];
    Status whole_status;
    const std::vector<char> whole = Execute(c, table.values.get(), DType::kInvalid, Isa::kBaseline, {}, &whole_status);
    failed += !whole_status.ok();
    if (!whole_status.ok()) CHECK(whole_status.message.find("lookup 'f'") == 0);
    for (int isa = 0; isa <= static_cast<int>(DetectedIsa()); ++isa) {
      Status status;
      const std::vector<char> split =
          Execute(c, table.file.get(), table.storage, static_cast<Isa>(isa), {20, 45, 50, 80}, &status);
      CHECK_EQ(status.message, whole_status.message);
      if (status.ok()) CHECK(split == whole);
    }
  }
  CHECK(failed > kCases / 20 && failed < kCases / 2);  // both kinds were met
}

std::shared_ptr<const TableFile> WriteRows(const std::string& path, const std::vector<std::vector<float>>& rows) {
  auto writer = TableWriter::Create(path, "emb", DType::kFloat32, {int64_t(rows.size()), int64_t(rows.front().size())});
  CHECK_OK(writer.status());
  for (const auto& row : rows) CHECK_OK(writer.value()->Append(row.data(), row.size() * sizeof(float)));
  CHECK_OK(writer.value()->Finish());
  auto opened = TableFile::Open(path);
  CHECK_OK(opened.status());
  return opened.Take();
}

void TestInt8Rows() {
  const TempDir folder;
  const float tiny = std::numeric_limits<float>::min();
  const std::string path = folder.File("int8");
  WriteRows(path, {{0.f, -0.f, 0.f}, {127.f, -63.5f, 0.4f}, {tiny, -tiny, 0.f}, {-254.f, 1.f, 3.f}});
  const auto result = NarrowTable(path, DType::kInt8, path + ".out", nullptr);
  CHECK_OK(result.status());
  const auto file = TableFile::Open(path + ".out").Take();
  CHECK(file->dtype() == DType::kUInt8 && file->shape() == (std::vector<int64_t>{4, 7}));
  const auto row = [&](int64_t k) { return file->data() + 7 * k; };
  const auto scale = [&](int64_t k) {
    float value;
    std::memcpy(&value, row(k), sizeof(value));
    return value;
  };
  const auto number = [&](int64_t k, int64_t c) { return static_cast<int>(static_cast<int8_t>(row(k)[4 + c])); };
  CHECK_EQ(scale(0), 0.f);
  CHECK_EQ(scale(1), 1.f);
  CHECK_EQ(scale(2), 0.f);  // it would be subnormal
  CHECK_EQ(scale(3), 2.f);
  CHECK_EQ(number(1, 0), 127);
  CHECK_EQ(number(1, 1), -64);  // a tie goes to even
  CHECK_EQ(number(1, 2), 0);
  CHECK_EQ(number(3, 0), -127);
  CHECK_EQ(number(3, 1), 0);
  CHECK_EQ(number(3, 2), 2);
  CHECK_EQ(result.value().max_abs_error, 1.0);
}

void TestNarrowRefusals() {
  const TempDir folder;
  const std::string path = folder.File("t");
  const float inf = std::numeric_limits<float>::infinity();
  WriteRows(path, {{1.f, 2.f}, {3.f, -inf}});
  CHECK_OK(NarrowTable(path, DType::kFloat16, path + ".ok", nullptr).status());  // halves have infinities
  CHECK_FAILS(NarrowTable(path, DType::kInt8, path + ".out", nullptr).status(), Code::kInvalid,
              "table 'emb': row 1 holds an infinity");
  CHECK_FAILS(NarrowTable(path, DType::kInt64, path + ".out", nullptr).status(), Code::kInvalid, "int64");
  CHECK_FAILS(NarrowTable(path, DType::kFloat16, path + ".out", [](uint64_t) { return false; }).status(),
              Code::kInvalid, "stopped");
  CHECK_FAILS(NarrowTable(path + ".ok", DType::kInt8, path + ".out", nullptr).status(), Code::kInvalid,
              "only float32 tables");
  CHECK(!TableFile::Open(path + ".out").ok());
}

void TestHalves() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Half half = {static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    if (std::isnan(value)) {
      CHECK(std::isnan(ToFloat(ToHalf(value))));
    } else {
      CHECK_EQ(ToHalf(value).bits, half.bits);
    }
    const BFloat16 brain = {static_cast<uint16_t>(bits)};
    if (!std::isnan(ToFloat(brain))) CHECK_EQ(ToBFloat16(ToFloat(brain)).bits, brain.bits);
  }
  CHECK_EQ(ToHalf(65519.99f).bits, 0x7bff);
  CHECK_EQ(ToHalf(65520.f).bits, 0x7c00);
  CHECK_EQ(ToHalf(std::ldexp(1.f, -25)).bits, 0);  // a tie goes to even
  CHECK_EQ(ToHalf(std::ldexp(1.5f, -25)).bits, 1);
  CHECK_EQ(ToHalf(1.f + std::ldexp(1.f, -11)).bits, 0x3c00);  // the same
  CHECK_EQ(ToHalf(1.f + std::ldexp(3.f, -11)).bits, 0x3c02);
  CHECK_EQ(ToBFloat16(1.f + std::ldexp(1.f, -8)).bits, 0x3f80);
  CHECK_EQ(ToBFloat16(1.f + std::ldexp(3.f, -8)).bits, 0x3f82);
}

void TestIsaNames() {
  CHECK_EQ(std::string(IsaName(Isa::kBaseline)), "baseline");
  CHECK_EQ(std::string(IsaName(Isa::kAvx512)), "avx512");
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestHalves();
  tfctr::TestInt8Rows();
  tfctr::TestNarrowRefusals();
  tfctr::TestIsaNames();
  tfctr::TestGeneratedCases();
  return 0;
}
