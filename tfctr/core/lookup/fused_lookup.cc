#include "tfctr/core/lookup/fused_lookup.h"

#include <algorithm>
#include <utility>

#include "tfctr/core/lookup/row_prefetch.h"
#include "tfctr/core/lookup/runner.h"

namespace tfctr {
namespace {

constexpr int64_t kMaxElements = INT64_MAX / 16;

bool Multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product) && *product <= kMaxElements;
}

bool IsIndex(const TensorView& view) {
  return !view.is_string && (view.dtype == DType::kInt32 || view.dtype == DType::kInt64);
}

int64_t IndexAt(const TensorView& view, int64_t i) {
  return view.dtype == DType::kInt32 ? static_cast<const int32_t*>(view.data)[i]
                                     : static_cast<const int64_t*>(view.data)[i];
}

std::string ShapeText(const TensorView& view) {
  std::string text = "[";
  for (int d = 0; d < view.rank; ++d) text += (d == 0 ? "" : ", ") + std::to_string(view.dims[d]);
  return text + "]";
}

// True when the ids are signed after the first `count` steps (so that a negative number is a negative number).
bool SignedAfter(const LookupSpec& spec, size_t count) {
  DType dtype = spec.ids_type.dtype;
  for (size_t i = 0; i < count; ++i) {
    switch (spec.steps[i].kind) {
      case StepKind::kCast:
        dtype = spec.steps[i].dtype;
        break;
      case StepKind::kBucketize:
        dtype = DType::kInt32;
        break;
      case StepKind::kHashFast:
      case StepKind::kHashStrong:
      case StepKind::kVocab:
      case StepKind::kVocabOov:
      case StepKind::kFingerprint:
      case StepKind::kFind:
        dtype = DType::kInt64;
        break;
      default:
        break;
    }
  }
  return dtype == DType::kInt64 || dtype == DType::kInt32;
}

// float32 where the spec names no storage.
DType HashStorage(const LookupSpec& spec) { return spec.storage == DType::kInvalid ? DType::kFloat32 : spec.storage; }

bool FillIsInRange(const LookupSpec& spec) {
  return !spec.fill_id || spec.hashed || (*spec.fill_id >= 0 && *spec.fill_id < spec.table_rows);
}

std::string Holds(const ServedTable& file) {
  if (!file.hashed()) {
    return "the table file holds " + std::to_string(file.table()->rows()) + " rows of " +
           std::to_string(file.table()->width()) + " " + DTypeName(file.table()->dtype());
  }
  return "the hash file holds rows of " + std::to_string(file.hash()->dim()) + " numbers stored as " +
         DTypeName(file.hash()->storage());
}

// Whether the file is what the spec says.
Status CheckTable(const LookupSpec& spec, const ServedTable* file) {
  const auto fail = [&spec](const std::string& what) { return Status::Invalid("lookup '" + spec.name + "': " + what); };
  if (file == nullptr) return fail("file " + std::to_string(spec.table) + " of the store is no table");
  if (spec.hashed) {
    const DType storage = HashStorage(spec);
    if (!file->hashed() || file->hash()->dim() != spec.table_width || file->hash()->storage() != storage) {
      return fail(Holds(*file) + ", expected a hash file with rows of " + std::to_string(spec.table_width) +
                  " numbers stored as " + DTypeName(storage));
    }
    return Status::Ok();
  }
  const DType dtype = FileDType(spec.table_dtype, spec.storage);
  const int64_t width = FileWidth(spec.table_width, spec.storage);
  if (file->hashed() || file->table()->rows() != spec.table_rows || file->table()->width() != width ||
      file->table()->dtype() != dtype) {
    return fail(Holds(*file) + ", expected " + std::to_string(spec.table_rows) + " rows of " + std::to_string(width) +
                " " + DTypeName(dtype));
  }
  return Status::Ok();
}

