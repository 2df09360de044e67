#include "tfctr/core/openvino/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tfctr/core/storage/json.h"

namespace tfctr {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 24;

Status Wrong(const std::string& key, const std::string& expected) {
  return Status::Invalid("option '" + key + "': expected " + expected);
}

bool WholeNumber(const Json& json, int64_t least, int64_t* value) {
  const bool whole = json.kind == Json::Kind::kNumber && json.number == std::floor(json.number) &&
                     json.number >= static_cast<double>(least) && json.number <= static_cast<double>(kMostRows);
  if (whole) *value = static_cast<int64_t>(json.number);
  return whole;
}

Status Rows(const std::string& key, const Json& json, std::vector<int64_t>* rows) {
  if (json.kind != Json::Kind::kList) return Wrong(key, "a list of row counts");
  for (const Json& one : json.list) {
    int64_t value = 0;
    if (!WholeNumber(one, 1, &value)) return Wrong(key, "row counts of 1 or more");
    rows->push_back(value);
  }
  std::sort(rows->begin(), rows->end());
  rows->erase(std::unique(rows->begin(), rows->end()), rows->end());
  return Status::Ok();
}

Status Pad(const Json& json, std::map<int64_t, int64_t>* pad) {
  if (json.kind != Json::Kind::kMap) return Wrong("pad", "a map from a bucket to the fewest rows filled up to it");
  for (const auto& [key, value] : json.map) {
    int64_t bucket = 0;
    int64_t least = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), bucket);
    if (error != std::errc() || end != key.data() + key.size() || !WholeNumber(value, 1, &least)) {
      return Wrong("pad", "{\"bucket\": rows}, found '" + key + "'");
    }
    (*pad)[bucket] = least;
  }
  return Status::Ok();
}

}  // namespace

Result<OpenVinoOptions> OpenVinoOptions::Parse(const std::string& text) {
  OpenVinoOptions options;
  if (text.empty()) return options;
  const Result<Json> json = ParseJson(text);
  if (!json.ok()) return Status::Invalid("its options '" + text + "' " + json.status().message);
  if (json.value().kind != Json::Kind::kMap) return Status::Invalid("its options '" + text + "' are no JSON object");
  for (const auto& [key, value] : json.value().map) {
    int64_t number = 0;
    if (key == "buckets") {
      TFCTR_RETURN_IF_ERROR(Rows(key, value, &options.buckets));
    } else if (key == "warm") {
      TFCTR_RETURN_IF_ERROR(Rows(key, value, &options.warm));
    } else if (key == "pad") {
      TFCTR_RETURN_IF_ERROR(Pad(value, &options.pad));
    } else if (key == "dynamic") {
      if (value.kind != Json::Kind::kBool) return Wrong(key, "true or false");
      options.dynamic = value.flag;
    } else if (key == "users") {
      if (!WholeNumber(value, 1, &options.users)) return Wrong(key, "1 or more");
    } else if (key == "chunk") {
      if (!WholeNumber(value, 0, &options.chunk)) return Wrong(key, "0 or one of the buckets");
    } else if (key == "contexts") {
      if (!WholeNumber(value, 1, &number) || number > 1024) return Wrong(key, "1 to 1024");
      options.contexts = static_cast<int>(number);
    } else if (key == "max_contexts") {
      if (!WholeNumber(value, 0, &number) || number > 1024) return Wrong(key, "0 to 1024");
      options.max_contexts = static_cast<int>(number);
    } else {
      return Status::Invalid("it has no option '" + key +
                             "' (known: buckets, chunk, contexts, dynamic, max_contexts, pad, users, warm)");
    }
  }
  const auto known = [&options](int64_t rows) {
    return std::binary_search(options.buckets.begin(), options.buckets.end(), rows);
  };
  if (options.chunk != 0 && !known(options.chunk)) return Wrong("chunk", "0 or one of the buckets");
  for (const auto& [bucket, least] : options.pad) {
    if (!known(bucket)) {
      return Wrong("pad", "buckets of 'buckets', found " + std::to_string(bucket));
    }
  }
  if (!options.dynamic && options.buckets.empty()) return Wrong("buckets", "at least one where 'dynamic' is false");
  return options;
}

int64_t OpenVinoOptions::WholePieces(int64_t rows) const {
  if (chunk == 0 || rows <= chunk || std::binary_search(buckets.begin(), buckets.end(), rows)) return 0;
  return (rows - 1) / chunk;
}

int64_t OpenVinoOptions::FilledRows(int64_t rows) {
  int64_t step = 1;
  while (rows > 32 * step) step *= 2;
  return (rows + step - 1) / step * step;
}

int64_t OpenVinoOptions::BucketFor(int64_t rows) const {
  const auto next = std::lower_bound(buckets.begin(), buckets.end(), rows);
  if (next == buckets.end()) return dynamic ? 0 : -1;
  if (*next == rows || !dynamic) return *next;
  const auto least = pad.find(*next);
  return least != pad.end() && rows >= least->second ? *next : 0;
}

}  // namespace tfctr
