// OpenChain of ev_bundle_chain.h.
#include "tfctr/core/kernels/ev_bundle_chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/path.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/storage/json.h"

namespace tfctr {
namespace {

using tensorflow::BundleReader;
using tensorflow::Tensor;
using tensorflow::tstring;

constexpr size_t kNamesInMessage = 8;
constexpr size_t kLongestChain = 100000;  // names that go in a circle come to an end

// Names of all embedding variables of the bundle, for a message.
std::string Variables(BundleReader* reader) {
  std::vector<std::string> names;
  size_t more = 0;
  std::string last;
  for (reader->Seek(""); reader->Valid(); reader->Next()) {
    const absl::string_view key = reader->key();
    if (absl::EndsWith(key, "/config") || key == "config") {
      last = std::string(key.substr(0, key.size() - std::string("config").size()));
    } else if (absl::EndsWith(key, "keys") && !last.empty() && key == absl::StrCat(last, "keys")) {
      if (names.size() < kNamesInMessage) {
        names.push_back(absl::StrCat("'", last.substr(0, last.size() - 1), "'"));
      } else {
        ++more;
      }
    }
  }
  if (names.empty()) return "it has no embedding variables";
  return absl::StrCat("it has ", absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

int64_t WholeNumber(const Json& map, const char* member, int64_t otherwise) {
  const auto it = map.map.find(member);
  int64_t value = otherwise;
  if (it == map.map.end() || it->second.kind != Json::Kind::kText || !absl::SimpleAtoi(it->second.text, &value)) {
    return otherwise;
  }
  return value;
}

std::string Text(const Json& map, const char* member) {
  const auto it = map.map.find(member);
  return it == map.map.end() ? std::string() : it->second.text;
}

void TakeParts(const Json& told, SavedTable* table) {
  table->rows = WholeNumber(told, "rows", -1);
  table->step = WholeNumber(told, "step", 0);
  table->key_dtype = Text(told, "key_dtype");
  table->save = Text(told, "save");
  const auto left_out = told.map.find("left_out");
  if (left_out == told.map.end()) return;
  for (const Json& part : left_out->second.list) {
    table->left_out_any = true;
    table->left_out_slots |= part.text == "slots";
  }
}

absl::Status ReadSavedTable(BundleReader* reader, const std::string& what, const std::string& name, SavedTable* table) {
  const std::string tensor_name = TensorName(name, "config");
  if (!reader->Contains(tensor_name)) {
    return absl::NotFoundError(absl::StrCat(what, "there is no tensor '", tensor_name, "'; ", Variables(reader)));
  }
  Tensor text(tensorflow::DT_STRING, tensorflow::TensorShape({}));
  const absl::Status read = reader->Lookup(tensor_name, &text);
  if (!read.ok()) {
    return absl::Status(read.code(), absl::StrCat(what, "tensor '", tensor_name, "': ", read.message()));
  }
  const Result<Json> parsed = ParseJson(std::string(text.scalar<tstring>()()));
  const Json* format = nullptr;
  if (parsed.ok()) {
    const auto it = parsed.value().map.find("format");
    if (it != parsed.value().map.end() && it->second.kind == Json::Kind::kNumber) format = &it->second;
  }
  if (format == nullptr || format->number < 1) {
    return absl::DataLossError(absl::StrCat(
        what, "tensor '", tensor_name,
        "' does not say the format: ", parsed.ok() ? "it has no number 'format' from 1 on" : parsed.status().message));
  }
  const Json& told = parsed.value();
  table->delta = format->number == kEvDeltaFormat && told.map.count("previous") > 0;
  if (format->number > kEvBundleFormat && !table->delta) {
    return absl::FailedPreconditionError(absl::StrCat(what, "it is of format ", format->number,
                                                      ", written by a newer tfctr; this one reads formats up to ",
                                                      kEvBundleFormat));
  }
  TakeParts(told, table);
  if (!table->delta) return absl::OkStatus();
  table->previous_name = Text(told.map.at("previous"), "name");
  table->previous_save = Text(told.map.at("previous"), "save");
  if (table->previous_name.empty() || absl::StrContains(table->previous_name, '/') || table->previous_save.empty()) {
    return absl::DataLossError(absl::StrCat(what, "tensor '", tensor_name, "' is that of a delta, and names '",
                                            table->previous_name, "', save '", table->previous_save,
                                            "' as the one before it"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CannotRestore(const std::string& variable, const std::string& prefix) {
  return absl::StrCat(variable, " can't be restored from checkpoint '", prefix, "': ");
}

absl::Status OpenChain(BundleReader* reader, const std::string& prefix, const std::string& variable,
                       const std::string& name, std::vector<ChainLink>* chain) {
  chain->clear();
  ChainLink link;
  link.prefix = prefix;
  link.reader = reader;
  TF_RETURN_IF_ERROR(ReadSavedTable(reader, CannotRestore(variable, prefix), name, &link.table));
  chain->push_back(std::move(link));
  while (chain->back().table.delta) {
    const ChainLink& delta = chain->back();
    const std::string what = absl::StrCat(CannotRestore(variable, delta.prefix), "it is a delta on checkpoint '",
                                          delta.table.previous_name, "', save ", delta.table.previous_save, ", ");
    ChainLink before;
    before.prefix = tensorflow::io::JoinPath(tensorflow::io::Dirname(prefix), delta.table.previous_name);
    before.owned = std::make_unique<BundleReader>(tensorflow::Env::Default(), before.prefix);
    before.reader = before.owned.get();
    const absl::Status& opened = before.owned->status();
    if (!opened.ok()) {
      return absl::Status(opened.code(), absl::StrCat(what, "which can't be read from its folder: ", opened.message()));
    }
    TF_RETURN_IF_ERROR(ReadSavedTable(before.reader, CannotRestore(variable, before.prefix), name, &before.table));
    if (before.table.save != delta.table.previous_save) {
      return absl::FailedPreconditionError(absl::StrCat(what, "but '", before.prefix, "' is ",
                                                        before.table.save.empty()
                                                            ? std::string("a checkpoint without a save's name")
                                                            : absl::StrCat("save ", before.table.save),
                                                        ": a delta fits the very save that it was made on"));
    }
    if (chain->size() >= kLongestChain) return absl::DataLossError(absl::StrCat(what, "and so on without an end"));
    chain->push_back(std::move(before));
  }
  std::reverse(chain->begin(), chain->end());
  return absl::OkStatus();
}

}  // namespace tfctr
