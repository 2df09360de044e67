#include "tfctr/core/runtime/json_input.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "tfctr/core/runtime/numbers.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/request_checks.h"
#include "tfctr/core/wire/json_cursor.h"

namespace tfctr {

namespace {

using PutNumber = bool (*)(const JsonNumber&, char*);
using PutBool = bool (*)(bool, char*);

template <typename D>
bool Put(const JsonNumber& from, char* to) {
  D number{};
  bool fits = false;
  if constexpr (kIsFloat<D>) {
    fits = from.is_real ? CastNumber<double, D>(from.real, &number) : CastNumber<int64_t, D>(from.integer, &number);
  } else if constexpr (!std::is_same_v<D, bool>) {
    fits = !from.is_real && CastNumber<int64_t, D>(from.integer, &number);
  }
  std::memcpy(to, &number, sizeof(D));
  return fits;
}

template <typename D>
bool PutTruth(bool from, char* to) {
  D number{};
  const bool fits = CastNumber<bool, D>(from, &number);
  std::memcpy(to, &number, sizeof(D));
  return fits;
}

// The values of one part from nested lists. The first `levels` nestings below the outermost list may have rows of
// different length; the rest is uniform. As list_input.cc does for Python's lists.
class JsonColumn {
 public:
  JsonColumn(const Part& part, int levels)
      : part_(part),
        levels_(static_cast<size_t>(levels)),
        splits_(levels_, std::vector<int64_t>{0}),
        put_(WithNumberType(
            part.dtype, [](auto type) -> PutNumber { return &Put<decltype(type)>; }, static_cast<PutNumber>(nullptr))),
        put_bool_(WithNumberType(
            part.dtype, [](auto type) -> PutBool { return &PutTruth<decltype(type)>; },
            static_cast<PutBool>(nullptr))) {}

  // False: not what is read here.
  bool Column(JsonCursor* cursor) { return known() && Nest(cursor, 0); }
  // The same, with the items of the outermost list one by one.
  bool BeginRows() { return known() && Open(0); }
  bool Row(JsonCursor* cursor) { return Item(cursor, 0); }
  bool EndRows(int64_t rows) { return Close(0, rows); }

  std::vector<std::vector<int64_t>>& splits() { return splits_; }
  // Of the outermost list.
  int64_t length() const { return dims_[0]; }

  void Finish(PartValue* out, BlockMemory* memory) {
    if (dims_.size() <= levels_) dims_.resize(levels_ + 1, -1);
    if (levels_ > 0) {
      out->dims.push_back(rows_);
    } else {
      out->dims.push_back(dims_[0]);
    }
    for (size_t d = levels_ + 1; d < dims_.size(); ++d) out->dims.push_back(dims_[d]);
    if (part_.element_bytes == 0) {
      out->elements = static_cast<int64_t>(texts_.size());
      auto* views = memory->TakeArray<std::string_view>(texts_.size());
      std::uninitialized_copy(texts_.begin(), texts_.end(), views);
      out->source = PartValue::Source::kViews;
      out->data = reinterpret_cast<const char*>(views);
      return;
    }
    out->elements = static_cast<int64_t>(used_ / part_.element_bytes);
    bytes_.resize(used_);
    out->Own(std::move(bytes_));
  }

 private:
  bool known() const { return part_.element_bytes == 0 || put_ != nullptr; }

  bool Walk(JsonCursor* cursor, size_t depth) {
    return cursor->Peek() == '[' ? Nest(cursor, depth) : Leaf(cursor, depth);
  }
  bool Item(JsonCursor* cursor, size_t depth) {
    if (depth == levels_) ++rows_;
    return Walk(cursor, depth + 1);
  }

  bool Nest(JsonCursor* cursor, size_t depth) {
    if (!Open(depth) || !cursor->Take('[')) return false;
    int64_t size = 0;
    if (!cursor->Take(']')) {
      do {
        ++size;
        if (!Integer(cursor, depth) && !Item(cursor, depth)) return false;
      } while (cursor->Take(','));
      if (!cursor->Take(']')) return false;
    }
    return Close(depth, size);
  }

  // An item that is a whole number of an int64 part, where others were read before: nearly all that requests hold.
  bool Integer(JsonCursor* cursor, size_t depth) {
    int64_t number = 0;
    if (part_.dtype != tensorflow::DT_INT64 || leaf_depth_ != static_cast<int64_t>(depth) + 1) return false;
    if (!cursor->PlainInteger(&number)) return false;
    if (depth == levels_) ++rows_;
    std::memcpy(NewValue(), &number, sizeof(number));
    return true;
  }

