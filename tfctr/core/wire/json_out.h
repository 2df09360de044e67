// JSON values written to the end of a string. Floats have the fewest digits that read back as the same number, and a
// point or an exponent, so that they stay floats; NaN and infinities are written as TF Serving writes them (NaN,
// Infinity, -Infinity), which JSON itself has not.
#ifndef TFCTR_CORE_WIRE_JSON_OUT_H_
#define TFCTR_CORE_WIRE_JSON_OUT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tfctr {

void PutJsonInteger(int64_t value, std::string* out);
void PutJsonUnsigned(uint64_t value, std::string* out);
void PutJsonFloat(float value, std::string* out);
void PutJsonDouble(double value, std::string* out);

// `text` must be UTF-8.
void PutJsonText(std::string_view text, std::string* out);
// {"b64": "..."}: bytes of any kind, as TF Serving has them.
void PutJsonBytes(std::string_view bytes, std::string* out);

// Standard alphabet, with padding. False for text that is not base64 (nothing else may be in it).
bool DecodeBase64(std::string_view text, std::string* out);

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_JSON_OUT_H_
