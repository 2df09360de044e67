// What a parsed lookup spec must satisfy whatever the request: see spec.h.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tfctr/core/lookup/spec.h"

namespace tfctr {
namespace {

bool IsInteger(const ValueType& type) {
  switch (type.dtype) {
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return !type.is_string;
    default:
      return false;
  }
}

bool IsFloat(const ValueType& type) {
  return !type.is_string && (type.dtype == DType::kFloat32 || type.dtype == DType::kFloat64 ||
                             type.dtype == DType::kFloat16 || type.dtype == DType::kBFloat16);
}

std::string TypeName(const ValueType& type) { return type.is_string ? "string" : DTypeName(type.dtype); }

// Follows the value's type through the steps; "" when every step can take what it gets and the end is an integer.
std::string CheckSteps(const LookupSpec& spec) {
  ValueType type = spec.ids_type;
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    const Step& step = spec.steps[i];
    const std::string got = "step " + std::to_string(i) + " cannot take " + TypeName(type) + " values";
    switch (step.kind) {
      case StepKind::kCast:
        if (type.is_string) return got;
        type = {step.dtype, false};
        break;
      case StepKind::kAsString:
        if (!IsInteger(type)) return got;
        type = {DType::kInvalid, true};
        break;
      case StepKind::kHashFast:
      case StepKind::kHashStrong:
      case StepKind::kFingerprint:
        if (!type.is_string) return got;
        type = {DType::kInt64, false};
        break;
      case StepKind::kFind:
        if (!spec.hashed) return "step find needs a hashed table";
        if (i + 1 != spec.steps.size()) return "step find must be the last one";
        if (!IsInteger(type)) return got;
        type = {DType::kInt64, false};
        break;
      case StepKind::kBucketize:
        if (type.is_string || (!IsFloat(type) && !IsInteger(type))) return got;
        type = {DType::kInt32, false};
        break;
      case StepKind::kVocab:
      case StepKind::kVocabOov:
        if (!type.is_string && !IsInteger(type)) return got;
        type = {DType::kInt64, false};
        break;
      case StepKind::kAddCol:
        if (spec.form != Form::kDense) return "step addcol needs the dense form";
        if (!IsInteger(type)) return got;
        break;
      case StepKind::kPruneEqual:
        if (!type.is_string && !step.value.number) return "prune_equal: '" + step.value.text + "' is no number";
        break;
      case StepKind::kSelectEqual:
        if (!IsInteger(type)) return got;
        if (!spec.ids_type.is_string && !step.value.number)
          return "select_equal: '" + step.value.text + "' is no number";
        break;
      default:
        if (!IsInteger(type)) return got;
    }
  }
  if (spec.hashed && (spec.steps.empty() || spec.steps.back().kind != StepKind::kFind)) {
    return "a hashed table needs find as the last step";
  }
  if (!IsInteger(type)) return "the ids are " + TypeName(type) + " after the steps, not integers";
  return "";
}

}  // namespace

Status BindType(Source source, const char* what, const std::string& name, const std::vector<ValueType>& packed,
                const std::vector<ValueType>& args, ValueType* type) {
  if (!source.used()) return Status::Ok();
  const std::vector<ValueType>& from = source.packed ? packed : args;
  if (static_cast<size_t>(source.index) >= from.size()) {
    return Status::Invalid("'" + name + "': " + what + " is " + (source.packed ? "in:" : "arg:") +
                           std::to_string(source.index) + ", but there are only " + std::to_string(from.size()));
  }
  *type = from[source.index];
  return Status::Ok();
}

