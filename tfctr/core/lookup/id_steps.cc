#include "tfctr/core/lookup/id_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tfctr/core/lookup/half.h"
#include "tfctr/core/lookup/sip_hash.h"

namespace tfctr {
namespace {

constexpr size_t kDecimalDigits = 24;  // sign, 20 digits, spare

template <typename T>
const T* Data(const TensorView& view) {
  return static_cast<const T*>(view.data);
}

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

bool IsUnsigned(DType dtype) {
  return dtype == DType::kUInt8 || dtype == DType::kUInt16 || dtype == DType::kUInt32 || dtype == DType::kUInt64;
}

// The 64-bit pattern of `value` after conversion to `dtype`, sign- or zero-extended.
int64_t WrapTo(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::kInt32:
      return static_cast<int32_t>(value);
    case DType::kUInt32:
      return static_cast<uint32_t>(value);
    case DType::kInt16:
      return static_cast<int16_t>(value);
    case DType::kUInt16:
      return static_cast<uint16_t>(value);
    case DType::kInt8:
      return static_cast<int8_t>(value);
    case DType::kUInt8:
      return static_cast<uint8_t>(value);
    default:
      return value;
  }
}

// Truncation toward zero; what does not fit gives the smallest number, as x86's conversion instructions do.
int64_t TruncateTo(DType dtype, double value) {
  constexpr double kTwo63 = 9223372036854775808.0;
  if (dtype == DType::kUInt64) {
    if (value >= kTwo63 && value < 2 * kTwo63) return static_cast<int64_t>(static_cast<uint64_t>(value));
    dtype = DType::kInt64;
  }
  const bool fits = value >= -kTwo63 && value < kTwo63;  // false for NaN
  const int64_t truncated = fits ? static_cast<int64_t>(value) : std::numeric_limits<int64_t>::min();
  if (dtype == DType::kInt32 && truncated != static_cast<int32_t>(truncated)) {
    return std::numeric_limits<int32_t>::min();
  }
  return WrapTo(dtype, truncated);
}

int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b < 0);  // b > 0
}

int64_t FloorMod(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest + (rest < 0 ? b : 0);  // b > 0
}

std::string_view Decimal(int64_t value, bool is_unsigned, char* buffer) {
  char* const end = buffer + kDecimalDigits;
  char* at = end;
  const bool negative = !is_unsigned && value < 0;
  uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  do {
    *--at = static_cast<char>('0' + magnitude % 10);
    magnitude /= 10;
  } while (magnitude != 0);
  if (negative) *--at = '-';
  return std::string_view(at, static_cast<size_t>(end - at));
}

template <typename T>
void LoadIntegers(const TensorView& view, int64_t begin, int64_t n, int64_t* ids) {
  const T* data = Data<T>(view) + begin;
  for (int64_t k = 0; k < n; ++k) ids[k] = static_cast<int64_t>(data[k]);
}

}  // namespace

double NumberAt(const TensorView& view, int64_t index) {
  switch (view.dtype) {
    case DType::kFloat32:
      return Data<float>(view)[index];
    case DType::kFloat64:
      return Data<double>(view)[index];
    case DType::kFloat16:
      return ToFloat(Data<Half>(view)[index]);
    case DType::kBFloat16:
      return ToFloat(Data<BFloat16>(view)[index]);
    case DType::kInt32:
      return Data<int32_t>(view)[index];
    case DType::kInt64:
      return static_cast<double>(Data<int64_t>(view)[index]);
    case DType::kUInt32:
      return Data<uint32_t>(view)[index];
    case DType::kUInt64:
      return static_cast<double>(Data<uint64_t>(view)[index]);
    case DType::kInt16:
      return Data<int16_t>(view)[index];
    case DType::kUInt16:
      return Data<uint16_t>(view)[index];
    case DType::kInt8:
      return Data<int8_t>(view)[index];
    case DType::kUInt8:
    case DType::kBool:
      return Data<uint8_t>(view)[index];
    case DType::kInvalid:
      break;
  }
  return 0.0;
}

bool EqualsAt(const TensorView& view, int64_t index, const TextValue& value) {
  if (view.is_string) return view.StringValue(index) == value.text;
  if (view.dtype == DType::kInt64) {
    return value.integer && Data<int64_t>(view)[index] == *value.integer;
  }
  if (view.dtype == DType::kFloat32) {
    return value.number && Data<float>(view)[index] == static_cast<float>(*value.number);
  }
  return value.number && NumberAt(view, index) == *value.number;
}