  // Where the next value is written.
  char* NewValue() {
    constexpr size_t kLeast = 256;
    if (used_ + part_.element_bytes > bytes_.size()) bytes_.resize(std::max(kLeast, 2 * bytes_.size()));
    char* const to = bytes_.data() + used_;
    used_ += part_.element_bytes;
    return to;
  }

  bool Open(size_t depth) {
    if (depth >= kMaxListDepth) return false;
    if (leaf_depth_ >= 0 && static_cast<size_t>(leaf_depth_) <= depth) return false;
    if ((depth == 0 || depth > levels_) && dims_.size() <= depth) dims_.resize(depth + 1, -1);
    return true;
  }

  bool Close(size_t depth, int64_t size) {
    if (depth > 0 && depth <= levels_) {
      std::vector<int64_t>& split = splits_[depth - 1];
      split.push_back(depth == levels_ ? rows_ : static_cast<int64_t>(splits_[depth].size()) - 1);
      return true;
    }
    if (dims_[depth] < 0) dims_[depth] = size;
    return dims_[depth] == size;
  }

  bool Leaf(JsonCursor* cursor, size_t depth) {
    if (depth == 0 || (depth <= levels_ && levels_ > 0)) return false;
    if (leaf_depth_ < 0) {
      if (dims_.size() > depth) return false;
      leaf_depth_ = static_cast<int64_t>(depth);
    }
    if (static_cast<int64_t>(depth) != leaf_depth_) return false;
    if (part_.element_bytes == 0) return cursor->Text(&texts_.emplace_back());
    char* const to = NewValue();
    const char first = cursor->Peek();
    if (first == 't' || first == 'f') {
      bool truth = false;
      return cursor->Bool(&truth) && put_bool_(truth, to);
    }
    JsonNumber number;
    return cursor->Number(&number) && put_(number, to);
  }

  const Part& part_;
  const size_t levels_;
  std::vector<std::vector<int64_t>> splits_;
  const PutNumber put_;
  const PutBool put_bool_;
  std::vector<int64_t> dims_;  // -1: not seen yet; index = depth of the list
  int64_t leaf_depth_ = -1;
  int64_t rows_ = 0;         // entries of the innermost ragged level
  std::vector<char> bytes_;  // of values, and room for more behind `used_`
  size_t used_ = 0;
  std::vector<std::string_view> texts_;
};

// The parts of a signature from the columns or rows of TF Serving's request.
class JsonReader {
 public:
  JsonReader(const SignaturePlan& plan, int64_t max_rows, WireRequest* request)
      : plan_(plan), max_rows_(max_rows), request_(*request), given_(plan.parts.size(), 0) {
    request_.values = std::vector<PartValue>(plan.parts.size());
  }

  bool ReadColumns(const std::vector<JsonMember>& inputs);
  bool ReadRows(std::string_view instances, int64_t* count);

 private:
  // An input of the request: the column, and what of the signature it is.
  struct Target {
    std::string_view name;
    const Entry* entry = nullptr;
    const Feature* feature = nullptr;  // given as a whole
    std::optional<JsonColumn> column;
    size_t seen = 0;  // rows
  };

  // The entry of a name. nullptr: there is none, or the name may also mean bytes in base64.
  const Entry* Find(std::string_view name) {
    const Entry* entry = name == "b64" ? nullptr : plan_.FindEntry(name);
    if (entry != nullptr && entry->part >= 0) given_[static_cast<size_t>(entry->part)] = 1;
    return entry;
  }
  // When all names are known. of_lists: the first item of the column is a list, or there is none.
  bool Choose(bool of_lists, Target* target) const;
  bool Take(Target* target);

