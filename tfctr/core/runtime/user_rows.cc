#include "tfctr/core/runtime/user_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/runtime/request_checks.h"

namespace tfctr {

namespace {

std::string Count(int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// Refuses `count` entries of `bytes` each when the result would not be one that any client means.
void CheckSize(int64_t count, int64_t entry_bytes) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(count, std::max<int64_t>(entry_bytes, 1), &bytes) || bytes > kMaxRepeatedBytes) {
    throw Mismatch("rows that would take more than " + std::to_string(kMaxRepeatedBytes >> 30) +
                   " GiB once they are repeated for every candidate");
  }
}

}  // namespace

UserRows::UserRows(const SignaturePlan& plan, std::vector<PartValue>* values, const std::vector<std::string>& named)
    : plan_(plan), values_(*values) {
  if (named.empty()) return;
  named_.assign(plan.parts.size(), false);
  for (const std::string& name : named) {
    const Entry* entry = plan.FindEntry(name);
    if (entry == nullptr || (entry->part >= 0 && entry->part == plan.row_to_user)) FailUnknown(plan, name);
    // A name that is both a feature and one of its parts means the feature.
    const int feature = entry->feature;
    const std::vector<int> parts =
        feature >= 0 ? plan.features[static_cast<size_t>(feature)].parts : std::vector<int>{entry->part};
    for (const int number : parts) named_[static_cast<size_t>(number)] = !part(number).user;
  }
}

bool UserRows::HasRows(size_t number) const {
  const Part& part = plan_.parts[number];
  const PartValue& value = values_[number];
  if (part.feature >= 0 || part.like >= 0 || !value.present() || static_cast<int>(number) == plan_.row_to_user) {
    return false;
  }
  return part.rank_known ? !part.dims.empty() && part.dims[0] < 0 : !value.dims.empty();
}

int64_t UserRows::RowsOf(const Feature& feature) const {
  if (feature.kind == Feature::Kind::kRagged) return value(feature.row_splits[0]).elements - 1;
  const PartValue& shape = value(feature.dense_shape);
  return shape.elements == 0 ? -1 : IntegerAt(part(feature.dense_shape), shape, 0);
}

void UserRows::Add(bool user, int64_t rows, const std::string& name) {
  Side& side = user ? users_ : items_;
  if (side.name == nullptr) {
    side = {rows, &name};
    return;
  }
  if (side.rows == rows) return;
  const char* kind = user ? "user feature " : "feature ";
  Fail(plan_, kind + Quoted(*side.name) + " has " + Count(side.rows, "row") + " and " + kind + Quoted(name) + " has " +
                  std::to_string(rows) + "; expected the same number of rows in all " +
                  (user ? "user features" : "features that are not the user's"));
}

void UserRows::CountRows() {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (HasRows(i) && !Named(static_cast<int>(i))) Add(plan_.parts[i].user, values_[i].dims[0], plan_.parts[i].name);
  }
  for (const Feature& feature : plan_.features) {
    if (!value(feature.values).present() || Named(feature.values)) continue;
    Add(part(feature.values).user, RowsOf(feature), feature.name);
  }
}

void UserRows::FailRows() const {
  Fail(plan_, "user feature " + Quoted(*users_.name) + " has " + Count(users_.rows, "row") + " and " +
                  Quoted(*items_.name) + " has " + std::to_string(items_.rows) +
                  "; expected as many, or one row for one user, or " + Quoted(part(plan_.row_to_user).name) +
                  " to say which user row each row belongs to");
}

bool UserRows::ReadRowToUser() {
  if (!HasRowToUser()) {
    if (users_.name == nullptr || items_.name == nullptr || users_.rows == items_.rows) return false;
    if (users_.rows != 1 || items_.rows < 0) FailRows();
    if (items_.rows > kMaxCandidates) {
      Fail(plan_, Quoted(*items_.name) + " has " + Count(items_.rows, "row") + ", expected at most " +
                      std::to_string(kMaxCandidates) + " for one user row");
    }
    row_to_user_.assign(static_cast<size_t>(items_.rows), 0);
    return true;
  }
  const Part& part_of = part(plan_.row_to_user);
  const PartValue& given = value(plan_.row_to_user);
  const std::string start = "input " + Quoted(part_of.name) + ": got ";
  if (items_.name != nullptr && given.elements != items_.rows) {
    Fail(plan_, start + Count(given.elements, "number") + ", expected one for each of the " +
                    Count(items_.rows, "row") + " of " + Quoted(*items_.name));
  }
  if (users_.name == nullptr) return false;  // nothing that belongs to users has rows
  row_to_user_.resize(static_cast<size_t>(given.elements));
  if (given.elements > 0) std::memcpy(row_to_user_.data(), given.data, row_to_user_.size() * sizeof(int64_t));
  int64_t largest = -1;
  for (size_t i = 0; i < row_to_user_.size(); ++i) {
    const int64_t user = row_to_user_[i];
    if (user < 0 || user >= users_.rows) {
      Fail(plan_, start + std::to_string(user) + " at [" + std::to_string(i) + "], expected a user row: user feature " +
                      Quoted(*users_.name) + " has " + Count(users_.rows, "row"));
    }
    largest = std::max(largest, user);
  }
  if (users_.rows != 1 && users_.rows != largest + 1) {
    Fail(plan_, "user feature " + Quoted(*users_.name) + " has " + Count(users_.rows, "row") + ", but " +
                    (largest < 0 ? Quoted(part_of.name) + " is empty"
                                 : "the largest number in " + Quoted(part_of.name) + " is " + std::to_string(largest)) +
                    "; expected " +
                    (largest < 0    ? "0 or 1 rows"
                     : largest == 0 ? "1 row"
                                    : std::to_string(largest + 1) + " or 1"));
  }
  return true;
}

