// Replays the fuzzers' corpus (tests/fuzz/corpus), each message also cut off at every length, with every byte changed,
// and damaged at random; then what no corpus shows: memory, budgets, the reader of varints.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tfctr/core/wire/fuzz_checks.h"
#include "tfctr/core/wire/protobuf_writer.h"
#include "tfctr/core/wire/value_hash.h"

namespace tfctr {
namespace {

using fuzz::Must;
namespace fs = std::filesystem;

// A copy of exactly this size, so that a sanitizer sees a read behind it.
void Check(std::string_view bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  fuzz::CheckAny(std::string_view(exact.data(), exact.size()));
}

std::string Damaged(std::string bytes, std::mt19937* random) {
  const auto below = [&](size_t n) { return static_cast<size_t>((*random)() % n); };
  for (size_t changes = 1 + below(4); changes > 0 && bytes.size() > 1; --changes) {
    const size_t at = 1 + below(bytes.size() - 1);
    switch (below(5)) {
      case 0:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 1:
        bytes.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 2:
        bytes.erase(at, 1 + below(3));
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, below(20)));
        break;
      default:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
    }
  }
  return bytes;
}

void TestCorpus() {
  const fs::path folder = fs::path(__FILE__).parent_path() / "../../../tests/fuzz/corpus";
  std::mt19937 random(7);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    Check(bytes);
    constexpr size_t kSmall = 1000;
    for (size_t size = 0; size < bytes.size() && bytes.size() <= kSmall; ++size) {
      Check(std::string_view(bytes).substr(0, size));
      for (const char byte : {'\0', '\x7F', '\xFF', '\x80'}) {
        std::string changed = bytes;
        changed[size] = byte;
        Check(changed);
      }
    }
    for (int i = 0; i < 200; ++i) Check(Damaged(bytes, &random));
    ++files;
  }
  constexpr int kAtLeast = 20;
  Must(files >= kAtLeast, "the corpus is there");
}

void TestVarints() {
  std::mt19937_64 random(11);
  for (int bits = 0; bits <= 64; ++bits) {
    for (int i = 0; i < 50; ++i) {
      const uint64_t value = bits == 0 ? 0 : random() >> (64 - bits);
      std::string written;
      PutVarint(value, &written);
      Must(written.size() == VarintSize(value), "size of a varint");
      const char* at = written.data();
      uint64_t back = 0;
      Must(ProtobufReader::ReadVarint(&at, written.data() + written.size(), &back) && back == value, "varint");
    }
  }
}

// A message whose shape claims more than it has: no memory is taken for the claim.
void TestClaims() {
  std::string shape, dim, message, got;
  PutVarintField(1, uint64_t{1} << 50, &dim);
  PutBytesField(2, dim, &shape);
  PutVarintField(1, 9, &message);
  PutBytesField(2, shape, &message);
  PutBytesField(10, std::string(100, '\1'), &message);
  WireTensor tensor;
  Must(ParseTensorProto(message, &tensor, &got), "a claim can be parsed");
  BlockMemory memory;
  const char* data = nullptr;
  int64_t filled = 0;
  Must(!ReadNumbers(tensor, &filled, &memory, &data, &got), "and is not believed");
  Must(filled == 0 && got.find("filled up") != std::string::npos, "budget");
}

void TestMemory() {
  BlockMemory memory;
  std::vector<std::pair<char*, size_t>> pieces;
  for (size_t i = 0; i < 200; ++i) {
    const size_t bytes = i % 50 == 0 ? 100000 : i * 7;
    char* piece = memory.Take(bytes);
    Must(reinterpret_cast<uintptr_t>(piece) % 16 == 0, "aligned");
    std::memset(piece, static_cast<int>(i), bytes);
    pieces.emplace_back(piece, bytes);
  }
  BlockMemory moved = std::move(memory);
  std::memset(memory.Take(10), 99, 10);
  BlockMemory third;
  third.TakeOver(std::move(moved));
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t k = 0; k < pieces[i].second; ++k) {
      Must(pieces[i].first[k] == static_cast<char>(i), "pieces do not overlap, and stay");
    }
  }
}

void TestHashes() {
  Must(HashReal(7.0) == HashSigned(7) && HashUnsigned(7) == HashSigned(7), "one value, one hash");
  Must(HashReal(0.1) == HashReal(static_cast<double>(0.1f)), "as float32");
  Must(HashReal(1e300) == HashReal(1e301), "beyond float32 all are infinite");
  Must(HashUnsigned(UINT64_MAX) != HashSigned(-1), "sign");
  Must(HashText("7") != HashSigned(7), "kind");
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestCorpus();
  tfctr::TestVarints();
  tfctr::TestClaims();
  tfctr::TestMemory();
  tfctr::TestHashes();
  std::puts("ok");
  return 0;
}
