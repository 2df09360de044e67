// CRC-32C against published check values and against the portable implementation.
#include "tfctr/core/storage/crc32c.h"

#include <random>
#include <string>
#include <vector>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

void KnownValues() {
  CHECK_EQ(Crc32c("", 0), 0u);
  CHECK_EQ(Crc32c("123456789", 9), 0xe3069283u);  // the check value of the CRC catalogue
  const std::vector<uint8_t> zeros(32, 0);
  CHECK_EQ(Crc32c(zeros.data(), 32), 0x8a9136aau);  // RFC 3720, B.4
  const std::vector<uint8_t> ones(32, 0xff);
  CHECK_EQ(Crc32c(ones.data(), 32), 0x62a8ab43u);
}

void AllImplementationsAgree() {
  std::mt19937_64 random(7);
  std::vector<uint8_t> data(100000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  const size_t lengths[] = {0, 1, 7, 8, 9, 63, 4095, 12287, 12288, 12289, 24576, 24577, 99000};
  for (const size_t length : lengths) {
    for (const size_t offset : {0, 1, 5}) {
      CHECK_EQ(Crc32c(data.data() + offset, length), Crc32cExtendPortable(0, data.data() + offset, length));
    }
  }
  const uint32_t whole = Crc32c(data.data(), data.size());
  for (const size_t split : {1, 8, 4096, 12288, 50001}) {
    CHECK_EQ(Crc32cExtend(Crc32c(data.data(), split), data.data() + split, data.size() - split), whole);
  }
}

void MaskRoundTrip() {
  for (const uint32_t crc : {0u, 1u, 0xe3069283u, 0xffffffffu}) {
    CHECK_EQ(UnmaskCrc32c(MaskCrc32c(crc)), crc);
    CHECK(MaskCrc32c(crc) != crc);
  }
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::KnownValues();
  tfctr::AllImplementationsAgree();
  tfctr::MaskRoundTrip();
  return 0;
}
