#include "tfctr/core/storage/file_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <utility>

#include "tfctr/core/storage/crc32c.h"
#include "tfctr/core/storage/other_format.h"

namespace tfctr {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and used where they lie");

struct KindMagic {
  FileKind kind;
  char magic[9];  // the 8 bytes and a zero
};
constexpr KindMagic kMagics[] = {
    {FileKind::kTable, "TFCTRTAB"},   {FileKind::kVocab, "TFCTRVOC"}, {FileKind::kHash, "TFCTRHSH"},
    {FileKind::kOverlay, "TFCTROVL"}, {FileKind::kDelta, "TFCTRDLT"},
};
constexpr uint64_t kMaxMetadataBytes = 1 << 20;

struct Footer {
  char magic[8];
  uint32_t version;
  uint32_t flags;
  uint64_t data_bytes;
  uint64_t checksum_count;
  uint64_t metadata_bytes;
  uint64_t fingerprint;
  uint32_t block_bytes;
  uint32_t metadata_crc;
  uint32_t checksums_crc;
  uint32_t footer_crc;  // of the 60 bytes before
};
static_assert(sizeof(Footer) == kFooterBytes, "the footer is 64 bytes without holes");

uint64_t PaddedTo(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// FNV-1a over the bytes, then a finaliser so that every input bit reaches every output bit.
uint64_t Hash64(uint64_t h, const void* data, size_t n) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < n; ++i) h = (h ^ p[i]) * 0x100000001b3ull;
  return h;
}
uint64_t Finalise(uint64_t h) {
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}
uint64_t Fingerprint(const std::string& metadata, const std::vector<uint32_t>& checksums) {
  uint64_t h = Hash64(0xcbf29ce484222325ull, metadata.data(), metadata.size());
  h = Hash64(h, checksums.data(), checksums.size() * sizeof(uint32_t));
  return Finalise(h);
}

std::string Hex16(uint64_t value) {
  char text[17];
  ::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string Encode(const std::string& value) {
  std::string out;
  for (const char c : value) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (byte < 0x21 || byte > 0x7e || byte == '%') {
      char text[4];
      ::snprintf(text, sizeof(text), "%%%02x", byte);
      out += text;
    } else {
      out += c;
    }
  }
  return out;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool Decode(std::string_view text, std::string* out) {
  out->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return false;
    *out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return true;
}

std::string EncodeMetadata(const Metadata& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) text += key + ' ' + Encode(value) + '\n';
  return text;
}

bool DecodeMetadata(std::string_view text, Metadata* metadata) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return false;
    const std::string_view line = text.substr(0, end);
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0) return false;
    std::string value;
    if (!Decode(line.substr(space + 1), &value)) return false;
    if (!metadata->emplace(std::string(line.substr(0, space)), std::move(value)).second) return false;
    text.remove_prefix(end + 1);
  }
  return true;
}

Status NotOurs(const std::string& path, const std::string& why) {
  return Status::Corrupt("'" + path + "' is not a whole table, vocabulary, hash, overlay or delta file: " + why);
}

// Everything of the footer that can be checked on its own and against the file's size.
Status CheckFooter(const Footer& footer, uint64_t file_bytes, const std::string& path, FileKind* kind) {
  const auto found = std::find_if(std::begin(kMagics), std::end(kMagics), [&footer](const KindMagic& entry) {
    return std::memcmp(footer.magic, entry.magic, 8) == 0;
  });
  if (found == std::end(kMagics)) return NotOurs(path, "no footer at its end");
  *kind = found->kind;
  if (footer.footer_crc != Crc32c(&footer, kFooterBytes - sizeof(uint32_t))) {
    return NotOurs(path, "its footer is damaged");
  }
  if (footer.version != kFormatVersion) {
    return OtherFormat(path, "format version " + std::to_string(footer.version),
                       "version " + std::to_string(kFormatVersion));
  }
  const bool has_checksums = (footer.flags & kFlagChecksums) != 0;
  const uint64_t blocks = footer.data_bytes / kBlockBytes + (footer.data_bytes % kBlockBytes != 0 ? 1 : 0);
  if (footer.block_bytes != kBlockBytes || footer.checksum_count != (has_checksums ? blocks : 0) ||
      footer.metadata_bytes > kMaxMetadataBytes || footer.data_bytes > file_bytes) {
    return NotOurs(path, "its footer is not consistent");
  }
  const uint64_t expected = PaddedTo(footer.data_bytes, kPageBytes) + footer.checksum_count * sizeof(uint32_t) +
                            footer.metadata_bytes + kFooterBytes;
  if (expected != file_bytes) {
    return NotOurs(path,
                   "it has " + std::to_string(file_bytes) + " bytes, its footer says " + std::to_string(expected));
  }
  return Status::Ok();
}

}  // namespace

