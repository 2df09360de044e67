// Text from the wire: whether it is UTF-8, and how messages show it.
#ifndef TFCTR_CORE_WIRE_TEXT_H_
#define TFCTR_CORE_WIRE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tfctr {

// Valid UTF-8: shortest forms, no surrogates, at most U+10FFFF.
bool IsUtf8(std::string_view text);

// `text` in quotes, for messages: control characters and bytes that are no UTF-8 as \xNN, long text cut.
std::string ShownText(std::string_view text);

// How alike two names are, 0 to 1, by the pieces that they have in common in the same order (Ratcliff and Obershelp).
double Likeness(std::string_view a, std::string_view b);

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_TEXT_H_