Feature MakeFeature(const LookupSpec& spec, const OutputSpec& output, const GatherKernels& kernels) {
  Feature f;
  f.spec = spec;
  const int64_t element = static_cast<int64_t>(DTypeSize(spec.table_dtype));
  f.format = RowFormatOf(spec.table_dtype, spec.storage);
  f.hashed = spec.hashed;
  f.row_bytes = FileWidth(spec.table_width, spec.storage) *
                static_cast<int64_t>(DTypeSize(FileDType(spec.table_dtype, spec.storage)));
  if (f.hashed) f.row_bytes = HashRowStride(HashStorage(spec), spec.table_width);
  f.value_bytes = spec.table_width * element;
  f.column_bytes = spec.column * static_cast<int64_t>(DTypeSize(output.dtype));
  // Cache lines of one block: while one is reduced, the next one is fetched; both fit in L1 beside the inputs.
  constexpr int64_t kBlockLines = 128;
  f.block_values = std::max<int64_t>(16, kBlockLines / PrefetchLines(f.row_bytes));
  f.has_weights = spec.weights.used();
  f.has_mask = spec.mask.used() || spec.mask_value.has_value();
  f.is_double = spec.table_dtype == DType::kFloat64;
  const bool segment = spec.accumulation == Accumulation::kSegment && !f.has_weights;
  if (segment) {
    f.order = AddOrder::kSparseSegment;
  } else if (spec.form == Form::kDense) {
    f.order = AddOrder::kReduceSum;
  } else if (spec.form == Form::kRagged && !f.has_weights) {
    f.order = AddOrder::kPlain;  // reductions of ragged tensors are UnsortedSegmentSum
  } else {
    f.order = AddOrder::kSegmentSum;
  }
  if (spec.combiner == Combiner::kMean || spec.combiner == Combiner::kSqrtn) {
    if (segment && spec.denominator == Denominator::kCount && !f.has_mask) {
      f.finish = spec.combiner == Combiner::kMean ? Finish::kSegmentMean : Finish::kSegmentSqrtn;
    } else {
      f.finish = spec.denominator == Denominator::kNoNan ? Finish::kDivideNoNan : Finish::kDivide;
      f.needs_divisors = true;
    }
  }
  f.step_count = spec.steps.size() - (f.hashed ? 1 : 0);  // find is done by RowNumbering
  if (f.step_count > 0) {
    const Step& last = spec.steps[f.step_count - 1];
    if (last.kind == StepKind::kPruneNegative && SignedAfter(spec, f.step_count - 1)) {
      f.prune_negative = true;
      --f.step_count;
    } else if (!f.hashed && last.kind == StepKind::kWrapNegative && f.step_count == 1 && SignedAfter(spec, 0)) {
      f.wrap = last.ints[0];
      --f.step_count;
    }
  }
  f.fast = !f.has_weights && !f.has_mask && !f.needs_divisors;
  for (size_t i = 0; i < f.step_count; ++i) {
    const StepKind kind = spec.steps[i].kind;
    if (kind == StepKind::kPruneNegative || kind == StepKind::kPruneEqual) f.fast = false;
  }
  f.stream = f.fast && !spec.max_norm && FillIsInRange(spec) &&
             (spec.combiner == Combiner::kNone ||
              (f.order == AddOrder::kSparseSegment && kernels.has_stream(f.format, spec.table_width)));
  return f;
}

Feature MakeCopy(const CopySpec& copy, const OutputSpec& output) {
  Feature f;
  const int64_t element = static_cast<int64_t>(DTypeSize(output.dtype));
  f.is_copy = true;
  f.spec.name = copy.name;
  f.spec.ids = copy.source;
  f.spec.output = copy.output;
  f.spec.table_width = copy.width;
  f.spec.table_dtype = output.dtype;
  f.row_bytes = copy.width * element;
  f.column_bytes = copy.column * element;
  return f;
}

// Whether a row without values is NaN (else zeros).
bool EmptyIsNan(const Feature& f, int64_t positions) {
  if (f.spec.empty != EmptyRule::kNatural) return f.spec.empty == EmptyRule::kNan;
  if (!f.needs_divisors) return false;  // sums, and SparseSegment* whose holes are zeros
  switch (f.spec.denominator) {
    case Denominator::kCount:
      return true;
    case Denominator::kPositions:
      return positions == 0;
    case Denominator::kEps:
      return f.spec.denominator_eps == 0.0;
    case Denominator::kMax1:
    case Denominator::kNoNan:
      break;
  }
  return false;
}

}  // namespace

BoundFeature& BoundFeature::operator=(const BoundFeature& other) {
  table = other.table;
  table_rows = other.table_rows;
  source = other.source;
  ids = other.ids;
  rows = other.rows;
  shape = other.shape;
  weights = other.weights;
  mask = other.mask;
  values = other.values;
  row_count = other.row_count;
  positions = other.positions;
  work_begin = other.work_begin;
  empty_is_nan = other.empty_is_nan;
  ready_ids = other.ready_ids;
  renumber = other.renumber;
  irregular.store(other.irregular.load());
  default_rows.store(other.default_rows.load());
  return *this;
}