Status CheckLookup(const LookupSpec& spec) {
  const auto fail = [&spec](const std::string& what) { return Status::Invalid("lookup '" + spec.name + "': " + what); };
  if (spec.table < 0 || spec.table_width == 0 || spec.table_dtype == DType::kInvalid) {
    return fail("needs table, table_rows, table_width and table_dtype");
  }
  if (spec.storage != DType::kInvalid && spec.table_dtype != DType::kFloat32) {
    return fail(std::string("storage ") + DTypeName(spec.storage) + " is for float32 tables, not for " +
                DTypeName(spec.table_dtype));
  }
  if (spec.hashed && spec.table_dtype != DType::kFloat32) {
    return fail(std::string("hashed tables are float32, not ") + DTypeName(spec.table_dtype));
  }
  if (!spec.ids.used()) return fail("needs ids");
  if (spec.output < 0) return fail("needs output and column");
  const bool rows_needed = spec.form != Form::kDense;
  if (rows_needed != spec.rows.used()) {
    return fail(rows_needed ? "this form needs rows" : "the dense form takes no rows");
  }
  if (spec.form == Form::kSparse && !spec.shape.used() && spec.empty != EmptyRule::kShort) {
    return fail("the sparse form needs shape, except with empty=short");
  }
  if (spec.form == Form::kDense && spec.empty == EmptyRule::kShort) return fail("the dense form has no short output");
  if (spec.form != Form::kDense && (spec.mask.used() || spec.mask_value)) return fail("masks need the dense form");
  if (spec.form == Form::kRagged && spec.sort_rows) return fail("ragged rows are in order always");
  if (spec.prune_weights && !spec.weights.used()) return fail("prune_weights needs weights");
  if (spec.combiner == Combiner::kNone) {
    if (spec.form != Form::kDense) return fail("only the dense form goes without a combiner");
    if (spec.weights.used() || spec.fill_id || spec.prunes()) {
      return fail("weights, fill_id and prune steps need a combiner");
    }
  } else if (spec.ids_per_row > 0) {
    return fail("ids_per_row is for combiner none");
  }
  if (spec.denominator == Denominator::kPositions && spec.form != Form::kDense) {
    return fail("denominator positions needs the dense form");
  }
  const std::string wrong = CheckSteps(spec);
  if (!wrong.empty()) return fail(wrong);
  if (spec.mask_value && !spec.ids_type.is_string && !spec.mask_value->number) {
    return fail("mask_value '" + spec.mask_value->text + "' is no number");
  }
  return Status::Ok();
}

Status CheckPlacements(const GroupSpec& group) {
  if (group.outputs.empty()) return Status::Invalid("lookup spec: no output");
  struct Part {
    int64_t begin;
    int64_t end;
    const std::string* name;
  };
  std::vector<std::vector<Part>> parts(group.outputs.size());
  const auto place = [&](const std::string& name, int32_t output, int64_t column, int64_t width) {
    if (output < 0 || static_cast<size_t>(output) >= group.outputs.size()) {
      return Status::Invalid("lookup spec: '" + name + "' goes to output " + std::to_string(output) + " of " +
                             std::to_string(group.outputs.size()));
    }
    parts[output].push_back({column, column + width, &name});
    return Status::Ok();
  };
  for (const LookupSpec& lookup : group.lookups) {
    TFCTR_RETURN_IF_ERROR(place(lookup.name, lookup.output, lookup.column, lookup.width()));
    if (lookup.table_dtype != group.outputs[lookup.output].dtype) {
      return Status::Invalid("lookup spec: '" + lookup.name + "' has a " + DTypeName(lookup.table_dtype) +
                             " table, its output is " + DTypeName(group.outputs[lookup.output].dtype));
    }
  }
  for (const CopySpec& copy : group.copies) {
    TFCTR_RETURN_IF_ERROR(place(copy.name, copy.output, copy.column, copy.width));
  }
  for (size_t k = 0; k < parts.size(); ++k) {
    std::sort(parts[k].begin(), parts[k].end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const Part& part : parts[k]) {
      if (part.begin != at) {
        return Status::Invalid("lookup spec: output " + std::to_string(k) + ": '" + *part.name + "' starts at column " +
                               std::to_string(part.begin) + ", expected " + std::to_string(at));
      }
      at = part.end;
    }
    if (at != group.outputs[k].columns) {
      return Status::Invalid("lookup spec: output " + std::to_string(k) + " has " +
                             std::to_string(group.outputs[k].columns) + " columns, its parts fill " +
                             std::to_string(at));
    }
  }
  return Status::Ok();
}

}  // namespace tfctr
