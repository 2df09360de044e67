// TfctrEvLookup: rows of many lookups in one op.
//
// Work is cut into pieces of a few thousand keys, of whichever lookup, and spread over the intra-op threads. A piece
// goes block by block: find 256 keys (index and rows are prefetched), then copy or combine their rows while they are in
// the cache. A training lookup first counts and inserts: all occurrences of a call in one table count before any of its
// rows is read. Many tables are worked on side by side, each by one thread.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/kernels/ev_lookup_spec.h"
#include "tfctr/core/kernels/ev_resource.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kPieceKeys = 4096;
constexpr int64_t kTableKeys = 1 << 16;  // a training call with more of one table is spread within the table
constexpr int64_t kCyclesPerKey = 150;   // a key that is found, its row aside
constexpr size_t kBlock = EmbeddingTable::kFindBlock;

// Rows [begin, end) of the output of a lookup.
struct Piece {
  size_t lookup;
  int64_t begin;
  int64_t end;
};

class EvLookupOp : public OpKernel {
 public:
  explicit EvLookupOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("S", &splits_));
    OP_REQUIRES_OK(context, context->GetAttr("W", &weights_));
    OP_REQUIRES_OK(context, ReadLookupSpecs(context, &specs_));
  }

  void Compute(OpKernelContext* context) override {
    const int step_input = 2 * static_cast<int>(specs_.size()) + splits_ + weights_;
    int64_t step = 0;
    bool training = false;
    OP_REQUIRES_OK(context, GetScalar(context, step_input, "step", &step));
    OP_REQUIRES_OK(context, GetScalar(context, step_input + 1, "training", &training));
    std::vector<tensorflow::core::RefCountPtr<EvResource>> owned;
    std::vector<EvLookup> lookups;
    OP_REQUIRES_OK(context, ReadLookups(context, specs_, splits_, &owned, &lookups));
    std::vector<float*> outputs(lookups.size());
    for (size_t i = 0; i < lookups.size(); ++i) OP_REQUIRES_OK(context, Allocate(context, lookups[i], i, &outputs[i]));
    if (training) {
      OP_REQUIRES_OK(context, Train(context, lookups, step, outputs));
    } else {
      RunPieces(context, lookups.data(), lookups.data() + lookups.size(), [&](const Piece& piece) {
        const EvLookup& lookup = lookups[piece.lookup];
        const ReadGuard guard(*lookup.table);
        Read(lookup, piece, nullptr, outputs[piece.lookup]);
      });
    }
  }

 private:
  absl::Status Allocate(OpKernelContext* context, const EvLookup& lookup, size_t i, float** output) const {
    TensorShape shape;
    if (lookup.spec->combined()) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(lookup.rows));
    } else {
      shape = context->input(static_cast<int>(specs_.size() + i)).shape();
    }
    TF_RETURN_IF_ERROR(shape.AddDimWithStatus(lookup.spec->pooling.dim));
    Tensor* rows = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(i), shape, &rows));
    *output = rows->flat<float>().data();
    return absl::OkStatus();
  }

  static int64_t FirstKey(const EvLookup& lookup, int64_t row) {
    return lookup.splits == nullptr ? row : lookup.splits[row];
  }

  template <typename Work>
  static void RunPieces(OpKernelContext* context, const EvLookup* first, const EvLookup* last, const Work& work) {
    std::vector<Piece> pieces;
    int64_t cycles = 0;
    for (size_t i = 0; first + i < last; ++i) {
      const EvLookup& lookup = first[i];
      cycles += lookup.n * (kCyclesPerKey + lookup.spec->pooling.dim) + lookup.rows;
      const int64_t count = std::max<int64_t>(1, (lookup.n + kPieceKeys - 1) / kPieceKeys);
      const int64_t rows = std::max<int64_t>(1, (lookup.rows + count - 1) / count);
      for (int64_t begin = 0; begin < lookup.rows; begin += rows) {
        pieces.push_back({i, begin, std::min(begin + rows, lookup.rows)});
      }
    }
    if (pieces.empty()) return;
    const int64_t count = static_cast<int64_t>(pieces.size());
    RunSharded(context, count, std::max<int64_t>(1, cycles / count), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(pieces[static_cast<size_t>(i)]);
    });
  }

  // Writes a piece from `found` (the rows of the lookup's keys), or from the table where it is null.
  static void Read(const EvLookup& lookup, const Piece& piece, float* const* found, float* out) {
    const Pooling& pooling = lookup.spec->pooling;
    const float* fallback = lookup.table->default_row();
    const int64_t first = FirstKey(lookup, piece.begin);
    const int64_t last = FirstKey(lookup, piece.end);
    out += piece.begin * pooling.dim;
    float* block[kBlock];
    const auto rows_of = [&](int64_t begin, size_t n) -> float* const* {
      if (found != nullptr) return found + begin;
      lookup.table->Find(lookup.keys + begin, n, block);
      return block;
    };
    if (!lookup.spec->combined() && !pooling.limited()) {
      const size_t n = static_cast<size_t>(last - first);
      if (found != nullptr) {
        lookup.table->CopyRows(found + first, n, out);
      } else {
        lookup.table->Gather(lookup.keys + first, n, out);
      }
      return;
    }
    if (!lookup.spec->combined()) {
      for (int64_t at = first; at < last; at += kBlock) {
        const size_t n = static_cast<size_t>(std::min<int64_t>(kBlock, last - at));
        CopyRows(pooling, rows_of(at, n), n, fallback, out + (at - first) * pooling.dim);
      }
      return;
    }
    Pooler pooler(pooling, lookup.splits + piece.begin, static_cast<size_t>(piece.end - piece.begin), lookup.weights,
                  fallback, out);
    for (int64_t at = first; at < last; at += kBlock) {
      const size_t n = static_cast<size_t>(std::min<int64_t>(kBlock, last - at));
      pooler.Add(rows_of(at, n), n);
    }
    pooler.Finish();
  }

  // A table with the lookups of this call that ask it: they count together, before any of their rows is read.
  struct TableCall {
    std::vector<size_t> lookups;
    int64_t n = 0;  // keys
  };

  static std::vector<TableCall> ByTable(const std::vector<EvLookup>& lookups) {
    std::vector<TableCall> calls;
    std::unordered_map<const EmbeddingTable*, size_t> place;
    for (size_t i = 0; i < lookups.size(); ++i) {
      const auto [at, added] = place.emplace(lookups[i].table.get(), calls.size());
      if (added) calls.emplace_back();
      calls[at->second].lookups.push_back(i);
      calls[at->second].n += lookups[i].n;
    }
    return calls;
  }

  // Counts and inserts the keys of a table, then gives `read` each of its lookups with the rows of the keys.
  template <typename Reader>
  static absl::Status TrainTable(const std::vector<EvLookup>& lookups, const TableCall& call, int64_t step,
                                 const Parallel& parallel, const Reader& read) {
    const EvLookup& first = lookups[call.lookups[0]];
    const size_t n = static_cast<size_t>(call.n);
    std::vector<int64_t> joined;
    if (call.lookups.size() > 1) {
      joined.reserve(n);
      for (const size_t i : call.lookups) joined.insert(joined.end(), lookups[i].keys, lookups[i].keys + lookups[i].n);
    }
    const int64_t* keys = joined.empty() ? first.keys : joined.data();
    const std::unique_ptr<float*[]> rows(new float*[n]);
    ReadGuard guard(*first.table);
    if (first.ev->frozen()) {
      first.table->Find(keys, n, rows.get());
    } else {
      const Status status = first.table->FindOrInsert(&guard, keys, n, first.ev->NowAt(step), rows.get(), parallel);
      if (!status.ok()) return ToTensorFlow(status);
    }
    float* const* found = rows.get();
    for (const size_t i : call.lookups) {
      read(i, found);
      found += lookups[i].n;
    }
    return absl::OkStatus();
  }

  static absl::Status Train(OpKernelContext* context, const std::vector<EvLookup>& lookups, int64_t step,
                            const std::vector<float*>& outputs) {
    const std::vector<TableCall> calls = ByTable(lookups);
    int64_t cycles = 0;
    int64_t largest = 0;
    for (const TableCall& call : calls) {
      cycles += call.n * (2 * kCyclesPerKey + lookups[call.lookups[0]].spec->pooling.dim);
      largest = std::max(largest, call.n);
    }
    if (calls.size() == 1 || largest > kTableKeys) {  // tables one by one, each by all threads
      for (const TableCall& call : calls) {
        TF_RETURN_IF_ERROR(TrainTable(lookups, call, step, OnThreads(context), [&](size_t i, float* const* found) {
          RunPieces(context, &lookups[i], &lookups[i] + 1,
                    [&](const Piece& piece) { Read(lookups[i], piece, found, outputs[i]); });
        }));
      }
      return absl::OkStatus();
    }
    std::vector<absl::Status> done(calls.size());
    const int64_t count = static_cast<int64_t>(calls.size());
    RunSharded(context, count, cycles / count + 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        done[c] = TrainTable(lookups, calls[c], step, nullptr, [&](size_t i, float* const* found) {
          Read(lookups[i], Piece{i, 0, lookups[i].rows}, found, outputs[i]);
        });
      }
    });
    for (const absl::Status& status : done) TF_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  int splits_ = 0;
  int weights_ = 0;
  std::vector<EvLookupSpec> specs_;
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvLookup").Device(tensorflow::DEVICE_CPU), EvLookupOp);

}  // namespace
}  // namespace tfctr