Result<std::unique_ptr<const FusedLookup>> FusedLookup::Create(std::string_view spec_text,
                                                               const std::vector<ValueType>& packed,
                                                               const std::vector<ValueType>& args, Isa isa) {
  Result<GroupSpec> parsed = ParseGroupSpec(spec_text, packed, args);
  if (!parsed.ok()) return parsed.status();
  std::unique_ptr<FusedLookup> plan(new FusedLookup);
  plan->group_ = parsed.Take();
  plan->kernels_ = &KernelsFor(isa);
  plan->number_kernel_ = NumberKernelFor(isa);
  const GroupSpec& group = plan->group_;
  int64_t zero_bytes = 0;
  for (const LookupSpec& spec : group.lookups) {
    plan->features_.push_back(MakeFeature(spec, group.outputs[spec.output], *plan->kernels_));
    if (plan->features_.back().has_mask) zero_bytes = std::max(zero_bytes, plan->features_.back().row_bytes);
  }
  for (const CopySpec& copy : group.copies) plan->features_.push_back(MakeCopy(copy, group.outputs[copy.output]));
  plan->zero_row_.assign(static_cast<size_t>(zero_bytes), 0);
  plan->FindSharedWork();
  for (const OutputSpec& output : group.outputs) {
    plan->output_row_bytes_.push_back(output.columns * static_cast<int64_t>(DTypeSize(output.dtype)));
  }
  return std::unique_ptr<const FusedLookup>(std::move(plan));
}

std::string FusedLookup::Describe(const Feature& f, const BoundFeature& b) {
  if (f.is_copy) return "columns '" + f.spec.name + "'";
  const int64_t rows = f.hashed && b.source != nullptr ? b.source->keys : f.spec.table_rows;
  return "lookup '" + f.spec.name + "' (table '" + (b.source == nullptr ? "" : b.source->name) + "', " +
         std::to_string(rows) + (f.hashed ? " keys)" : " rows)");
}

Status FusedLookup::ResolveTables(const std::vector<const ServedTable*>& files, LookupTables* tables) const {
  tables->clear();
  for (const LookupSpec& spec : group_.lookups) {
    const ServedTable* file = spec.table < static_cast<int64_t>(files.size()) ? files[spec.table] : nullptr;
    TFCTR_RETURN_IF_ERROR(CheckTable(spec, file));
    LookupTable table;
    table.data = file->data();
    table.name = file->name();
    table.rows = file->rows();
    table.keys = file->hashed() ? file->hash()->size() : 0;
    table.numbers = RowNumbering(*file, number_kernel_);
    if (spec.fill_id && FillIsInRange(spec)) {
      table.fill_number = *spec.fill_id;
      if (table.numbers.needed()) table.numbers.Run(&table.fill_number, 1, 0, false, false);
    }
    tables->push_back(std::move(table));
  }
  return Status::Ok();
}

Status FusedLookup::Bind(const LookupInputs& inputs, const Feature& f, BoundFeature* b) const {
  const LookupSpec& spec = f.spec;
  b->irregular.store(false, std::memory_order_relaxed);
  b->positions = 1;
  const auto fail = [&](const std::string& what) { return Status::Invalid(Describe(f, *b) + ": " + what); };
  const std::pair<Source, TensorView*> sources[] = {{spec.ids, &b->ids},
                                                    {spec.rows, &b->rows},
                                                    {spec.shape, &b->shape},
                                                    {spec.weights, &b->weights},
                                                    {spec.mask, &b->mask}};
  for (const auto& [source, view] : sources) {
    if (!source.used()) {  // what another request left there
      view->rank = 0;
      view->elements = 0;
      view->data = nullptr;
      continue;
    }
    TFCTR_RETURN_IF_ERROR(inputs.Get(source, view));
    if (view->rank < 0) return fail("an input has more than " + std::to_string(TensorView::kMaxRank) + " dimensions");
  }
  b->values = b->ids.elements;
  if (f.has_weights && b->weights.elements != b->values) {
    return fail(std::to_string(b->weights.elements) + " weights for " + std::to_string(b->values) + " ids");
  }
  if (spec.mask.used() && b->mask.elements != b->values) {
    return fail("a mask of " + std::to_string(b->mask.elements) + " for " + std::to_string(b->values) + " ids");
  }
  return Status::Ok();
}