const char* FileKindName(FileKind kind) {
  switch (kind) {
    case FileKind::kTable:
      return "table";
    case FileKind::kVocab:
      return "vocab";
    case FileKind::kBlob:
      return "blob";
    case FileKind::kHash:
      return "hash";
    case FileKind::kOverlay:
      return "overlay";
    case FileKind::kDelta:
      return "delta";
  }
  return "unknown";
}

Status WrongKind(const std::string& path, FileKind kind, FileKind expected) {
  const auto text = [](FileKind which) -> std::string {
    if (which == FileKind::kVocab) return "a vocabulary file";
    return std::string(which == FileKind::kOverlay ? "an " : "a ") + FileKindName(which) + " file";
  };
  return Status::Invalid("'" + path + "' is " + text(kind) + ", expected " + text(expected));
}

Result<std::unique_ptr<Container>> Container::Open(const std::string& path) {
  Result<UniqueFd> fd = OpenForRead(path);
  if (!fd.ok()) return fd.status();
  return Open(path, fd.Take());
}

Result<std::unique_ptr<Container>> Container::Open(const std::string& path, UniqueFd fd) {
  Result<FileId> id = IdOf(fd, path);
  if (!id.ok()) return id.status();
  const uint64_t file_bytes = id.value().size;
  if (file_bytes < kFooterBytes) return NotOurs(path, "it has only " + std::to_string(file_bytes) + " bytes");
  Footer footer;
  TFCTR_RETURN_IF_ERROR(ReadAt(fd, path, file_bytes - kFooterBytes, &footer, kFooterBytes));
  std::unique_ptr<Container> container(new Container());
  TFCTR_RETURN_IF_ERROR(CheckFooter(footer, file_bytes, path, &container->kind_));

  container->checksums_.resize(footer.checksum_count);
  const uint64_t checksums_at = PaddedTo(footer.data_bytes, kPageBytes);
  const uint64_t checksum_bytes = footer.checksum_count * sizeof(uint32_t);
  TFCTR_RETURN_IF_ERROR(ReadAt(fd, path, checksums_at, container->checksums_.data(), checksum_bytes));
  std::string text(footer.metadata_bytes, '\0');
  TFCTR_RETURN_IF_ERROR(ReadAt(fd, path, checksums_at + checksum_bytes, text.data(), text.size()));
  if (Crc32c(container->checksums_.data(), checksum_bytes) != footer.checksums_crc) {
    return NotOurs(path, "its list of checksums is damaged");
  }
  if (Crc32c(text.data(), text.size()) != footer.metadata_crc || !DecodeMetadata(text, &container->metadata_) ||
      Fingerprint(text, container->checksums_) != footer.fingerprint) {
    return NotOurs(path, "its metadata is damaged");
  }
  Result<MappedFile> map = MappedFile::Map(fd, path, file_bytes);
  if (!map.ok()) return map.status();
  container->map_ = map.Take();
  container->path_ = path;
  container->id_ = id.value();
  container->data_bytes_ = footer.data_bytes;
  container->has_checksums_ = (footer.flags & kFlagChecksums) != 0;
  container->fingerprint_ = Hex16(footer.fingerprint);
  return container;
}

