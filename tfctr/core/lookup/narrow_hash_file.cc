#include "tfctr/core/lookup/narrow_hash_file.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tfctr/core/lookup/row_narrowing.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/hash_file_writer.h"

namespace tfctr {
namespace {

constexpr int64_t kKeysAtOnce = 1 << 16;

Result<std::vector<int64_t>> AllKeys(const HashFile& file) {
  std::vector<int64_t> keys(static_cast<size_t>(file.size()));
  for (int64_t at = 0; at < file.size(); at += kKeysAtOnce) {
    TFCTR_RETURN_IF_ERROR(file.Keys(at, std::min(kKeysAtOnce, file.size() - at), keys.data() + at));
  }
  return keys;
}

}  // namespace

Result<NarrowResult> NarrowHashFile(const std::string& in_path, DType storage, const std::string& out_path,
                                    const std::function<bool(uint64_t)>& progress) {
  Result<std::shared_ptr<const HashFile>> opened = HashFile::Open(in_path);
  if (!opened.ok()) return opened.status();
  const HashFile& file = *opened.value();
  const auto fail = [&](const std::string& what) { return Status::Invalid("table '" + file.name() + "': " + what); };
  const RowNarrower narrow = RowNarrowerOf(storage);
  if (narrow == nullptr || file.storage() != DType::kFloat32) {
    return fail(std::string("only float32 rows are stored as float16, bfloat16 or int8, not ") +
                DTypeName(file.storage()) + " as " + DTypeName(storage));
  }
  Result<std::vector<int64_t>> keys = AllKeys(file);
  if (!keys.ok()) return keys.status();
  HashFileSpec spec;
  spec.name = file.name();
  spec.dim = file.dim();
  spec.storage = storage;
  spec.extra = file.metadata();
  const int64_t stored = StoredRowBytes(storage, file.dim());
  NarrowResult result;
  const auto row_at = [&file](int64_t row) {
    return reinterpret_cast<const float*>(file.rows() + row * file.row_bytes());
  };
  const auto refuse = [&](const std::string& which, const std::string& wrong) {
    return fail(which + " " + wrong + ", so it can't be stored as " + DTypeName(storage));
  };
  std::vector<uint8_t> default_row(static_cast<size_t>(stored));
  const std::string wrong = narrow(row_at(file.size()), file.dim(), default_row.data(), &result.max_abs_error);
  if (!wrong.empty()) return refuse("the default row", wrong);
  // The writer may ask for the same rows again; what came of them before is the same.
  const HashRowReader read = [&](int64_t first, int64_t n, uint8_t* rows) {
    for (int64_t i = 0; i < n; ++i) {
      const std::string bad = narrow(row_at(first + i), file.dim(), rows + i * stored, &result.max_abs_error);
      if (bad.empty()) continue;
      int64_t key = 0;
      TFCTR_RETURN_IF_ERROR(file.Keys(first + i, 1, &key));
      return refuse("the row of key " + std::to_string(key), bad);
    }
    return progress && !progress(static_cast<uint64_t>(n * stored)) ? fail("stopped") : Status::Ok();
  };
  TFCTR_RETURN_IF_ERROR(WriteHashFile(out_path, spec, keys.Take(), default_row.data(), read));
  return result;
}

}  // namespace tfctr
