// Keyed 64-bit string hash of StringToHashBucketStrong: SipHash-2-4 (little-endian; the last packet holds the trailing
// bytes and, in its top byte, the length).
// Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF".
#ifndef TFCTR_CORE_LOOKUP_SIP_HASH_H_
#define TFCTR_CORE_LOOKUP_SIP_HASH_H_

#include <cstdint>
#include <cstring>
#include <string_view>

namespace tfctr {

class SipHash {
 public:
  static uint64_t Hash(const uint64_t key[2], std::string_view text) {
    SipHash state(key);
    const char* bytes = text.data();
    size_t left = text.size();
    for (; left >= 8; bytes += 8, left -= 8) {
      uint64_t packet;
      std::memcpy(&packet, bytes, sizeof(packet));
      state.Update(packet);
    }
    state.Update(LastPacket(bytes, left, text.size()));
    state.v2_ ^= 0xff;
    for (int round = 0; round < 4; ++round) state.Round();
    return state.v0_ ^ state.v1_ ^ state.v2_ ^ state.v3_;
  }

 private:
  explicit SipHash(const uint64_t key[2])
      : v0_(key[0] ^ 0x736f6d6570736575ull),
        v1_(key[1] ^ 0x646f72616e646f6dull),
        v2_(key[0] ^ 0x6c7967656e657261ull),
        v3_(key[1] ^ 0x7465646279746573ull) {}

  static uint64_t LastPacket(const char* bytes, size_t left, size_t size) {
    uint64_t packet = 0;
    std::memcpy(&packet, bytes, left);  // at most 7 bytes; the length has the last one
    return packet | (static_cast<uint64_t>(size) << 56);
  }

  void Update(uint64_t packet) {
    v3_ ^= packet;
    Round();
    Round();
    v0_ ^= packet;
  }

  static uint64_t Rotate(uint64_t v, int bits) { return (v << bits) | (v >> (64 - bits)); }

  void Round() {
    v0_ += v1_;
    v1_ = Rotate(v1_, 13) ^ v0_;
    v0_ = Rotate(v0_, 32);
    v2_ += v3_;
    v3_ = Rotate(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = Rotate(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = Rotate(v1_, 17) ^ v2_;
    v2_ = Rotate(v2_, 32);
  }

  uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_SIP_HASH_H_