// Number of output rows of one feature, with the checks of its form.
Status FusedLookup::CountRows(const Feature& f, Call* call, BoundFeature* b) const {
  const LookupSpec& spec = f.spec;
  const auto fail = [&](const std::string& what) { return Status::Invalid(Describe(f, *b) + ": " + what); };
  if (f.is_copy) {
    if (b->ids.dtype != spec.table_dtype || b->ids.is_string)
      return fail("expected " + std::string(DTypeName(spec.table_dtype)));
    if (b->values % spec.table_width != 0) {
      return fail("shape " + ShapeText(b->ids) + " does not hold rows of " + std::to_string(spec.table_width));
    }
    b->row_count = b->values / spec.table_width;
    return Status::Ok();
  }
  if (spec.form == Form::kDense) {
    if (spec.combiner == Combiner::kNone) {
      b->positions = std::max<int64_t>(1, spec.ids_per_row);
      if (b->values % b->positions != 0) {
        return fail("ids of shape " + ShapeText(b->ids) + ", expected " + std::to_string(b->positions) + " per row");
      }
      b->row_count = b->values / b->positions;
      return Status::Ok();
    }
    if (b->ids.rank < 1) return fail("a scalar id cannot be reduced");
    b->positions = b->ids.dims[b->ids.rank - 1];
    b->row_count = 1;
    for (int d = 0; d + 1 < b->ids.rank; ++d) b->row_count *= b->ids.dims[d];
    return Status::Ok();
  }
  if (b->ids.rank != 1) return fail("ids of shape " + ShapeText(b->ids) + ", expected a vector");
  if (!IsIndex(b->rows)) return fail("row numbers must be int32 or int64");
  if (spec.form == Form::kRagged) {
    if (b->rows.rank != 1 || b->rows.elements < 1) {
      return fail("row_splits of shape " + ShapeText(b->rows) + ", expected a vector of at least one number");
    }
    b->row_count = b->rows.elements - 1;
    if (IndexAt(b->rows, 0) != 0 || IndexAt(b->rows, b->row_count) != b->values) {
      return fail("row_splits must start with 0 and end with the number of ids, " + std::to_string(b->values) +
                  ", not with " + std::to_string(IndexAt(b->rows, 0)) + " and " +
                  std::to_string(IndexAt(b->rows, b->row_count)));
    }
    if (spec.empty == EmptyRule::kShort) {
      if (spec.prunes()) return fail("a ragged feature that drops ids has no short output");
      while (b->row_count > 0 && IndexAt(b->rows, b->row_count - 1) == b->values) --b->row_count;
    }
    return Status::Ok();
  }
  if (spec.form == Form::kSparse) {
    if (b->rows.rank != 2 || b->rows.dims[0] != b->values || b->rows.dims[1] < 2 || b->rows.dtype != DType::kInt64) {
      return fail("indices of shape " + ShapeText(b->rows) + " for " + std::to_string(b->values) +
                  " ids, expected int64 [ids, 2 or more]");
    }
    const int64_t rank = b->rows.dims[1];
    if (spec.shape.used() && (!IsIndex(b->shape) || b->shape.elements != rank)) {
      return fail("dense_shape of " + std::to_string(b->shape.elements) + " numbers for indices of " +
                  std::to_string(rank));
    }
    if (!spec.shape.used() && rank > 2) return fail("indices of rank above 2 need dense_shape");
    if (spec.empty != EmptyRule::kShort) {
      b->row_count = 1;
      for (int64_t d = 0; d < rank; ++d) {
        const int64_t dim = IndexAt(b->shape, d);
        if (dim < 0 || (d + 1 < rank && !Multiply(b->row_count, dim, &b->row_count))) {
          return fail("dense_shape has dimension " + std::to_string(dim) + " at " + std::to_string(d));
        }
      }
      if (rank > 2 && b->values > 0 && IndexAt(b->shape, rank - 1) == 0) return fail("ids in an empty dense_shape");
      return Status::Ok();
    }
  } else {  // segments
    if (b->rows.rank != 1 || b->rows.elements != b->values) {
      return fail(std::to_string(b->rows.elements) + " segment ids for " + std::to_string(b->values) + " ids");
    }
    if (spec.shape.used()) {
      if (!IsIndex(b->shape) || b->shape.elements != 1) return fail("the number of segments must be one integer");
      b->row_count = IndexAt(b->shape, 0);
      if (b->row_count < 0) return fail("the number of segments is " + std::to_string(b->row_count));
      if (spec.empty != EmptyRule::kShort) return Status::Ok();
    }
  }
  return Runner(*this, call).LastRow(f, b);
}