Status Container::VerifyChecksums() const {
  if (!has_checksums_) return Status::Invalid("'" + path_ + "' was written without checksums");
  Result<UniqueFd> fd = OpenForRead(path_);
  if (!fd.ok()) return fd.status();
  Result<FileId> id = IdOf(fd.value(), path_);
  if (!id.ok()) return id.status();
  if (!(id.value() == id_)) return Status::Invalid("'" + path_ + "' was replaced since it was opened");
  std::unique_ptr<uint8_t[]> buffer(new uint8_t[std::min(kBlockBytes, data_bytes_) + 1]);
  for (size_t block = 0; block < checksums_.size(); ++block) {
    const uint64_t at = block * kBlockBytes;
    const uint64_t bytes = std::min(kBlockBytes, data_bytes_ - at);
    TFCTR_RETURN_IF_ERROR(ReadAt(fd.value(), path_, at, buffer.get(), bytes));
    if (Crc32c(buffer.get(), bytes) != checksums_[block]) {
      return Status::Corrupt("'" + path_ + "' is damaged: the checksum of bytes " + std::to_string(at) + " to " +
                             std::to_string(at + bytes - 1) + " does not match");
    }
  }
  return Status::Ok();
}

void Container::Prefault() const {
  // The kernel reads ahead what it likes; an error means that it does not support the advice.
  if (data_bytes_ > 0) (void)::madvise(const_cast<uint8_t*>(map_.data()), data_bytes_, MADV_WILLNEED);
}

Result<std::unique_ptr<ContainerWriter>> ContainerWriter::Create(const std::string& path, FileKind kind) {
  static std::atomic<uint64_t> counter{0};
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const std::string base = slash == std::string::npos ? path : path.substr(slash + 1);
  if (base.empty()) return Status::Invalid("'" + path + "' is no file name");
  std::unique_ptr<ContainerWriter> writer(new ContainerWriter());
  writer->path_ = path;
  writer->kind_ = kind;
  writer->tmp_path_ =
      directory + "." + base + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1));
  writer->fd_ = UniqueFd(::open(writer->tmp_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!writer->fd_.valid()) {
    const int error = errno;
    writer->finished_ = true;  // nothing of ours to remove
    return ErrnoStatus("cannot create", writer->tmp_path_, error);
  }
  return writer;
}

