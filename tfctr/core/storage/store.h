// The process-wide store of open table, vocabulary, blob, hash and overlay files. Whoever opens the same file (by
// device, inode, size and modification time, whatever the path) gets the same mapping; the store itself keeps weak
// references only, so a file is unmapped when its last user lets go.
//
// Thread-safety: all methods may be called from any thread. No lock is held while a file is being opened.
// Cost: milliseconds for a file's first user, a stat for the others; never used per request.
#ifndef TFCTR_CORE_STORAGE_STORE_H_
#define TFCTR_CORE_STORAGE_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/blob_file.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_file.h"
#include "tfctr/core/storage/vocab_file.h"

namespace tfctr {

class TFCTR_EXPORT Store {
 public:
  struct FileStats {
    FileKind kind;
    std::string path;  // by which it was opened first
    std::string name;
    uint64_t bytes;  // payload
    int64_t refs;    // users (shared pointers) at the time of the call
  };

  static Store& Global();

  Result<std::shared_ptr<const TableFile>> Table(const std::string& path);
  Result<std::shared_ptr<const VocabFile>> Vocab(const std::string& path);
  Result<std::shared_ptr<const BlobFile>> Blob(const std::string& path);
  Result<std::shared_ptr<const HashFile>> Hash(const std::string& path);
  Result<std::shared_ptr<const OverlayFile>> Overlay(const std::string& path);

  // Files that are open now.
  std::vector<FileStats> Stats();

 private:
  template <typename File>
  Result<std::shared_ptr<const File>> Get(const std::string& path, std::map<FileId, std::weak_ptr<const File>>* files);
  std::mutex mutex_;
  std::map<FileId, std::weak_ptr<const TableFile>> tables_;
  std::map<FileId, std::weak_ptr<const VocabFile>> vocabs_;
  std::map<FileId, std::weak_ptr<const BlobFile>> blobs_;
  std::map<FileId, std::weak_ptr<const HashFile>> hashes_;
  std::map<FileId, std::weak_ptr<const OverlayFile>> overlays_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_STORE_H_
