#include "tfctr/core/storage/served_table.h"

#include <errno.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "tfctr/core/storage/metadata_fields.h"
#include "tfctr/core/storage/table_space.h"

namespace tfctr {
namespace {

constexpr int kNotSet = -1;
std::atomic<int> default_memory{kNotSet};

}  // namespace

const char* TableMemoryName(TableMemory memory) { return memory == TableMemory::kMapped ? "mapped" : "huge_pages"; }

Result<TableMemory> TableMemoryFromName(const std::string& name) {
  if (name == "mapped") return TableMemory::kMapped;
  if (name == "huge_pages") return TableMemory::kHugePages;
  return Status::Invalid("table memory '" + name + "' is neither 'mapped' nor 'huge_pages'");
}

Result<TableMemory> DefaultTableMemory() {
  const int set = default_memory.load();
  if (set != kNotSet) return static_cast<TableMemory>(set);
  const char* const word = std::getenv("TFCTR_TABLE_MEMORY");
  if (word == nullptr || *word == '\0') return TableMemory::kMapped;
  Result<TableMemory> named = TableMemoryFromName(word);
  if (!named.ok()) return Status::Invalid("TFCTR_TABLE_MEMORY: " + named.status().message);
  return named;
}

void SetDefaultTableMemory(TableMemory memory) { default_memory.store(static_cast<int>(memory)); }

// The private mapping of a static table with its overlay's rows in it.
struct ServedTable::DenseCopy {
  std::mutex mutex;
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

Result<std::shared_ptr<const ServedTable>> ServedTable::Make(std::shared_ptr<const TableFile> table,
                                                             std::shared_ptr<const OverlayFile> overlay,
                                                             TableMemory memory) {
  std::shared_ptr<ServedTable> made(new ServedTable());
  made->base_ = BaseOf(*table);
  made->table_ = std::move(table);
  const Container& container = made->table_->container();
  return Finish(std::move(made), container, memory, std::move(overlay));
}

Result<std::shared_ptr<const ServedTable>> ServedTable::Make(std::shared_ptr<const HashFile> hash,
                                                             std::shared_ptr<const OverlayFile> overlay,
                                                             TableMemory memory) {
  std::shared_ptr<ServedTable> made(new ServedTable());
  made->base_ = BaseOf(*hash);
  made->hash_ = std::move(hash);
  const Container& container = made->hash_->container();
  return Finish(std::move(made), container, memory, std::move(overlay));
}

Result<std::shared_ptr<const ServedTable>> ServedTable::Finish(std::shared_ptr<ServedTable> made,
                                                               const Container& container, TableMemory memory,
                                                               std::shared_ptr<const OverlayFile> overlay) {
  made->memory_ = memory;
  const uint64_t row_bytes = static_cast<uint64_t>(made->row_bytes());
  uint64_t room = 0;
  if (overlay != nullptr) {
    TFCTR_RETURN_IF_ERROR(overlay->CheckBase(made->base_));
    made->slot_bytes_ = static_cast<uint64_t>(overlay->rows()) * row_bytes;
    room = made->slot_bytes_;
  }
  for (int attempt = 0;; ++attempt) {
    Result<std::shared_ptr<TableSpace>> space = TableSpace::Get(container, memory, room);
    if (!space.ok()) return space.status();
    made->space_ = space.Take();
    if (overlay == nullptr) break;
    const Result<uint64_t> slot = made->space_->Place(overlay->container(), made->slot_bytes_, row_bytes);
    if (!slot.ok()) return slot.status();
    made->slot_ = slot.value();
    if (made->slot_ != 0) break;
    if (attempt == 8) return Status::NoSpace("no addresses for the overlay of table '" + made->name() + "'");
    room = 2 * room + 4 * RoundUp(row_bytes * kPageBytes, kPageBytes) + container.file_bytes();  // a larger range
  }
  made->data_ = made->space_->data();
  made->rows_ = made->base_rows();
  if (made->hashed()) {
    made->index_ = made->hash_->index();
    const uint8_t* const lines = reinterpret_cast<const uint8_t*>(made->index_.lines);
    made->index_.lines = reinterpret_cast<const HashLine*>(made->data_ + (lines - container.data()));
  }
  if (overlay != nullptr) {
    made->overlay_ = overlay->index();
    made->overlay_.first_row = static_cast<int64_t>(made->slot_ / row_bytes);
    made->overlay_.missing = made->base_.rows;
    if (overlay->rows() > 0) made->rows_ = made->overlay_.first_row + overlay->rows();
    made->overlay_file_ = std::move(overlay);
  }
  made->dense_ = std::make_unique<DenseCopy>();
  return std::shared_ptr<const ServedTable>(std::move(made));
}

ServedTable::~ServedTable() {
  if (slot_ != 0) space_->Release(slot_);
  if (dense_ != nullptr && dense_->data != nullptr) ::munmap(dense_->data, dense_->bytes);
}

void ServedTable::Find(const int64_t* keys, size_t n, int64_t* numbers) const {
  if (hashed()) {
    if (overlay_file_ == nullptr) {
      index_.Find(keys, n, numbers);
    } else {
      FindThrough(overlay_, index_, keys, n, numbers);
    }
    return;
  }
  if (numbers != keys) std::memcpy(numbers, keys, n * sizeof(int64_t));
  if (overlay_file_ != nullptr) overlay_.Redirect(numbers, n, numbers);
}

int64_t ServedTable::size() const {
  return base_.rows + (overlay_file_ == nullptr ? 0 : overlay_file_->added() - overlay_file_->removed());
}

Result<const uint8_t*> ServedTable::Dense() const {
  if (hashed()) return Status::Invalid("table '" + name() + "' is a hash table and has no dense form");
  if (overlay_file_ == nullptr || overlay_file_->rows() == 0) return table_->data();
  std::lock_guard<std::mutex> lock(dense_->mutex);
  if (dense_->data != nullptr) return static_cast<const uint8_t*>(dense_->data);
  Result<UniqueFd> fd = OpenForRead(path());
  if (!fd.ok()) return fd.status();
  const Result<FileId> id = IdOf(fd.value(), path());
  if (!id.ok()) return id.status();
  if (!(id.value() == table_->container().id())) {
    return Status::Io("table '" + name() + "': '" + path() + "' was replaced since it was opened, and rows of an " +
                      "overlay can't be put into the array that the model reads");
  }
  const uint64_t bytes = RoundUp(table_->bytes(), kPageBytes);
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.value().get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus("cannot map", path(), errno);
  const size_t row_bytes = static_cast<size_t>(base_.shape.row_bytes);
  uint8_t* const rows = static_cast<uint8_t*>(data);
  for (int64_t i = 0; i < overlay_file_->rows(); ++i) {
    const int64_t id_of_row = overlay_file_->keys()[i];
    if (id_of_row < 0 || id_of_row >= base_.rows) {
      ::munmap(data, bytes);
      return Status::Corrupt("'" + overlay_file_->path() + "' is damaged: table '" + name() + "' has no row " +
                             std::to_string(id_of_row));
    }
    std::memcpy(rows + static_cast<size_t>(id_of_row) * row_bytes, overlay_file_->row(i), row_bytes);
  }
  (void)::mprotect(data, bytes, PROT_READ);
  dense_->data = rows;
  dense_->bytes = bytes;
  return static_cast<const uint8_t*>(rows);
}

}  // namespace tfctr