void UserRows::Arrange() {
  if (plan_.row_to_user < 0 && named_.empty()) return;
  CountRows();
  if (ReadRowToUser()) {
    split_ = plan_.split.has_value();
    RepeatDeclared();
    if (split_ && !HasRowToUser()) {
      const auto rows = static_cast<int64_t>(row_to_user_.size());
      TakeIntegers(part(plan_.row_to_user), row_to_user_, {rows}, &value(plan_.row_to_user));
    }
  }
  if (!named_.empty()) RepeatNamed();
}

void UserRows::RepeatDeclared() {
  Repeat([this](int number) { return part(number).user && !(split_ && part(number).once); }, row_to_user_);
}

void UserRows::FailNamed(const std::string& name, int64_t rows, int64_t expected) const {
  Fail(plan_, "input " + Quoted(name) + ", which the request names as the user's, has " + Count(rows, "row") +
                  "; expected 1, or as many as the others: " + std::to_string(expected));
}

void UserRows::RepeatNamed() {
  int64_t rows = items_.name != nullptr ? items_.rows : users_.rows;
  if (!row_to_user_.empty()) rows = static_cast<int64_t>(row_to_user_.size());
  if (rows < 0) return;  // nothing else has rows
  std::vector<bool> repeated(named_.size(), false);
  const auto look = [&](int number, int64_t own, const std::string& name) {
    if (!Named(number) || own < 0 || own == rows) return;
    if (own != 1 || rows > kMaxCandidates) FailNamed(name, own, rows);
    repeated[static_cast<size_t>(number)] = true;
  };
  for (size_t i = 0; i < values_.size(); ++i) {
    if (HasRows(i)) look(static_cast<int>(i), values_[i].dims[0], plan_.parts[i].name);
  }
  for (const Feature& feature : plan_.features) {
    if (value(feature.values).present()) look(feature.values, RowsOf(feature), feature.name);
  }
  first_rows_.assign(static_cast<size_t>(rows), 0);
  Repeat([&](int number) { return repeated[static_cast<size_t>(number)]; }, first_rows_);
}

template <typename Which>
void UserRows::Repeat(const Which& which, const std::vector<int64_t>& from) {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!HasRows(i) || !which(static_cast<int>(i))) continue;
    try {
      Take(plan_.parts[i], from, &values_[i]);
    } catch (const Mismatch& mismatch) {
      FailPart(plan_, plan_.parts[i], mismatch);
    }
    repeated_ = true;
  }
  for (const Feature& feature : plan_.features) {
    if (!value(feature.values).present() || !which(feature.values)) continue;
    try {
      if (feature.kind == Feature::Kind::kRagged) {
        RepeatRagged(feature, from);
      } else {
        RepeatSparse(feature, from);
      }
    } catch (const Mismatch& mismatch) {
      FailFeature(plan_, feature, mismatch);
    }
    repeated_ = true;
  }
}

void UserRows::Take(const Part& part, const std::vector<int64_t>& rows, PartValue* value) {
  int64_t row_elements = 1;
  for (size_t d = 1; d < value->dims.size(); ++d) row_elements *= value->dims[d];
  const auto count = static_cast<int64_t>(rows.size());
  const auto string_bytes = static_cast<int64_t>(sizeof(tensorflow::tstring));
  CheckSize(count, row_elements * (part.element_bytes == 0 ? string_bytes : part.element_bytes));
  value->taken = {rows.data(), count, row_elements, value->elements};
  value->dims[0] = count;
  value->elements = count * row_elements;
}

