#include "tfctr/core/storage/json.h"

#include <charconv>
#include <cstdio>
#include <utility>

namespace tfctr {
namespace {

constexpr int kMaxDepth = 32;

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
  } else if (code < 0x800) {
    *out += static_cast<char>(0xc0 | code >> 6);
    *out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    if (code < 0x10000) {
      *out += static_cast<char>(0xe0 | code >> 12);
    } else {
      *out += static_cast<char>(0xf0 | code >> 18);
      *out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    }
    *out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    *out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  bool Document(Json* value) {
    if (!Value(value, 0)) return false;
    Space();
    return at_ == text_.size();
  }
  size_t at() const { return at_; }

 private:
  void Space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool Take(char c) {
    Space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool Value(Json* value, int depth) {
    Space();
    if (at_ >= text_.size() || depth > kMaxDepth) return false;
    switch (text_[at_]) {
      case '{':
        return Map(value, depth);
      case '[':
        return List(value, depth);
      case '"':
        value->kind = Json::Kind::kText;
        return Text(&value->text);
      case 't':
      case 'f':
        value->kind = Json::Kind::kBool;
        value->flag = text_[at_] == 't';
        return Word(value->flag ? "true" : "false");
      case 'n':
        return Word("null");
      default:
        return Number(value);
    }
  }

  bool Number(Json* value) {
    value->kind = Json::Kind::kNumber;
    if (text_[at_] != '-' && (text_[at_] < '0' || text_[at_] > '9')) return false;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value->number);
    at_ += static_cast<size_t>(end - begin);
    return error == std::errc();
  }

  bool Hex4(uint32_t* code) {
    if (at_ + 4 > text_.size()) return false;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, *code, 16);
    at_ += 4;
    return error == std::errc() && end == begin + 4;
  }

  bool Escape(std::string* out) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt";
    static constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    if (const size_t k = kFrom.find(c); k != std::string_view::npos) {
      *out += kTo[k];
      return true;
    }
    uint32_t code = 0;
    if (c != 'u' || !Hex4(&code)) return false;
    if (code >= 0xd800 && code < 0xdc00) {  // the first half of a pair
      uint32_t low = 0;
      if (!Word("\\u") || !Hex4(&low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    AppendUtf8(code, out);
    return true;
  }

  bool Text(std::string* out) {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        *out += c;
      } else if (!Escape(out)) {
        return false;
      }
    }
    return Take('"');
  }

  bool List(Json* value, int depth) {
    value->kind = Json::Kind::kList;
    ++at_;
    if (Take(']')) return true;
    do {
      value->list.emplace_back();
      if (!Value(&value->list.back(), depth + 1)) return false;
    } while (Take(','));
    return Take(']');
  }

  bool Map(Json* value, int depth) {
    value->kind = Json::Kind::kMap;
    ++at_;
    if (Take('}')) return true;
    do {
      Space();
      std::string key;
      if (at_ >= text_.size() || text_[at_] != '"' || !Text(&key) || !Take(':')) return false;
      if (!Value(&value->map[key], depth + 1)) return false;
    } while (Take(','));
    return Take('}');
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<Json> ParseJson(std::string_view text) {
  Json value;
  Parser parser(text);
  if (!parser.Document(&value)) {
    return Status::Invalid("is no JSON: it goes wrong at character " + std::to_string(parser.at()));
  }
  return value;
}

std::string WriteJson(const Json& value) {
  const auto join = [](const auto& items, const auto& text, char open, char close) {
    std::string out(1, open);
    for (const auto& item : items) out += (out.size() == 1 ? "" : ", ") + text(item);
    return out + close;
  };
  switch (value.kind) {
    case Json::Kind::kNull:
      break;
    case Json::Kind::kBool:
      return value.flag ? "true" : "false";
    case Json::Kind::kNumber: {
      char digits[32];
      return std::string(digits, std::to_chars(digits, digits + sizeof(digits), value.number).ptr);
    }
    case Json::Kind::kText:
      return JsonText(value.text);
    case Json::Kind::kList:
      return join(value.list, WriteJson, '[', ']');
    case Json::Kind::kMap:
      return join(
          value.map, [](const auto& member) { return JsonText(member.first) + ": " + WriteJson(member.second); }, '{',
          '}');
  }
  return "null";
}

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace tfctr
