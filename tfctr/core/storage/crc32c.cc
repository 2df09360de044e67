#include "tfctr/core/storage/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tfctr {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // reversed Castagnoli polynomial

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: the effect of byte b followed by k zero bytes ("slicing by 8").
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

#if defined(__x86_64__)
// Long inputs run as three independent streams, because the instruction has a latency of 3 and a throughput of 1.
// The streams are joined by multiplying with x^(8 * kStreamBytes), done bytewise by a table per shift.
constexpr size_t kStreamBytes = 4096;

struct ShiftTable {
  uint32_t entry[4][256];
};

// crc -> crc after kStreamBytes zero bytes, as four 256-entry tables (the map is linear over GF(2)).
ShiftTable MakeShiftTable() {
  uint32_t basis[32];
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < kStreamBytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    basis[bit] = crc;
  }
  ShiftTable table;
  for (int k = 0; k < 4; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      uint32_t value = 0;
      for (int bit = 0; bit < 8; ++bit) {
        if (b & (1u << bit)) value ^= basis[8 * k + bit];
      }
      table.entry[k][b] = value;
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& t, uint32_t crc) {
  return t.entry[0][crc & 0xff] ^ t.entry[1][(crc >> 8) & 0xff] ^ t.entry[2][(crc >> 16) & 0xff] ^
         t.entry[3][crc >> 24];
}

uint64_t Load64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, const uint8_t* p, size_t n) {
  static const ShiftTable shift = MakeShiftTable();
  uint64_t c = ~crc;
  while (n >= 3 * kStreamBytes) {
    uint64_t c1 = 0;
    uint64_t c2 = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      c = _mm_crc32_u64(c, Load64(p + i));
      c1 = _mm_crc32_u64(c1, Load64(p + kStreamBytes + i));
      c2 = _mm_crc32_u64(c2, Load64(p + 2 * kStreamBytes + i));
    }
    c = Shift(shift, static_cast<uint32_t>(c)) ^ c1;
    c = Shift(shift, static_cast<uint32_t>(c)) ^ c2;
    p += 3 * kStreamBytes;
    n -= 3 * kStreamBytes;
  }
  for (; n >= 8; p += 8, n -= 8) c = _mm_crc32_u64(c, Load64(p));
  for (; n > 0; ++p, --n) c = _mm_crc32_u8(static_cast<uint32_t>(c), *p);
  return ~static_cast<uint32_t>(c);
}
#endif

}  // namespace

uint32_t Crc32cExtendPortable(uint32_t crc, const void* data, size_t n) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  uint32_t c = ~crc;
  for (; n >= 8; p += 8, n -= 8) {
    uint32_t low;
    uint32_t high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= c;
    c = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
        kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
        kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
  }
  for (; n > 0; ++p, --n) c = (c >> 8) ^ kTables[0][(c ^ *p) & 0xff];
  return ~c;
}

uint32_t Crc32cExtend(uint32_t crc, const void* data, size_t n) {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2");
  if (has_sse42) return ExtendSse42(crc, static_cast<const uint8_t*>(data), n);
#endif
  return Crc32cExtendPortable(crc, data, n);
}

}  // namespace tfctr