void UserRows::TakeValues(const Feature& feature, std::vector<int64_t> entries) {
  const int64_t count = value(feature.values).dims[0];
  entries_.push_back(std::move(entries));
  Take(part(feature.values), entries_.back(), &value(feature.values));
  for (size_t i = 0; i < plan_.parts.size(); ++i) {
    const Part& other = plan_.parts[i];
    if (other.like != feature.values || !values_[i].present()) continue;
    if (values_[i].dims.empty() || values_[i].dims[0] != count) {
      throw Mismatch(std::to_string(count) + " values and " +
                     std::to_string(values_[i].dims.empty() ? 1 : values_[i].dims[0]) + " in " + Quoted(other.name) +
                     ", which goes with them");
    }
    Take(other, entries_.back(), &values_[i]);
  }
}

void UserRows::RepeatRagged(const Feature& feature, const std::vector<int64_t>& from) {
  std::vector<int64_t> rows = from;
  for (size_t level = 0; level < feature.row_splits.size(); ++level) {
    const int number = feature.row_splits[level];
    const Part& part_of = part(number);
    PartValue& splits = value(number);
    const bool last = level + 1 == feature.row_splits.size();
    const int64_t below = last ? value(feature.values).dims[0] : value(feature.row_splits[level + 1]).elements - 1;
    std::vector<int64_t> old(static_cast<size_t>(splits.elements));
    for (int64_t i = 0; i < splits.elements; ++i) old[static_cast<size_t>(i)] = IntegerAt(part_of, splits, i);
    if (old.empty() || old.front() != 0 || old.back() != below || !std::is_sorted(old.begin(), old.end())) {
      throw Mismatch("row_splits ('" + part_of.name + "') that do not rise from 0 to the " + std::to_string(below) +
                     (last ? " values" : " rows of the next level"));
    }
    std::vector<int64_t> made(rows.size() + 1, 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<size_t>(rows[i]);
      made[i + 1] = made[i] + old[row + 1] - old[row];
    }
    CheckSize(made.back(), sizeof(int64_t));
    std::vector<int64_t> next;
    next.reserve(static_cast<size_t>(made.back()));
    for (const int64_t row : rows) {
      for (int64_t k = old[static_cast<size_t>(row)]; k < old[static_cast<size_t>(row) + 1]; ++k) next.push_back(k);
    }
    TakeIntegers(part_of, made, {static_cast<int64_t>(made.size())}, &splits);
    rows = std::move(next);
  }
  TakeValues(feature, std::move(rows));
}

void UserRows::RepeatSparse(const Feature& feature, const std::vector<int64_t>& from) {
  const int64_t rows = RowsOf(feature);
  const Part& index_part = part(feature.indices);
  const Part& shape_part = part(feature.dense_shape);
  PartValue& indices = value(feature.indices);
  PartValue& shape = value(feature.dense_shape);
  const int64_t count = indices.dims[0], rank = indices.dims[1];
  if (rank < 1) throw Mismatch("indices of no columns ('" + index_part.name + "')");
  std::vector<int64_t> row_of(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = IntegerAt(index_part, indices, i * rank);
    if (row < 0 || row >= rows) {
      throw Mismatch("the row " + std::to_string(row) + " in '" + index_part.name + "' at [" + std::to_string(i) +
                     "], which is none of the " + std::to_string(rows));
    }
    row_of[static_cast<size_t>(i)] = row;
  }
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (!std::is_sorted(row_of.begin(), row_of.end())) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return row_of[static_cast<size_t>(a)] < row_of[static_cast<size_t>(b)];
    });
    std::sort(row_of.begin(), row_of.end());
  }
  std::vector<int64_t> entries, made;
  int64_t total = 0;
  const auto range = [&](int64_t user) { return std::equal_range(row_of.begin(), row_of.end(), user); };
  std::vector<std::pair<int64_t, int64_t>> spans;
  spans.reserve(from.size());
  for (const int64_t user : from) {
    const auto found = range(user);
    spans.emplace_back(found.first - row_of.begin(), found.second - row_of.begin());
    total += found.second - found.first;
  }
  CheckSize(total, rank * static_cast<int64_t>(sizeof(int64_t)));
  entries.reserve(static_cast<size_t>(total));
  made.reserve(static_cast<size_t>(total * rank));
  for (size_t b = 0; b < spans.size(); ++b) {
    for (int64_t k = spans[b].first; k < spans[b].second; ++k) {
      const int64_t entry = order[static_cast<size_t>(k)];
      entries.push_back(entry);
      made.push_back(static_cast<int64_t>(b));
      for (int64_t c = 1; c < rank; ++c) made.push_back(IntegerAt(index_part, indices, entry * rank + c));
    }
  }
  std::vector<int64_t> sizes(static_cast<size_t>(rank));
  for (int64_t c = 0; c < rank; ++c) sizes[static_cast<size_t>(c)] = IntegerAt(shape_part, shape, c);
  sizes[0] = static_cast<int64_t>(from.size());
  TakeIntegers(index_part, made, {total, rank}, &indices);
  TakeIntegers(shape_part, sizes, {rank}, &shape);
  TakeValues(feature, std::move(entries));
}

}  // namespace tfctr
