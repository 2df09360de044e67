#include "tfctr/core/lookup/spec.h"

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "tfctr/core/lookup/spec_text.h"

namespace tfctr {
namespace {

using spec_text::Decode;
using spec_text::MakeTextValue;
using spec_text::ParseDouble;
using spec_text::ParseInt;
using spec_text::ParseUint64;
using spec_text::Split;

// One `key=value` of a line; `raw` is not yet decoded.
struct Word {
  std::string_view key;
  std::string_view raw;
};

struct Line {
  int number = 0;
  std::string_view kind;  // "output", "lookup", "copy"
  std::vector<std::string_view> plain;
  std::vector<Word> words;
};

Status Fail(const Line& line, std::string_view word, const std::string& what) {
  std::string where = "lookup spec, line " + std::to_string(line.number);
  if (!word.empty()) where += ", word '" + std::string(word) + "'";
  return Status::Invalid(where + ": " + what);
}

template <typename E>
bool ParseEnum(const std::string& text, std::initializer_list<std::pair<const char*, E>> names, E* value) {
  for (const auto& [name, e] : names) {
    if (text == name) {
      *value = e;
      return true;
    }
  }
  return false;
}

constexpr std::initializer_list<std::pair<const char*, StepKind>> kStepNames = {
    {"cast", StepKind::kCast},
    {"mod", StepKind::kMod},
    {"mul", StepKind::kMul},
    {"add", StepKind::kAdd},
    {"divide", StepKind::kDivide},
    {"addcol", StepKind::kAddCol},
    {"wrap_negative", StepKind::kWrapNegative},
    {"as_string", StepKind::kAsString},
    {"hash_fast", StepKind::kHashFast},
    {"hash_strong", StepKind::kHashStrong},
    {"bucketize", StepKind::kBucketize},
    {"vocab", StepKind::kVocab},
    {"vocab_oov", StepKind::kVocabOov},
    {"select_negative", StepKind::kSelectNegative},
    {"select_out_of_range", StepKind::kSelectOutOfRange},
    {"prune_negative", StepKind::kPruneNegative},
    {"prune_equal", StepKind::kPruneEqual},
    {"select_equal", StepKind::kSelectEqual},
    {"fingerprint", StepKind::kFingerprint},
    {"find", StepKind::kFind},
};

// Number of integer arguments; -1: any positive number; -2: arguments are no integers.
int StepArity(StepKind kind) {
  switch (kind) {
    case StepKind::kMod:
    case StepKind::kMul:
    case StepKind::kAdd:
    case StepKind::kDivide:
    case StepKind::kWrapNegative:
    case StepKind::kHashFast:
    case StepKind::kSelectNegative:
      return 1;
    case StepKind::kVocab:
      return 2;
    case StepKind::kVocabOov:
    case StepKind::kSelectOutOfRange:
      return 3;
    case StepKind::kAsString:
    case StepKind::kPruneNegative:
    case StepKind::kFingerprint:
    case StepKind::kFind:
      return 0;
    case StepKind::kAddCol:
      return -1;
    case StepKind::kCast:
    case StepKind::kHashStrong:
    case StepKind::kBucketize:
    case StepKind::kPruneEqual:
    case StepKind::kSelectEqual:
      return -2;
  }
  return -2;
}

// "" when the arguments are right, else what is wrong.
std::string ParseStepArgs(const std::vector<std::string>& args, Step* step) {
  const int arity = StepArity(step->kind);
  if (arity != -2) {
    if (arity >= 0 ? args.size() != static_cast<size_t>(arity) : args.empty()) {
      return "takes " + (arity >= 0 ? std::to_string(arity) : std::string("one or more")) + " arguments, not " +
             std::to_string(args.size());
    }
    for (const std::string& arg : args) {
      int64_t value;
      if (!ParseInt(arg, &value)) return "'" + arg + "' is no 64-bit integer";
      step->ints.push_back(value);
    }
  }
  switch (step->kind) {
    case StepKind::kMod:
    case StepKind::kDivide:
    case StepKind::kHashFast:
      if (step->ints[0] <= 0) return "needs a positive number, not " + args[0];
      break;
    case StepKind::kVocabOov:
      if (step->ints[2] <= 0) return "needs at least one bucket";
      break;
    case StepKind::kCast:
      if (args.size() != 1) return "takes one dtype";
      step->dtype = DTypeFromName(args[0]);
      if (step->dtype != DType::kInt32 && step->dtype != DType::kInt64 && step->dtype != DType::kUInt32 &&
          step->dtype != DType::kUInt64) {
        return "'" + args[0] + "' is not one of int32, int64, uint32, uint64";
      }
      break;
    case StepKind::kHashStrong: {
      int64_t buckets;
      if (args.size() != 3 || !ParseInt(args[0], &buckets) || buckets <= 0 || !ParseUint64(args[1], &step->key[0]) ||
          !ParseUint64(args[2], &step->key[1])) {
        return "takes a positive number of buckets and two 64-bit keys";
      }
      step->ints = {buckets};
      break;
    }
    case StepKind::kBucketize:
      for (const std::string& arg : args) {
        double value;
        if (!ParseDouble(arg, &value)) return "'" + arg + "' is no number";
        step->floats.push_back(std::strtof(arg.c_str(), nullptr));
      }
      break;
    case StepKind::kPruneEqual:
      if (args.size() > 1) return "takes one value";
      step->value = MakeTextValue(args.empty() ? "" : args[0]);
      break;
    case StepKind::kSelectEqual: {
      int64_t number;
      if (args.empty() || args.size() > 2 || !ParseInt(args[0], &number)) return "takes a number and one value";
      step->ints = {number};
      step->value = MakeTextValue(args.size() > 1 ? args[1] : "");
      break;
    }
    default:
      break;
  }
  return "";
}

Status ParseSteps(const Line& line, std::string_view raw, std::vector<Step>* steps) {
  for (const std::string_view part : Split(raw, '|')) {
    const size_t colon = part.find(':');
    const std::string kind(part.substr(0, colon));
    Step step;
    if (!ParseEnum(kind, kStepNames, &step.kind)) return Fail(line, "steps", "unknown step '" + kind + "'");
    std::vector<std::string> args;
    if (colon != std::string_view::npos) {
      for (const std::string_view arg : Split(part.substr(colon + 1), ';')) {
        std::string text;
        if (!Decode(arg, &text)) return Fail(line, "steps", "broken % escape in '" + std::string(arg) + "'");
        args.push_back(std::move(text));
      }
    }
    const std::string wrong = ParseStepArgs(args, &step);
    if (!wrong.empty()) return Fail(line, "steps", "step " + kind + " " + wrong);
    steps->push_back(std::move(step));
  }
  return Status::Ok();
}

bool ParseSource(const std::string& text, Source* source) {
  const bool packed = text.rfind("in:", 0) == 0;
  if (!packed && text.rfind("arg:", 0) != 0) return false;
  int64_t index;
  if (!ParseInt(text.substr(packed ? 3 : 4), &index) || index < 0 || index > INT32_MAX) return false;
  *source = {packed, static_cast<int32_t>(index)};
  return true;
}

Status SplitLines(std::string_view text, std::vector<Line>* lines) {
  int number = 0;
  for (const std::string_view raw : Split(text, '\n')) {
    ++number;
    if (raw.empty()) continue;
    Line line;
    line.number = number;
    for (const std::string_view token : Split(raw, ' ')) {
      if (token.empty()) continue;
      const size_t equals = token.find('=');
      if (equals == std::string_view::npos) {
        line.plain.push_back(token);
      } else {
        line.words.push_back({token.substr(0, equals), token.substr(equals + 1)});
      }
    }
    if (line.plain.empty()) return Fail(line, "", "starts with no keyword");
    line.kind = line.plain[0];
    lines->push_back(std::move(line));
  }
  if (lines->empty() || lines->front().kind != "tfctr-lookup") {
    return Status::Invalid("lookup spec, line 1: expected 'tfctr-lookup 1'");
  }
  const Line& head = lines->front();
  if (head.plain.size() != 2 || head.plain[1] != "1") {
    return Fail(head, "", "this library reads version 1 of the spec");
  }
  return Status::Ok();
}

Status ParseOutput(const Line& line, size_t expected, OutputSpec* output) {
  int64_t index;
  if (line.plain.size() != 2 || !ParseInt(std::string(line.plain[1]), &index) ||
      index != static_cast<int64_t>(expected)) {
    return Fail(line, "", "expected 'output " + std::to_string(expected) + "'");
  }
  for (const Word& word : line.words) {
    const std::string value(word.raw);
    bool ok;
    if (word.key == "form") {
      ok = ParseEnum(value, {{"rows", OutputForm::kRows}, {"like", OutputForm::kLike}}, &output->form);
    } else if (word.key == "columns") {
      ok = ParseInt(value, &output->columns) && output->columns > 0;
    } else if (word.key == "dtype") {
      output->dtype = DTypeFromName(value);
      ok = output->dtype != DType::kInvalid;
    } else {
      return Fail(line, word.key, "unknown word");
    }
    if (!ok) return Fail(line, word.key, "illegal value '" + value + "'");
  }
  if (output->columns == 0 || output->dtype == DType::kInvalid) return Fail(line, "", "needs columns and dtype");
  return Status::Ok();
}

// Sets the field that `word` names. Unknown word or illegal value: false (`known` tells which).
bool SetWord(const std::string& key, const std::string& value, LookupSpec* s, bool* known) {
  *known = true;
  int64_t flag;
  if (key == "name") return s->name = value, true;
  if (key == "table") return ParseInt(value, &s->table) && s->table >= 0;
  if (key == "table_rows") return ParseInt(value, &s->table_rows) && s->table_rows >= 0;
  if (key == "table_width") return ParseInt(value, &s->table_width) && s->table_width > 0;
  if (key == "table_dtype") {
    s->table_dtype = DTypeFromName(value);
    return s->table_dtype == DType::kFloat32 || s->table_dtype == DType::kFloat16 ||
           s->table_dtype == DType::kBFloat16 || s->table_dtype == DType::kFloat64;
  }
  if (key == "hashed") return ParseInt(value, &flag) && ((s->hashed = flag != 0), true);
  if (key == "storage") {
    s->storage = DTypeFromName(value);
    return s->storage == DType::kFloat16 || s->storage == DType::kBFloat16 || s->storage == DType::kInt8;
  }
  if (key == "form") {
    return ParseEnum(
        value,
        {{"dense", Form::kDense}, {"sparse", Form::kSparse}, {"ragged", Form::kRagged}, {"segments", Form::kSegments}},
        &s->form);
  }
  if (key == "ids") return ParseSource(value, &s->ids);
  if (key == "rows") return ParseSource(value, &s->rows);
  if (key == "shape") return ParseSource(value, &s->shape);
  if (key == "weights") return ParseSource(value, &s->weights);
  if (key == "mask") return ParseSource(value, &s->mask);
  if (key == "mask_value") return s->mask_value = MakeTextValue(value), true;
  if (key == "prune_weights") return ParseInt(value, &flag) && ((s->prune_weights = flag != 0), true);
  if (key == "sort_rows") return ParseInt(value, &flag) && ((s->sort_rows = flag != 0), true);
  if (key == "fill_id") return ParseInt(value, &s->fill_id.emplace());
  if (key == "max_norm") return ParseDouble(value, &s->max_norm.emplace()) && std::isfinite(*s->max_norm);
  if (key == "combiner") {
    return ParseEnum(
        value,
        {{"none", Combiner::kNone}, {"sum", Combiner::kSum}, {"mean", Combiner::kMean}, {"sqrtn", Combiner::kSqrtn}},
        &s->combiner);
  }
  if (key == "accumulation") {
    return ParseEnum(value, {{"segment", Accumulation::kSegment}, {"sequential", Accumulation::kSequential}},
                     &s->accumulation);
  }
  if (key == "denominator") {
    return ParseEnum(value,
                     {{"count", Denominator::kCount},
                      {"max1", Denominator::kMax1},
                      {"eps", Denominator::kEps},
                      {"positions", Denominator::kPositions},
                      {"no_nan", Denominator::kNoNan}},
                     &s->denominator);
  }
  if (key == "denominator_eps") return ParseDouble(value, &s->denominator_eps) && std::isfinite(s->denominator_eps);
  if (key == "empty") {
    return ParseEnum(value,
                     {{"zeros", EmptyRule::kZeros},
                      {"nan", EmptyRule::kNan},
                      {"natural", EmptyRule::kNatural},
                      {"short", EmptyRule::kShort}},
                     &s->empty);
  }
  if (key == "ids_per_row") return ParseInt(value, &s->ids_per_row) && s->ids_per_row > 0;
  if (key == "column") return ParseInt(value, &s->column) && s->column >= 0;
  if (key == "output") {
    int64_t output;
    if (!ParseInt(value, &output) || output < 0 || output > INT32_MAX) return false;
    s->output = static_cast<int32_t>(output);
    return true;
  }
  *known = false;
  return false;
}

Status ParseLookup(const Line& line, LookupSpec* spec) {
  for (const Word& word : line.words) {
    if (word.key == "steps") {
      TFCTR_RETURN_IF_ERROR(ParseSteps(line, word.raw, &spec->steps));
      continue;
    }
    std::string value;
    if (!Decode(word.raw, &value)) return Fail(line, word.key, "broken % escape");
    bool known;
    if (SetWord(std::string(word.key), value, spec, &known)) continue;
    return Fail(line, word.key, known ? "illegal value '" + value + "'" : "unknown word");
  }
  return Status::Ok();
}

Status ParseCopy(const Line& line, CopySpec* copy) {
  for (const Word& word : line.words) {
    std::string value;
    if (!Decode(word.raw, &value)) return Fail(line, word.key, "broken % escape");
    bool ok;
    if (word.key == "name") {
      copy->name = value;
      ok = true;
    } else if (word.key == "source") {
      ok = ParseSource(value, &copy->source);
    } else if (word.key == "width") {
      ok = ParseInt(value, &copy->width) && copy->width > 0;
    } else if (word.key == "output") {
      int64_t output = -1;
      ok = ParseInt(value, &output) && output >= 0 && output <= INT32_MAX;
      copy->output = static_cast<int32_t>(output);
    } else if (word.key == "column") {
      ok = ParseInt(value, &copy->column) && copy->column >= 0;
    } else {
      return Fail(line, word.key, "unknown word");
    }
    if (!ok) return Fail(line, word.key, "illegal value '" + value + "'");
  }
  if (!copy->source.used() || copy->output < 0 || copy->width == 0) {
    return Fail(line, "", "a copy needs source, width, output and column");
  }
  return Status::Ok();
}

}  // namespace

bool LookupSpec::prunes() const {
  if (prune_weights) return true;
  for (const Step& step : steps) {
    if (step.kind == StepKind::kPruneNegative || step.kind == StepKind::kPruneEqual) return true;
  }
  return false;
}

Result<std::vector<OutputSpec>> ParseOutputs(std::string_view text) {
  std::vector<Line> lines;
  TFCTR_RETURN_IF_ERROR(SplitLines(text, &lines));
  std::vector<OutputSpec> outputs;
  for (const Line& line : lines) {
    if (line.kind != "output") continue;
    OutputSpec output;
    TFCTR_RETURN_IF_ERROR(ParseOutput(line, outputs.size(), &output));
    outputs.push_back(output);
  }
  std::vector<bool> led(outputs.size(), false);
  for (const Line& line : lines) {
    if (line.kind != "lookup") continue;
    LookupSpec spec;
    TFCTR_RETURN_IF_ERROR(ParseLookup(line, &spec));
    if (spec.output < 0 || static_cast<size_t>(spec.output) >= outputs.size() || led[spec.output]) continue;
    led[spec.output] = true;
    if (spec.ids.used() && !spec.ids.packed && spec.combiner == Combiner::kNone) {
      outputs[spec.output].like_arg = spec.ids.index;
    }
  }
  return outputs;
}

// In spec_check.cc.
Status CheckLookup(const LookupSpec& spec);
Status CheckPlacements(const GroupSpec& group);
Status BindType(Source source, const char* what, const std::string& name, const std::vector<ValueType>& packed,
                const std::vector<ValueType>& args, ValueType* type);

Result<GroupSpec> ParseGroupSpec(std::string_view text, const std::vector<ValueType>& packed,
                                 const std::vector<ValueType>& args) {
  std::vector<Line> lines;
  TFCTR_RETURN_IF_ERROR(SplitLines(text, &lines));
  GroupSpec group;
  for (size_t i = 1; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (line.kind == "output") {
      group.outputs.emplace_back();
      TFCTR_RETURN_IF_ERROR(ParseOutput(line, group.outputs.size() - 1, &group.outputs.back()));
    } else if (line.kind == "lookup") {
      LookupSpec spec;
      TFCTR_RETURN_IF_ERROR(ParseLookup(line, &spec));
      ValueType type;
      Status status = BindType(spec.ids, "ids", spec.name, packed, args, &spec.ids_type);
      if (status.ok()) status = BindType(spec.rows, "rows", spec.name, packed, args, &type);
      if (status.ok()) status = BindType(spec.shape, "shape", spec.name, packed, args, &type);
      if (status.ok()) status = BindType(spec.weights, "weights", spec.name, packed, args, &type);
      if (status.ok()) status = BindType(spec.mask, "mask", spec.name, packed, args, &type);
      if (status.ok()) status = CheckLookup(spec);
      if (!status.ok()) return Fail(line, "", status.message);
      group.lookups.push_back(std::move(spec));
    } else if (line.kind == "copy") {
      CopySpec copy;
      TFCTR_RETURN_IF_ERROR(ParseCopy(line, &copy));
      ValueType type;
      const Status status = BindType(copy.source, "source", copy.name, packed, args, &type);
      if (!status.ok()) return Fail(line, "", status.message);
      group.copies.push_back(std::move(copy));
    } else {
      return Fail(line, line.kind, "unknown line");
    }
  }
  TFCTR_RETURN_IF_ERROR(CheckPlacements(group));
  for (size_t k = 0; k < group.outputs.size(); ++k) {
    for (size_t i = group.lookups.size(); i-- > 0;) {
      if (group.lookups[i].output == static_cast<int32_t>(k)) group.outputs[k].first_lookup = static_cast<int32_t>(i);
    }
    if (group.outputs[k].form == OutputForm::kLike && group.outputs[k].first_lookup < 0) {
      return Status::Invalid("lookup spec: output " + std::to_string(k) + " has form like, but no lookup");
    }
  }
  return group;
}

}  // namespace tfctr