Status IdBlock::Run(const TensorView& raw, int64_t begin, int64_t end, const Step* steps, size_t step_count,
                    int64_t last_dim, const StepContext& context, const RowHint* hint) {
  raw_ = &raw;
  begin_ = begin;
  size_ = end - begin;
  pruned_ = false;
  if (static_cast<int64_t>(ids_storage_.size()) < size_) ids_storage_.resize(size_);
  ids_ = ids_storage_.data();
  Load();
  for (size_t i = 0; i < step_count; ++i) {
    TFCTR_RETURN_IF_ERROR(RunStep(steps[i], last_dim, context, i + 1 == step_count ? hint : nullptr));
  }
  return Status::Ok();
}

void IdBlock::Take(const int64_t* ids, int64_t n) {
  if (static_cast<int64_t>(ids_storage_.size()) < n) ids_storage_.resize(n);
  ids_ = ids_storage_.data();
  size_ = n;
  pruned_ = false;
  std::copy_n(ids, n, ids_);
}

void IdBlock::Load() {
  dtype_ = raw_->dtype;
  kind_ = raw_->is_string ? Kind::kString : IsFloat(raw_->dtype) ? Kind::kFloat : Kind::kInteger;
  switch (raw_->dtype) {
    case DType::kInt64:
    case DType::kUInt64:
      std::copy_n(Data<int64_t>(*raw_) + begin_, size_, ids_);
      break;
    case DType::kInt32:
      LoadIntegers<int32_t>(*raw_, begin_, size_, ids_);
      break;
    case DType::kUInt32:
      LoadIntegers<uint32_t>(*raw_, begin_, size_, ids_);
      break;
    case DType::kInt16:
      LoadIntegers<int16_t>(*raw_, begin_, size_, ids_);
      break;
    case DType::kUInt16:
      LoadIntegers<uint16_t>(*raw_, begin_, size_, ids_);
      break;
    case DType::kInt8:
      LoadIntegers<int8_t>(*raw_, begin_, size_, ids_);
      break;
    case DType::kUInt8:
    case DType::kBool:
      LoadIntegers<uint8_t>(*raw_, begin_, size_, ids_);
      break;
    default:
      break;  // floats and strings are read where they lie
  }
}

std::string_view IdBlock::TextAt(int64_t k, char* buffer) const {
  if (kind_ == Kind::kString) return raw_->StringValue(source(k));
  return Decimal(ids_[k], IsUnsigned(dtype_), buffer);
}

// The strings that are left, side by side.
const std::string_view* IdBlock::Texts() {
  if (static_cast<int64_t>(texts_.size()) < size_) texts_.resize(size_);
  if (!pruned_) {
    raw_->strings_at(raw_->data, begin_, size_, texts_.data());
  } else {
    for (int64_t k = 0; k < size_; ++k) texts_[k] = raw_->StringValue(sources_[k]);
  }
  return texts_.data();
}

double IdBlock::FloatAt(int64_t k) const { return NumberAt(*raw_, source(k)); }

template <typename F>
void IdBlock::Apply(F f) {
  for (int64_t k = 0; k < size_; ++k) ids_[k] = f(ids_[k]);
}

void IdBlock::Wrap() {
  if (dtype_ == DType::kInt64 || dtype_ == DType::kUInt64) return;
  const DType dtype = dtype_;
  Apply([dtype](int64_t v) { return WrapTo(dtype, v); });
}

void IdBlock::Cast(DType to) {
  if (kind_ == Kind::kFloat) {
    for (int64_t k = 0; k < size_; ++k) ids_[k] = TruncateTo(to, FloatAt(k));
  }
  kind_ = Kind::kInteger;
  dtype_ = to;
  Wrap();
}