  const SignaturePlan& plan_;
  const int64_t max_rows_;
  WireRequest& request_;
  std::vector<char> given_;  // by part: named in the request
};

bool JsonReader::Choose(bool of_lists, Target* target) const {
  const Entry& entry = *target->entry;
  bool whole = entry.part < 0;
  if (!whole && entry.feature >= 0 && of_lists) {
    const std::vector<int>& parts = plan_.features[static_cast<size_t>(entry.feature)].parts;
    whole = std::none_of(parts.begin(), parts.end(),
                         [&](int part) { return part != entry.part && given_[static_cast<size_t>(part)] != 0; });
  }
  if (!whole) {
    target->column.emplace(plan_.parts[static_cast<size_t>(entry.part)], 0);
    return true;
  }
  target->feature = &plan_.features[static_cast<size_t>(entry.feature)];
  if (target->feature->levels < 1) return false;
  target->column.emplace(plan_.parts[static_cast<size_t>(target->feature->values)], target->feature->levels);
  return true;
}

bool JsonReader::Take(Target* target) {
  const auto present = [&](int part) { return request_.values[static_cast<size_t>(part)].present(); };
  const int number = target->feature != nullptr ? target->feature->values : target->entry->part;
  if (present(number)) return false;
  if (target->feature != nullptr) {
    const std::vector<int>& parts = target->feature->parts;
    if (std::any_of(parts.begin(), parts.end(), present)) return false;
  }
  PartValue* const value = &request_.values[static_cast<size_t>(number)];
  target->column->Finish(value, &request_.memory);
  CheckShape(plan_.parts[static_cast<size_t>(number)], value);
  if (target->feature != nullptr) {
    SetRows(plan_, *target->feature, std::move(target->column->splits()), &request_.values);
  }
  return true;
}

bool JsonReader::ReadColumns(const std::vector<JsonMember>& inputs) {
  std::vector<Target> targets(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    targets[i].entry = Find(inputs[i].name);
    if (targets[i].entry == nullptr) return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    Target& target = targets[i];
    JsonCursor look(inputs[i].value);
    const bool of_lists = look.Take('[') && (look.Peek() == '[' || look.Peek() == ']');
    JsonCursor cursor(inputs[i].value);
    if (!Choose(of_lists, &target) || !target.column->Column(&cursor) || !cursor.AtEnd()) return false;
    if (target.column->length() > max_rows_ || !Take(&target)) return false;
  }
  return true;
}

bool JsonReader::ReadRows(std::string_view instances, int64_t* count) {
  std::vector<Target> targets;
  {
    JsonCursor first(instances);
    if (!first.Take('[') || !first.Take('{')) return false;
    do {
      Target& target = targets.emplace_back();
      if (!first.Text(&target.name) || !first.Take(':')) return false;
      target.entry = Find(target.name);
      if (target.entry == nullptr) return false;
      target.seen = first.Peek() == '[' ? 1 : 0;  // until all names are known
      std::string_view value;
      if (!first.Skip(static_cast<int64_t>(kMaxListDepth), &value)) return false;
    } while (first.Take(','));
  }
  absl::flat_hash_map<std::string_view, size_t> places;
  for (size_t i = 0; i < targets.size(); ++i) {
    Target& target = targets[i];
    if (!places.emplace(target.name, i).second || !Choose(target.seen != 0, &target)) return false;
    if (!target.column->BeginRows()) return false;
    target.seen = 0;
  }
  JsonCursor cursor(instances);
  size_t rows = 0;
  if (!cursor.Take('[')) return false;
  do {
    if (static_cast<int64_t>(++rows) > max_rows_ || !cursor.Take('{')) return false;
    size_t members = 0;
    do {
      std::string_view name;
      if (!cursor.Text(&name) || !cursor.Take(':') || members == targets.size()) return false;
      size_t place = members++;
      if (targets[place].name != name) {  // nearly all rows have the order of the first
        const auto found = places.find(name);
        if (found == places.end()) return false;
        place = found->second;
      }
      Target& target = targets[place];
      if (target.seen == rows || !target.column->Row(&cursor)) return false;
      target.seen = rows;
    } while (cursor.Take(','));
    if (members != targets.size() || !cursor.Take('}')) return false;
  } while (cursor.Take(','));
  if (!cursor.Take(']') || !cursor.AtEnd()) return false;
  *count = static_cast<int64_t>(rows);
  return std::all_of(targets.begin(), targets.end(), [&](Target& target) {
    return target.column->EndRows(static_cast<int64_t>(rows)) && Take(&target);
  });
}

}  // namespace

bool ReadJson(const SignaturePlan& plan, JsonRequest* json, WireRequest* request) {
  if (json->infer) return ReadJsonInfer(plan, json->kserve, json->max_rows, request);
  const JsonPredictView& view = json->predict;
  try {
    JsonReader reader(plan, json->max_rows, request);
    if (!(view.by_rows ? reader.ReadRows(view.instances, &json->rows) : reader.ReadColumns(view.inputs))) return false;
    FinishValues(plan, &request->values, &request->absent);
  } catch (const Mismatch&) {
    return false;
  } catch (const BadRequest&) {
    return false;
  }
  return true;
}

}  // namespace tfctr
