#include "tfctr/core/runtime/request_batch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/kernels/unpack_slices.h"

namespace tfctr {

namespace {

using Kind = StackRule::Kind;
using tensorflow::tstring;

constexpr size_t kMaxConstantBytes = 4096;          // of parts that must be the same in all requests
constexpr int64_t kMaxEntries = int64_t{1} << 40;   // of values; sums of them fit int64
constexpr int64_t kMaxOtherDim = int64_t{1} << 62;  // of a dense_shape

bool IsInteger(tensorflow::DataType dtype) { return dtype == tensorflow::DT_INT32 || dtype == tensorflow::DT_INT64; }

// Fills the rules of one feature; `place`: of each part in the form.
void AddFeature(const SignaturePlan& plan, const Feature& feature, const std::vector<int>& place, StackForm* form) {
  const auto at = [&](int part) { return place[static_cast<size_t>(part)]; };
  const auto rule = [&](int part) -> StackRule& { return form->rules[static_cast<size_t>(at(part))]; };
  for (const int part : feature.parts) {
    if (at(part) < 0) {
      form->refused = "feature '" + feature.name + "' is not whole in this form";
      return;
    }
    if (part != feature.values && !IsInteger(plan.parts[static_cast<size_t>(part)].dtype)) {
      form->refused = "'" + plan.parts[static_cast<size_t>(part)].name + "' is neither int32 nor int64";
      return;
    }
  }
  rule(feature.values).kind = Kind::kValues;
  if (feature.kind == Feature::Kind::kRagged) {
    for (size_t level = 0; level < feature.row_splits.size(); ++level) {
      StackRule& splits = rule(feature.row_splits[level]);
      splits.kind = Kind::kSplits;
      splits.outer = level == 0;
      splits.below = at(level + 1 < feature.row_splits.size() ? feature.row_splits[level + 1] : feature.values);
      if (level > 0) splits.rows_from = at(feature.row_splits[level - 1]);
    }
    rule(feature.values).rows_from = at(feature.row_splits.back());
    return;
  }
  rule(feature.values).rows_from = at(feature.indices);
  rule(feature.indices).kind = Kind::kIndices;
  rule(feature.indices).rows_from = at(feature.dense_shape);
  rule(feature.indices).below = at(feature.values);
  rule(feature.dense_shape).kind = Kind::kDenseShape;
}

bool CountsRows(const StackRule& rule) {
  return rule.kind == Kind::kRows || rule.kind == Kind::kDenseShape || (rule.kind == Kind::kSplits && rule.outer);
}

StackForm MakeForm(const SignaturePlan& plan, const Form& form, bool split) {
  StackForm made;
  made.parts = form.parts;
  made.element_bytes = form.element_bytes;
  made.rules.resize(form.parts.size());
  std::vector<int> place(plan.parts.size(), -1);
  for (size_t i = 0; i < form.parts.size(); ++i) place[static_cast<size_t>(form.parts[i])] = static_cast<int>(i);
  for (size_t i = 0; i < form.parts.size(); ++i) {
    const int number = form.parts[i];
    const Part& part = plan.parts[static_cast<size_t>(number)];
    StackRule& rule = made.rules[i];
    rule.once = split && part.once;
    rule.wide = part.dtype == tensorflow::DT_INT64;
    rule.element_bytes = part.element_bytes;
    rule.rank_known = part.rank_known;
    if (number == plan.row_to_user) {
      rule.kind = Kind::kRowToUser;
    } else if (part.feature < 0 && (!part.rank_known || (!part.dims.empty() && part.dims[0] < 0))) {
      rule.kind = Kind::kRows;
    }
  }
  for (const Feature& feature : plan.features) {
    if (made.refused.empty()) AddFeature(plan, feature, place, &made);
  }
  for (size_t i = 0; i < form.parts.size(); ++i) {
    const Part& part = plan.parts[static_cast<size_t>(form.parts[i])];
    if (part.like < 0 || plan.parts[static_cast<size_t>(part.like)].feature < 0) continue;
    const int like = place[static_cast<size_t>(part.like)];
    if (like < 0) {
      made.refused = "'" + part.name + "' comes without the values it belongs to";
      break;
    }
    made.rules[i].kind = Kind::kValues;
    made.rules[i].below = like;
    made.rules[i].rows_from = made.rules[static_cast<size_t>(like)].rows_from;
  }
  bool rows = false;
  for (size_t i = 0; i < made.rules.size(); ++i) {
    if (!CountsRows(made.rules[i])) continue;
    if (!made.rules[i].once) {
      rows = true;
    } else if (made.users_from < 0 && (made.rules[i].rank_known || made.rules[i].kind != Kind::kRows)) {
      made.users_from = static_cast<int>(i);
    }
  }
  if (split) rows = true;  // row_to_user has them
  if (made.refused.empty() && !rows) made.refused = "no input has a dimension for the rows of a batch";
  if (made.refused.empty() && split && made.users_from < 0) made.refused = "no input comes once per user";
  return made;
}

int64_t IntegerAt(const StackRule& rule, const char* data, int64_t i) {
  if (rule.wide) {
    int64_t number;
    std::memcpy(&number, data + i * static_cast<int64_t>(sizeof(number)), sizeof(number));
    return number;
  }
  int32_t number;
  std::memcpy(&number, data + i * static_cast<int64_t>(sizeof(number)), sizeof(number));
  return number;
}

void AppendNumber(int64_t number, std::string* key) {
  key->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// One request under inspection.
class Inspector {
 public:
  Inspector(const StackForm& form, const PackedRequest& request, const std::vector<PackedInput>& inputs)
      : form_(form), request_(request), inputs_(inputs), arena_(static_cast<const char*>(request.arena.data())) {}

  RequestInfo Run() {
    info_.key.reserve(form_.rules.size() + 16);
    info_.key.push_back(request_.split ? 's' : 'p');
    AppendNumber(static_cast<int64_t>(request_.absent.size()), &info_.key);
    for (const int part : request_.absent) AppendNumber(part, &info_.key);
    for (size_t i = 0; i < form_.rules.size() && info_.why.empty(); ++i) {
      if (!IsAbsent(i)) Look(i);
    }
    // Entries are checked when the numbers of rows are known.
    for (size_t i = 0; i < form_.rules.size() && info_.why.empty(); ++i) CheckEntries(i);
    if (info_.why.empty() && rows_ < 0) info_.why = "it has no rows";
    if (info_.why.empty() && (rows_ > kMaxStackedRows || users_ > kMaxStackedRows)) info_.why = "it has too many rows";
    if (info_.why.empty()) {
      info_.rows = rows_;
      info_.users = request_.split ? users_ : -1;
    }
    return std::move(info_);
  }

 private:
  const char* Data(const PackedInput& input) const { return arena_ + input.offset; }
  void Refuse(size_t i, const char* what) {
    info_.why = absl::StrCat("part ", form_.parts[i], " of its signature ", what);
  }
  bool IsAbsent(size_t i) const {
    return !request_.absent.empty() &&
           std::find(request_.absent.begin(), request_.absent.end(), form_.parts[i]) != request_.absent.end();
  }

  void Count(size_t i, int64_t rows) {
    int64_t& known = form_.rules[i].once ? users_ : rows_;
    if (known < 0) known = rows;
    if (known != rows || rows < 0) Refuse(i, "has another number of rows than the others");
  }

  void Look(size_t i) {
    const StackRule& rule = form_.rules[i];
    const PackedInput& input = inputs_[i];
    info_.key.push_back(static_cast<char>(input.rank));
    switch (rule.kind) {
      case Kind::kConstant:
        return AddConstant(i);
      case Kind::kRows:
        if (input.rank == 0) return AddConstant(i);
        Count(i, input.dims[0]);
        break;
      case Kind::kValues:
        if (input.rank == 0 || input.dims[0] > kMaxEntries) return Refuse(i, "has no values to stack");
        break;
      case Kind::kSplits:
        if (input.rank != 1 || input.elements == 0) return Refuse(i, "holds no row_splits");
        if (rule.outer) Count(i, input.elements - 1);
        return;
      case Kind::kIndices:
        if (input.rank != 2 || input.dims[1] == 0 || input.dims[0] > kMaxEntries) return Refuse(i, "holds no indices");
        break;
      case Kind::kDenseShape: {
        if (input.rank != 1 || input.elements == 0) return Refuse(i, "holds no dense_shape");
        for (int64_t d = 0; d < input.elements; ++d) {
          const int64_t size = IntegerAt(rule, Data(input), d);
          if (size < 0 || size > kMaxOtherDim) return Refuse(i, "holds a size that is out of range");
        }
        AppendNumber(input.elements, &info_.key);
        return Count(i, IntegerAt(rule, Data(input), 0));
      }
      case Kind::kRowToUser:
        if (input.rank != 1) return Refuse(i, "is no list");
        return Count(i, input.elements);
    }
    for (int32_t d = 1; d < input.rank; ++d) AppendNumber(input.dims[d], &info_.key);
  }

  void AddConstant(size_t i) {
    const PackedInput& input = inputs_[i];
    for (int32_t d = 0; d < input.rank; ++d) AppendNumber(input.dims[d], &info_.key);
    if (!input.is_string()) {
      if (input.bytes() > kMaxConstantBytes) return Refuse(i, "has no rows, and is too large to compare");
      info_.key.append(Data(input), input.bytes());
      return;
    }
    const tstring* strings = static_cast<const tstring*>(request_.strings.data()) + input.offset;
    for (int64_t k = 0; k < input.elements; ++k) {
      if (info_.key.size() > kMaxConstantBytes * 4) return Refuse(i, "has no rows, and is too large to compare");
      AppendNumber(static_cast<int64_t>(strings[k].size()), &info_.key);
      info_.key.append(strings[k].data(), strings[k].size());
    }
  }

  int64_t Entries(int place) const {
    const PackedInput& input = inputs_[static_cast<size_t>(place)];
    const bool splits = form_.rules[static_cast<size_t>(place)].kind == Kind::kSplits;
    return splits ? input.elements - 1 : input.rank == 0 ? -1 : input.dims[0];
  }

  template <typename T>
  void CheckSplits(size_t i) {
    const T* splits = reinterpret_cast<const T*>(Data(inputs_[i]));
    const int64_t count = inputs_[i].elements;
    bool rises = splits[0] == 0 && splits[count - 1] == Entries(form_.rules[i].below);
    for (int64_t k = 1; k < count; ++k) rises &= splits[k] >= splits[k - 1];
    if (!rises) Refuse(i, "holds row_splits that do not rise from 0 to what they split");
  }

  template <typename T>
  void CheckNumbers(size_t i, int64_t step, int64_t below, const char* what) {
    const T* numbers = reinterpret_cast<const T*>(Data(inputs_[i]));
    bool good = true;
    for (int64_t k = 0; k < inputs_[i].elements; k += step) {
      good &= static_cast<uint64_t>(numbers[k]) < static_cast<uint64_t>(below);
    }
    if (!good) Refuse(i, what);
  }

  void CheckEntries(size_t i) {
    const StackRule& rule = form_.rules[i];
    const PackedInput& input = inputs_[i];
    if (rule.kind == Kind::kSplits) {
      rule.wide ? CheckSplits<int64_t>(i) : CheckSplits<int32_t>(i);
    } else if (rule.kind == Kind::kIndices) {
      if (Entries(rule.below) != input.dims[0] ||
          inputs_[static_cast<size_t>(rule.rows_from)].elements != input.dims[1])
        return Refuse(i, "holds other indices than there are values or dimensions");
      constexpr const char* kWhat = "holds row numbers outside of its rows";
      const int64_t rows = rule.once ? users_ : rows_;
      rule.wide ? CheckNumbers<int64_t>(i, input.dims[1], rows, kWhat)
                : CheckNumbers<int32_t>(i, input.dims[1], rows, kWhat);
    } else if (rule.kind == Kind::kRowToUser) {
      CheckNumbers<int64_t>(i, 1, users_, "holds numbers of users that are not there");
    } else if (rule.kind == Kind::kValues && rule.below >= 0 && !IsAbsent(i)) {
      if (Entries(rule.below) != input.dims[0]) Refuse(i, "has another number of values than what it belongs to");
    }
  }

  const StackForm& form_;
  const PackedRequest& request_;
  const std::vector<PackedInput>& inputs_;
  const char* const arena_;
  RequestInfo info_;
  int64_t rows_ = -1;
  int64_t users_ = -1;
};

}  // namespace

absl::Status ParseRequest(const StackForm& form, const PackedRequest& request, std::vector<PackedInput>* inputs) {
  return ParsePackedTensors(form.element_bytes, request.arena, request.shapes, request.strings, inputs);
}

absl::StatusOr<BatchPlan> BatchPlan::Make(const SignaturePlan& plan) {
  absl::StatusOr<OutputPlan> outputs = OutputPlan::Make(plan.plain.outputs);
  if (!outputs.ok()) return outputs.status();
  BatchPlan made(*std::move(outputs));
  made.plain_ = MakeForm(plan, plan.plain, /*split=*/false);
  if (!made.plain_.refused.empty()) return absl::FailedPreconditionError(made.plain_.refused);
  if (plan.split.has_value()) made.split_ = MakeForm(plan, *plan.split, /*split=*/true);
  return made;
}

const StackForm* BatchPlan::FormOf(const PackedRequest& request) const {
  const StackForm* form = !request.split ? &plain_ : split_.has_value() ? &*split_ : nullptr;
  return form == nullptr || !form->refused.empty() ? nullptr : form;
}

RequestInfo BatchPlan::Inspect(const PackedRequest& request) const {
  RequestInfo info;
  const StackForm* form = FormOf(request);
  if (form == nullptr) {
    info.why = split_.has_value() ? split_->refused : "it is in a form that the signature has not";
    return info;
  }
  static thread_local std::vector<PackedInput> inputs;
  const absl::Status status = ParseRequest(*form, request, &inputs);
  if (!status.ok()) {
    info.why = std::string(status.message());
    return info;
  }
  return Inspector(*form, request, inputs).Run();
}

}  // namespace tfctr
