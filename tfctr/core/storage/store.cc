#include "tfctr/core/storage/store.h"

#include <utility>

namespace tfctr {

Store& Store::Global() {
  static Store* const store = new Store();  // never destroyed: threads may outlive static destruction
  return *store;
}

namespace {

template <typename File>
Result<std::shared_ptr<const File>> OpenFile(const std::string& path, UniqueFd fd, FileId* id) {
  Result<std::unique_ptr<Container>> container = Container::Open(path, std::move(fd));
  if (!container.ok()) return container.status();
  *id = container.value()->id();
  return File::FromContainer(container.Take());
}

template <>
Result<std::shared_ptr<const BlobFile>> OpenFile<BlobFile>(const std::string& path, UniqueFd fd, FileId* id) {
  Result<std::shared_ptr<const BlobFile>> blob = BlobFile::FromFd(path, std::move(fd));
  if (blob.ok()) *id = blob.value()->id();
  return blob;
}

}  // namespace

template <typename File>
Result<std::shared_ptr<const File>> Store::Get(const std::string& path,
                                               std::map<FileId, std::weak_ptr<const File>>* files) {
  Result<UniqueFd> fd = OpenForRead(path);
  if (!fd.ok()) return fd.status();
  const Result<FileId> id = IdOf(fd.value(), path);
  if (!id.ok()) return id.status();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = files->find(id.value());
    if (it != files->end()) {
      if (std::shared_ptr<const File> file = it->second.lock()) return file;
    }
  }
  FileId opened_id;
  Result<std::shared_ptr<const File>> opened = OpenFile<File>(path, fd.Take(), &opened_id);
  if (!opened.ok()) return opened.status();

  std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<const File>& entry = (*files)[opened_id];
  if (std::shared_ptr<const File> file = entry.lock()) return file;  // another thread was faster
  entry = opened.value();
  for (auto it = files->begin(); it != files->end();) {  // forget what nobody uses any more
    it = it->second.expired() ? files->erase(it) : std::next(it);
  }
  return opened;
}

Result<std::shared_ptr<const TableFile>> Store::Table(const std::string& path) { return Get(path, &tables_); }

Result<std::shared_ptr<const VocabFile>> Store::Vocab(const std::string& path) { return Get(path, &vocabs_); }

Result<std::shared_ptr<const BlobFile>> Store::Blob(const std::string& path) { return Get(path, &blobs_); }

Result<std::shared_ptr<const HashFile>> Store::Hash(const std::string& path) { return Get(path, &hashes_); }

Result<std::shared_ptr<const OverlayFile>> Store::Overlay(const std::string& path) { return Get(path, &overlays_); }

std::vector<Store::FileStats> Store::Stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FileStats> stats;
  const auto add = [&stats](const auto& files, FileKind kind) {
    for (const auto& [id, weak] : files) {
      const auto file = weak.lock();
      if (!file) continue;
      stats.push_back({kind, file->path(), file->name(), file->bytes(), static_cast<int64_t>(file.use_count()) - 1});
    }
  };
  add(tables_, FileKind::kTable);
  add(vocabs_, FileKind::kVocab);
  add(blobs_, FileKind::kBlob);
  add(hashes_, FileKind::kHash);
  add(overlays_, FileKind::kOverlay);
  return stats;
}

}  // namespace tfctr