void IdBlock::Bucketize(const std::vector<float>& boundaries) {
  // The value is compared in its own type, integers in float, as Bucketize does.
  const bool in_double = kind_ == Kind::kFloat && raw_->dtype == DType::kFloat64;
  const auto count = [&boundaries](auto value) {
    return std::upper_bound(boundaries.begin(), boundaries.end(), value) - boundaries.begin();
  };
  for (int64_t k = 0; k < size_; ++k) {
    if (kind_ == Kind::kInteger) {
      ids_[k] = IsUnsigned(dtype_) ? count(static_cast<float>(static_cast<uint64_t>(ids_[k])))
                                   : count(static_cast<float>(ids_[k]));
    } else {
      const double value = FloatAt(k);
      ids_[k] = in_double ? count(value) : count(static_cast<float>(value));
    }
  }
  kind_ = Kind::kInteger;
  dtype_ = DType::kInt32;
}

void IdBlock::PruneEqual(const TextValue& value) {
  switch (kind_) {
    case Kind::kString:
    case Kind::kFloat:
      Filter([&](int64_t k) { return !EqualsAt(*raw_, source(k), value); });
      break;
    case Kind::kText: {
      char buffer[kDecimalDigits];
      Filter([&](int64_t k) { return TextAt(k, buffer) != value.text; });
      break;
    }
    case Kind::kInteger:
      Filter([&](int64_t k) { return !value.integer || ids_[k] != *value.integer; });
      break;
  }
}

template <typename GetText, typename Hash>
void IdBlock::HashEach(GetText text, Hash hash, uint64_t buckets, const RowHint* hint) {
  if (buckets == 0) {
    for (int64_t k = 0; k < size_; ++k) ids_[k] = static_cast<int64_t>(hash(text(k)));
    return;
  }
  for (int64_t k = 0; k < size_; ++k) {
    ids_[k] = static_cast<int64_t>(hash(text(k)) % buckets);
    if (hint != nullptr) hint->Fetch(ids_[k]);
  }
}

void IdBlock::RunHash(const Step& step, const StepContext& context, const RowHint* hint) {
  const uint64_t buckets = step.kind == StepKind::kFingerprint ? 0 : static_cast<uint64_t>(step.ints[0]);
  const auto strong = [&step](std::string_view text) { return SipHash::Hash(step.key, text); };
  const auto run = [&](auto text) {
    if (step.kind != StepKind::kHashStrong) {
      HashEach(text, context.fingerprint64, buckets, hint);
    } else {
      HashEach(text, strong, buckets, hint);
    }
  };
  if (kind_ == Kind::kString) {
    const std::string_view* texts = Texts();
    run([texts](int64_t k) { return texts[k]; });
  } else {
    char buffer[kDecimalDigits];
    run([this, &buffer](int64_t k) { return TextAt(k, buffer); });
  }
  kind_ = Kind::kInteger;
  dtype_ = DType::kInt64;
}

Status IdBlock::RunVocab(const Step& step, const StepContext& context, const RowHint* hint) {
  const int64_t index = step.ints[0];
  const VocabFile* vocab = index >= 0 && index < context.vocab_count ? context.vocabs[index] : nullptr;
  if (vocab == nullptr) return Status::Invalid("file " + std::to_string(index) + " of the store is no vocabulary");
  const bool oov = step.kind == StepKind::kVocabOov;
  const bool text_keys = vocab->key_kind() == KeyKind::kString;
  char buffer[kDecimalDigits];
  const auto missing = [&](std::string_view text) {
    return oov ? step.ints[1] + static_cast<int64_t>(context.fingerprint64(text) % static_cast<uint64_t>(step.ints[2]))
               : step.ints[1];
  };
  const auto hit = [this, hint](int64_t k, int64_t value) {
    ids_[k] = value;
    if (hint != nullptr) hint->Fetch(value);
  };
  if (!text_keys) {
    if (kind_ != Kind::kInteger) {
      return Status::Invalid("vocabulary '" + vocab->name() + "' has int64 keys, the values are strings");
    }
    const bool is_unsigned = IsUnsigned(dtype_);
    vocab->FindEach(
        size_, [this](int64_t k) { return ids_[k]; }, hit,
        [&](int64_t k, int64_t key) { ids_[k] = missing(oov ? Decimal(key, is_unsigned, buffer) : ""); });
  } else if (kind_ == Kind::kString) {
    const std::string_view* texts = Texts();
    vocab->FindEach(
        size_, [texts](int64_t k) { return texts[k]; }, hit,
        [&](int64_t k, std::string_view key) { ids_[k] = missing(key); });
  } else if (kind_ == Kind::kText) {
    for (int64_t k = 0; k < size_; ++k) {
      const std::string_view key = TextAt(k, buffer);
      if (!vocab->Find(key, &ids_[k])) ids_[k] = missing(key);
    }
  } else {
    return Status::Invalid("vocabulary '" + vocab->name() + "' has string keys, the values are integers");
  }
  kind_ = Kind::kInteger;
  dtype_ = DType::kInt64;
  return Status::Ok();
}