Result<std::unique_ptr<ContainerWriter>> ContainerWriter::InMemory(const std::string& name, FileKind kind) {
  std::unique_ptr<ContainerWriter> writer(new ContainerWriter());
  writer->path_ = name;
  writer->tmp_path_ = name;
  writer->kind_ = kind;
  writer->in_memory_ = true;
  writer->fd_ = UniqueFd(::memfd_create("tfctr", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!writer->fd_.valid()) return ErrnoStatus("cannot get memory for", name, errno);
  return writer;
}

ContainerWriter::~ContainerWriter() {
  if (!finished_ && !in_memory_) (void)::unlink(tmp_path_.c_str());
}

Status ContainerWriter::Raw(const void* data, uint64_t bytes) { return WriteAll(fd_, tmp_path_, data, bytes); }

Status ContainerWriter::Append(const void* data, uint64_t bytes) {
  if (sparse_) return Status::Invalid("'" + path_ + "' has a sparse payload");
  const uint8_t* from = static_cast<const uint8_t*>(data);
  TFCTR_RETURN_IF_ERROR(Raw(from, bytes));
  bytes_written_ += bytes;
  while (bytes > 0) {
    const uint64_t n = std::min(bytes, kBlockBytes - block_fill_);
    block_crc_ = Crc32cExtend(block_crc_, from, n);
    block_fill_ += n;
    if (block_fill_ == kBlockBytes) {
      checksums_.push_back(block_crc_);
      block_crc_ = 0;
      block_fill_ = 0;
    }
    from += n;
    bytes -= n;
  }
  return Status::Ok();
}

Status ContainerWriter::SetSparseLength(uint64_t bytes) {
  if (bytes_written_ != 0) return Status::Invalid("'" + path_ + "' has a dense payload");
  sparse_ = true;
  bytes_written_ = bytes;
  const uint64_t padded = PaddedTo(bytes, kPageBytes);
  if (::ftruncate(fd_.get(), static_cast<off_t>(padded)) != 0) return ErrnoStatus("cannot extend", tmp_path_, errno);
  return Status::Ok();
}

Status ContainerWriter::WriteAt(uint64_t offset, const void* data, uint64_t bytes) {
  if (!sparse_ || offset > bytes_written_ || bytes > bytes_written_ - offset) {
    return Status::Invalid("write outside the sparse payload of '" + path_ + "'");
  }
  return WriteAllAt(fd_, tmp_path_, offset, data, bytes);
}

Status ContainerWriter::WriteTail(const Metadata& metadata) {
  if (finished_) return Status::Invalid("'" + path_ + "' is finished already");
  if (block_fill_ > 0) checksums_.push_back(block_crc_);
  block_fill_ = 0;
  const std::string text = EncodeMetadata(metadata);
  if (text.size() > kMaxMetadataBytes) return Status::Invalid("the metadata of '" + path_ + "' is too long");

  Footer footer = {};
  for (const KindMagic& entry : kMagics) {
    if (entry.kind == kind_) std::memcpy(footer.magic, entry.magic, 8);
  }
  footer.version = kFormatVersion;
  footer.flags = sparse_ ? 0 : kFlagChecksums;
  footer.data_bytes = bytes_written_;
  footer.checksum_count = checksums_.size();
  footer.metadata_bytes = text.size();
  footer.fingerprint = Fingerprint(text, checksums_);
  footer.block_bytes = static_cast<uint32_t>(kBlockBytes);
  footer.metadata_crc = Crc32c(text.data(), text.size());
  footer.checksums_crc = Crc32c(checksums_.data(), checksums_.size() * sizeof(uint32_t));
  footer.footer_crc = Crc32c(&footer, kFooterBytes - sizeof(uint32_t));

  std::string tail;
  if (!sparse_) tail.assign(PaddedTo(bytes_written_, kPageBytes) - bytes_written_, '\0');
  tail.append(reinterpret_cast<const char*>(checksums_.data()), checksums_.size() * sizeof(uint32_t));
  tail += text;
  tail.append(reinterpret_cast<const char*>(&footer), kFooterBytes);
  const uint64_t tail_at = sparse_ ? PaddedTo(bytes_written_, kPageBytes) : bytes_written_;
  return WriteAllAt(fd_, tmp_path_, tail_at, tail.data(), tail.size());
}

Status ContainerWriter::Finish(const Metadata& metadata) {
  if (in_memory_) return Status::Invalid("'" + path_ + "' lies in memory and gets no name");
  TFCTR_RETURN_IF_ERROR(WriteTail(metadata));
  // Sparse files are stand-ins that live as long as a conversion: 20 ms of fsync each would be its largest cost.
  if (!sparse_ && ::fsync(fd_.get()) != 0) return ErrnoStatus("cannot sync", tmp_path_, errno);
  fd_.Close();
  if (::rename(tmp_path_.c_str(), path_.c_str()) != 0) return ErrnoStatus("cannot create", path_, errno);
  finished_ = true;
  return sparse_ ? Status::Ok() : SyncDirectoryOf(path_);
}

Result<UniqueFd> ContainerWriter::FinishInMemory(const Metadata& metadata) {
  if (!in_memory_) return Status::Invalid("'" + path_ + "' does not lie in memory");
  TFCTR_RETURN_IF_ERROR(WriteTail(metadata));
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) != 0) {
    return ErrnoStatus("cannot seal", path_, errno);
  }
  // Opened again for reading: some systems map a sealed file through no descriptor that could write.
  UniqueFd sealed(::open(("/proc/self/fd/" + std::to_string(fd_.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!sealed.valid()) return ErrnoStatus("cannot open", path_, errno);
  finished_ = true;
  fd_.Close();
  return sealed;
}

}  // namespace tfctr
