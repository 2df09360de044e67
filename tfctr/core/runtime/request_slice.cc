// Some rows of a packed request as a request of their own: BatchPlan::Slice.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/runtime/request_batch.h"

namespace tfctr {

namespace {

using Kind = StackRule::Kind;
using tensorflow::tstring;

// Entries of a part: [begin, begin + count), or those listed.
struct Chosen {
  int64_t begin = 0;
  int64_t count = 0;
  bool listed = false;
  std::vector<int64_t> entries;
};

class Cutter {
 public:
  Cutter(const StackForm& form, const PackedRequest& request)
      : form_(form),
        request_(request),
        arena_(static_cast<const char*>(request.arena.data())),
        order_(form.rules.size()) {}

  // Before the first Run.
  absl::Status Parse() {
    const absl::Status parsed = ParseRequest(form_, request_, &inputs_);
    if (!parsed.ok()) return parsed;
    for (size_t i = 0; i < form_.rules.size(); ++i) {
      if (form_.rules[i].kind == Kind::kIndices && !IsConstant(i)) SortEntries(i);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PackedRequest> Run(int64_t first, int64_t rows) {
    chosen_.assign(form_.rules.size(), Chosen());
    segments_ = PackedSegments();
    rows_.begin = first;
    rows_.count = rows;
    users_ = Chosen();
    if (request_.split) FindUsers();
    // A part is chosen after what says which of its entries belong to which row.
    for (size_t i = 0; i < form_.rules.size(); ++i) Choose(i);
    const absl::Status allocated = Allocate();
    if (!allocated.ok()) return allocated;
    for (size_t i = 0; i < form_.rules.size(); ++i) Write(i);
    return std::move(result_);
  }

  // Bytes that the users take in all pieces of `most` of the `rows` rows.
  double UserBytes(int64_t rows, int64_t most) {
    if (!request_.split || form_.users_from < 0) return 0;
    double users = 0, bytes = 0;
    for (rows_.begin = 0; rows_.begin < rows; rows_.begin += most) {
      rows_.count = std::min(most, rows - rows_.begin);
      FindUsers();
      users += static_cast<double>(users_.count);
    }
    for (size_t i = 0; i < form_.rules.size(); ++i) {
      if (form_.rules[i].once && !IsConstant(i)) bytes += static_cast<double>(BytesOf(i));
    }
    const PackedInput& from = inputs_[static_cast<size_t>(form_.users_from)];
    const auto all = static_cast<double>(form_.rules[static_cast<size_t>(form_.users_from)].kind == Kind::kDenseShape
                                             ? NumberAt(static_cast<size_t>(form_.users_from), 0)
                                             : from.dims[0]);
    return bytes * users / std::max(all, 1.0);
  }

 private:
  const char* Data(size_t i) const { return arena_ + inputs_[i].offset; }
  bool IsConstant(size_t i) const {
    const Kind kind = form_.rules[i].kind;
    if (kind == Kind::kConstant || inputs_[i].rank == 0) return true;
    return !request_.absent.empty() &&
           std::find(request_.absent.begin(), request_.absent.end(), form_.parts[i]) != request_.absent.end();
  }
  int64_t NumberAt(size_t i, int64_t k) const {
    if (form_.rules[i].wide) return Number<int64_t>(Data(i), k);
    return Number<int32_t>(Data(i), k);
  }
  template <typename T>
  static int64_t Number(const char* data, int64_t k) {
    T number;
    std::memcpy(&number, data + k * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return static_cast<int64_t>(number);
  }

  // The users of the rows that are cut: from the smallest number to the largest.
  void FindUsers() {
    for (size_t i = 0; i < form_.rules.size(); ++i) {
      if (form_.rules[i].kind != Kind::kRowToUser || rows_.count == 0) continue;
      int64_t least = NumberAt(i, rows_.begin), most = least;
      for (int64_t k = rows_.begin; k < rows_.begin + rows_.count; ++k) {
        least = std::min(least, NumberAt(i, k));
        most = std::max(most, NumberAt(i, k));
      }
      users_.begin = least;
      users_.count = most - least + 1;
    }
  }

  const Chosen& SideOf(size_t i) const { return form_.rules[i].once ? users_ : rows_; }

  void Choose(size_t i) {
    Chosen& chosen = chosen_[i];
    if (chosen.count > 0 || chosen.listed || IsConstant(i)) return;
    const StackRule& rule = form_.rules[i];
    switch (rule.kind) {
      case Kind::kConstant:
      case Kind::kDenseShape:
        break;
      case Kind::kRows:
      case Kind::kRowToUser:
        chosen = SideOf(i);
        break;
      case Kind::kSplits: {  // which of its rows
        chosen = rule.outer ? SideOf(i) : Below(static_cast<size_t>(rule.rows_from));
        break;
      }
      case Kind::kIndices:
        ChooseEntries(i, &chosen);
        break;
      case Kind::kValues: {
        const auto from = static_cast<size_t>(rule.rows_from);
        if (form_.rules[from].kind == Kind::kSplits) {
          chosen = Below(from);
        } else {
          Choose(from);
          chosen = chosen_[from];
        }
        break;
      }
    }
  }

  // What lies below the chosen rows of row_splits.
  Chosen Below(size_t splits) {
    Choose(splits);
    Chosen below;
    below.begin = NumberAt(splits, chosen_[splits].begin);
    below.count = NumberAt(splits, chosen_[splits].begin + chosen_[splits].count) - below.begin;
    return below;
  }

  uint64_t BytesOf(size_t i) const {
    const PackedInput& input = inputs_[i];
    if (!input.is_string()) return input.bytes();
    const tstring* strings = static_cast<const tstring*>(request_.strings.data()) + input.offset;
    uint64_t bytes = 0;
    for (int64_t k = 0; k < input.elements; ++k) bytes += sizeof(tstring) + strings[k].size();
    return bytes;
  }

  // Notes the order of entries by rows, where they do not come in it.
  void SortEntries(size_t i) {
    const int64_t count = inputs_[i].dims[0], rank = inputs_[i].dims[1];
    bool sorted = true;
    for (int64_t k = 1; k < count && sorted; ++k) sorted = NumberAt(i, (k - 1) * rank) <= NumberAt(i, k * rank);
    if (sorted) return;
    std::vector<int64_t>& order = order_[i];
    order.resize(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return NumberAt(i, a * rank) < NumberAt(i, b * rank); });
  }

  // How many entries, by rows, come before those of `row`.
  int64_t EntriesBefore(size_t i, int64_t row) const {
    const std::vector<int64_t>& order = order_[i];
    const int64_t rank = inputs_[i].dims[1];
    int64_t low = 0, high = inputs_[i].dims[0];
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const int64_t entry = order.empty() ? middle : order[static_cast<size_t>(middle)];
      NumberAt(i, entry * rank) < row ? low = middle + 1 : high = middle;
    }
    return low;
  }

  // The entries of the chosen rows, which lie together where indices are in order.
  void ChooseEntries(size_t i, Chosen* chosen) const {
    const Chosen& side = SideOf(i);
    const int64_t first = EntriesBefore(i, side.begin);
    chosen->count = EntriesBefore(i, side.begin + side.count) - first;
    chosen->begin = chosen->count == 0 ? 0 : first;
    if (order_[i].empty() || chosen->count == 0) return;
    const auto from = order_[i].begin() + static_cast<std::ptrdiff_t>(first);
    chosen->entries.assign(from, from + static_cast<std::ptrdiff_t>(chosen->count));
    std::sort(chosen->entries.begin(), chosen->entries.end());
    chosen->begin = chosen->entries.front();
    chosen->listed = chosen->count > 0 && chosen->entries.back() - chosen->begin + 1 != chosen->count;
    if (!chosen->listed) chosen->entries.clear();
  }

  int64_t Dim0(size_t i) const {
    const Kind kind = form_.rules[i].kind;
    if (IsConstant(i) || kind == Kind::kDenseShape) return inputs_[i].rank == 0 ? 1 : inputs_[i].dims[0];
    return chosen_[i].count + (kind == Kind::kSplits ? 1 : 0);
  }
  int64_t EntryElements(size_t i) const {
    int64_t elements = 1;
    for (int32_t d = 1; d < inputs_[i].rank; ++d) elements *= inputs_[i].dims[d];
    return elements;
  }

  absl::Status Allocate() {
    PackedSegments segments;
    int64_t numbers = 0;
    for (size_t i = 0; i < form_.rules.size(); ++i) {
      const auto elements = static_cast<uint64_t>(Dim0(i) * EntryElements(i));
      numbers += 1 + inputs_[i].rank;
      form_.rules[i].element_bytes == 0 ? segments.AddStrings(elements)
                                        : segments.AddNumeric(elements * form_.rules[i].element_bytes);
    }
    result_.arena = tensorflow::Tensor(tensorflow::DT_UINT8, {static_cast<int64_t>(segments.arena_bytes())});
    result_.shapes = tensorflow::Tensor(tensorflow::DT_INT64, {numbers});
    result_.strings = tensorflow::Tensor(tensorflow::DT_STRING, {static_cast<int64_t>(segments.strings())});
    if (!result_.arena.IsInitialized() || !result_.strings.IsInitialized()) {
      return absl::ResourceExhaustedError("no memory for a piece of a request");
    }
    result_.absent = request_.absent;
    result_.split = request_.split;
    result_.repeated = request_.repeated;
    int64_t* shapes = static_cast<int64_t*>(result_.shapes.data());
    for (size_t i = 0; i < form_.rules.size(); ++i) {
      *shapes++ = inputs_[i].rank;
      for (int32_t d = 0; d < inputs_[i].rank; ++d) *shapes++ = d == 0 ? Dim0(i) : inputs_[i].dims[d];
    }
    return absl::OkStatus();
  }

  void Write(size_t i) {
    const StackRule& rule = form_.rules[i];
    const int64_t entry = EntryElements(i);
    const int64_t elements = Dim0(i) * entry;
    if (rule.element_bytes == 0) {
      tstring* to =
          static_cast<tstring*>(result_.strings.data()) + segments_.AddStrings(static_cast<uint64_t>(elements));
      const tstring* from = static_cast<const tstring*>(request_.strings.data()) + inputs_[i].offset;
      return Copy(i, entry, from, to);
    }
    const uint64_t bytes = static_cast<uint64_t>(elements) * rule.element_bytes;
    if (bytes == 0) return;
    char* to = static_cast<char*>(result_.arena.data()) + segments_.AddNumeric(bytes);
    std::memset(to + bytes, 0, PackedRoundUp(bytes) - bytes);
    if (rule.kind == Kind::kSplits) {
      rule.wide ? WriteSplits<int64_t>(i, to) : WriteSplits<int32_t>(i, to);
      return;
    }
    Copy(i, entry * rule.element_bytes, Data(i), to);
    if (rule.kind == Kind::kIndices) {
      rule.wide ? Rebase<int64_t>(i, entry, SideOf(i).begin, to) : Rebase<int32_t>(i, entry, SideOf(i).begin, to);
    } else if (rule.kind == Kind::kRowToUser) {
      Rebase<int64_t>(i, 1, users_.begin, to);
    } else if (rule.kind == Kind::kDenseShape) {
      const int64_t rows = SideOf(i).count;
      const auto narrow = static_cast<int32_t>(rows);
      rule.wide ? std::memcpy(to, &rows, sizeof(rows)) : std::memcpy(to, &narrow, sizeof(narrow));
    }
  }

  // Copies the chosen entries of `entry` units each.
  template <typename Unit>
  void Copy(size_t i, int64_t entry, const Unit* from, Unit* to) const {
    const Chosen& chosen = chosen_[i];
    if (IsConstant(i) || form_.rules[i].kind == Kind::kDenseShape) {
      std::copy_n(from, Dim0(i) * entry, to);
    } else if (!chosen.listed) {
      std::copy_n(from + chosen.begin * entry, chosen.count * entry, to);
    } else {
      for (const int64_t k : chosen.entries) to = std::copy_n(from + k * entry, entry, to);
    }
  }

  template <typename T>
  void WriteSplits(size_t i, char* at) const {
    T* to = reinterpret_cast<T*>(at);
    const T* from = reinterpret_cast<const T*>(Data(i)) + chosen_[i].begin;
    for (int64_t k = 0; k <= chosen_[i].count; ++k) to[k] = static_cast<T>(from[k] - from[0]);
  }

  template <typename T>
  void Rebase(size_t i, int64_t step, int64_t base, char* at) const {
    T* to = reinterpret_cast<T*>(at);
    for (int64_t k = 0; k < chosen_[i].count; ++k) to[k * step] = static_cast<T>(to[k * step] - base);
  }

  const StackForm& form_;
  const PackedRequest& request_;
  const char* const arena_;
  std::vector<PackedInput> inputs_;
  std::vector<std::vector<int64_t>> order_;  // of entries by rows; empty: as they are
  std::vector<Chosen> chosen_;
  Chosen rows_, users_;
  PackedSegments segments_;
  PackedRequest result_;
};

}  // namespace

absl::StatusOr<PackedRequest> BatchPlan::Slice(const PackedRequest& request, int64_t first, int64_t rows) const {
  const StackForm* form = FormOf(request);
  const int64_t all = form == nullptr ? -1 : Rows(request);
  if (all < 0) return absl::InternalError("a request that can't be cut");
  if (first < 0 || rows < 0 || first > all || rows > all - first) {
    return absl::InternalError(absl::StrCat("rows ", first, " to ", first + rows, " of a request of ", all));
  }
  Cutter cutter(*form, request);
  const absl::Status parsed = cutter.Parse();
  if (!parsed.ok()) return parsed;
  return cutter.Run(first, rows);
}

absl::StatusOr<std::vector<PackedRequest>> BatchPlan::Cut(const PackedRequest& request, int64_t most) const {
  constexpr double kMostUserBytes = 256 << 20;  // or, of a larger request, as much as it has itself
  const StackForm* form = FormOf(request);
  const int64_t rows = form == nullptr ? -1 : Rows(request);
  if (rows < 0 || most <= 0) return absl::InternalError("a request that can't be cut");
  Cutter cutter(*form, request);
  const absl::Status parsed = cutter.Parse();
  if (!parsed.ok()) return parsed;
  std::vector<PackedRequest> pieces;
  if (cutter.UserBytes(rows, most) > std::max(kMostUserBytes, static_cast<double>(request.arena.NumElements()))) {
    pieces.push_back(request);
    return pieces;
  }
  for (int64_t first = 0; first < rows; first += most) {
    absl::StatusOr<PackedRequest> piece = cutter.Run(first, std::min(most, rows - first));
    if (!piece.ok()) return piece.status();
    pieces.push_back(*std::move(piece));
  }
  return pieces;
}

}  // namespace tfctr
