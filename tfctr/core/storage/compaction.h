// Compaction: one file in place of a base file and the overlay over it, with the same rows by key (a static table: by
// row id). What is read must have been verified (VerifyChecksums, VerifyIndex): damage would get a new checksum.
//
// Thread-safety: a call uses only its arguments.
// Cost: reads and writes every row once; a hash file: as WriteHashFile, and 8 bytes a key. The file appears whole,
// synced, or not at all.
#ifndef TFCTR_CORE_STORAGE_COMPACTION_H_
#define TFCTR_CORE_STORAGE_COMPACTION_H_

#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_file.h"

namespace tfctr {

// kInvalid: an overlay of another base; "stopped" where `progress` says so (it gets bytes of rows done, and in all).
TFCTR_EXPORT Status CompactTable(const std::string& path, const TableFile& base, const OverlayFile& overlay,
                                 const HashFileProgress& progress = nullptr);
// Metadata is the base's, with step and time of the overlay where it has them.
TFCTR_EXPORT Status CompactHash(const std::string& path, const HashFile& base, const OverlayFile& overlay,
                                const HashFileProgress& progress = nullptr);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_COMPACTION_H_