Status FusedLookup::Prepare(const LookupInputs& inputs, const LookupTables& tables, Call* call) const {
  const size_t count = features_.size();
  call->features_.resize(count);
  call->outputs_.assign(group_.outputs.size(), OutputShape());
  call->output_data_.assign(group_.outputs.size(), nullptr);
  call->steps_ = inputs.Steps();
  call->work_ = 0;
  int64_t bytes = 0;
  std::vector<int32_t>& first = call->first_feature_;
  first.assign(group_.outputs.size(), -1);
  for (size_t i = 0; i < count; ++i) {
    const Feature& f = features_[i];
    BoundFeature* b = &call->features_[i];
    if (i + 2 < count) {  // between requests other work has had the caches
      PrefetchBytes(&features_[i + 2], sizeof(Feature));
      PrefetchBytes(&call->features_[i + 2], sizeof(BoundFeature));
    }
    b->source = f.is_copy ? nullptr : &tables[i];
    if (call->counting_) b->default_rows.store(0, std::memory_order_relaxed);
    if (!f.is_copy) {
      b->table = tables[i].data;
      b->table_rows = tables[i].rows;
      b->renumber = tables[i].numbers.needed();
    }
    TFCTR_RETURN_IF_ERROR(Bind(inputs, f, b));
    if (b->shape.data != nullptr) __builtin_prefetch(b->shape.data);
  }
  for (size_t i = 0; i < count; ++i) {
    const Feature& f = features_[i];
    BoundFeature* b = &call->features_[i];
    TFCTR_RETURN_IF_ERROR(CountRows(f, call, b));
    b->empty_is_nan = EmptyIsNan(f, b->positions);
    int32_t& leader = first[f.spec.output];
    if (leader < 0) {
      leader = static_cast<int32_t>(i);
      call->outputs_[f.spec.output].rows = b->row_count;
      int64_t elements;
      if (!Multiply(b->row_count, output_row_bytes_[f.spec.output], &elements)) {
        return Status::Invalid(Describe(f, *b) + ": " + std::to_string(b->row_count) + " rows are too many");
      }
    } else if (call->features_[leader].row_count != b->row_count) {
      const Feature& other = features_[leader];
      return Status::Invalid(Describe(other, call->features_[leader]) + " has " +
                             std::to_string(call->features_[leader].row_count) + " rows, but " + Describe(f, *b) +
                             " has " + std::to_string(b->row_count));
    }
    b->work_begin = call->work_;
    call->work_ += Runner::Units(f, *b);
    bytes += (f.is_copy ? b->row_count : b->values) * f.row_bytes;
  }
  PrepareShared(call);
  for (size_t k = 0; k < group_.outputs.size(); ++k) {
    const OutputSpec& output = group_.outputs[k];
    if (output.form != OutputForm::kLike) continue;
    const BoundFeature& leader = call->features_[output.first_lookup];
    const bool all = features_[output.first_lookup].spec.combiner == Combiner::kNone;
    call->outputs_[k].like = &leader.ids;
    call->outputs_[k].like_rank = all ? leader.ids.rank : leader.ids.rank - 1;
  }
  call->work_cost_ = 4 + (call->work_ > 0 ? bytes / call->work_ / 8 : 0);
  return Status::Ok();
}

void FusedLookup::Run(int64_t begin, int64_t end, Call* call) const { Runner(*this, call).Range(begin, end); }

Status FusedLookup::Finish(Call* call) const {
  for (size_t i = 0; i < features_.size(); ++i) {
    if (!call->features_[i].irregular.load(std::memory_order_relaxed)) continue;
    TFCTR_RETURN_IF_ERROR(Runner(*this, call).Careful(static_cast<int32_t>(i)));
  }
  CopyResults(*call);
  return Status::Ok();
}

}  // namespace tfctr