Status IdBlock::RunStep(const Step& step, int64_t last_dim, const StepContext& context, const RowHint* hint) {
  const int64_t c = step.ints.empty() ? 0 : step.ints[0];
  const bool is_unsigned = IsUnsigned(dtype_);
  switch (step.kind) {
    case StepKind::kCast:
      Cast(step.dtype);
      break;
    case StepKind::kMod:
      if (is_unsigned) {
        Apply([c](int64_t v) { return static_cast<int64_t>(static_cast<uint64_t>(v) % static_cast<uint64_t>(c)); });
      } else {
        Apply([c](int64_t v) { return FloorMod(v, c); });
      }
      break;
    case StepKind::kDivide:
      if (is_unsigned) {
        Apply([c](int64_t v) { return static_cast<int64_t>(static_cast<uint64_t>(v) / static_cast<uint64_t>(c)); });
      } else {
        Apply([c](int64_t v) { return FloorDivide(v, c); });
      }
      break;
    case StepKind::kMul:
      Apply([c](int64_t v) { return static_cast<int64_t>(static_cast<uint64_t>(v) * static_cast<uint64_t>(c)); });
      Wrap();
      break;
    case StepKind::kAdd:
      Apply([c](int64_t v) { return static_cast<int64_t>(static_cast<uint64_t>(v) + static_cast<uint64_t>(c)); });
      Wrap();
      break;
    case StepKind::kAddCol: {
      const int64_t columns = static_cast<int64_t>(step.ints.size());
      if (columns != last_dim) {
        return Status::Invalid("addcol has " + std::to_string(columns) + " numbers, the ids have " +
                               std::to_string(last_dim) + " columns");
      }
      int64_t column = size_ > 0 ? source(0) % columns : 0;
      for (int64_t k = 0; k < size_; ++k) {
        if (pruned_) column = source(k) % columns;
        ids_[k] = static_cast<int64_t>(static_cast<uint64_t>(ids_[k]) + static_cast<uint64_t>(step.ints[column]));
        if (++column == columns) column = 0;
      }
      Wrap();
      break;
    }
    case StepKind::kWrapNegative:
      if (!is_unsigned) {
        Apply([c](int64_t v) {
          return v < 0 ? static_cast<int64_t>(static_cast<uint64_t>(v) + static_cast<uint64_t>(c)) : v;
        });
      }
      break;
    case StepKind::kAsString:
      kind_ = Kind::kText;
      break;
    case StepKind::kHashFast:
    case StepKind::kHashStrong:
    case StepKind::kFingerprint:
      RunHash(step, context, hint);
      break;
    case StepKind::kBucketize:
      Bucketize(step.floats);
      break;
    case StepKind::kVocab:
    case StepKind::kVocabOov:
      return RunVocab(step, context, hint);
    case StepKind::kSelectNegative:
      if (!is_unsigned) Apply([c](int64_t v) { return v < 0 ? c : v; });
      break;
    case StepKind::kSelectOutOfRange: {
      const int64_t low = step.ints[0];
      const int64_t high = step.ints[1];
      const int64_t other = step.ints[2];
      // An unsigned 64-bit number above 2^63 looks negative here: it is above every `high`.
      const bool huge = dtype_ == DType::kUInt64;
      Apply([=](int64_t v) { return v < low || v >= high || (huge && v < 0) ? other : v; });
      break;
    }
    case StepKind::kPruneNegative:
      if (!is_unsigned) Filter([this](int64_t k) { return ids_[k] >= 0; });
      break;
    case StepKind::kPruneEqual:
      PruneEqual(step.value);
      break;
    case StepKind::kSelectEqual:
      for (int64_t k = 0; k < size_; ++k) {
        if (EqualsAt(*raw_, source(k), step.value)) ids_[k] = c;
      }
      break;
    case StepKind::kFind:
      break;  // needs the lookup's table: RowNumbering does it
  }
  return Status::Ok();
}

}  // namespace tfctr
