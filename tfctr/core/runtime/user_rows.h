// Requests with user inputs once per user: decides which form of the graph runs, and repeats the rows of user inputs
// that this form takes once per candidate.
//
// U = rows of the declared user inputs, B = rows of the others.
//   no row_to_user   U == B: the plain form; U == 1: every row belongs to the one user; else refused
//   row_to_user [B]  values in [0, U), and U == largest + 1 or U == 1; else refused
//
// Inputs that are not declared may be named by the request: those have one row, which is repeated, or B rows.
//
// Thread-safety: one object per request. Cost: one look at each input's shape, and one pass over what is repeated.
// Dense rows and values are copied only when they are written to the arena (PartValue::taken).
#ifndef TFCTR_CORE_RUNTIME_USER_ROWS_H_
#define TFCTR_CORE_RUNTIME_USER_ROWS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tfctr/core/runtime/part_value.h"
#include "tfctr/core/runtime/signature_plan.h"

namespace tfctr {

// What one part of a request may hold after its rows were repeated, and the candidates that one user row may have.
// Honest requests stay far below; a sparse tensor may claim any number of rows.
inline constexpr int64_t kMaxRepeatedBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxCandidates = int64_t{1} << 24;

class UserRows {
 public:
  // `values`: one per part of `plan`, read and checked (request_reader.h). Both must outlive this object, and this
  // object must outlive the writing of the values. named: inputs and features that the request calls the user's.
  // Throws BadRequest for names that the signature has not.
  UserRows(const SignaturePlan& plan, std::vector<PartValue>* values, const std::vector<std::string>& named);
  UserRows(const UserRows&) = delete;
  UserRows& operator=(const UserRows&) = delete;

  // Decides, and changes the values to what the form takes. Throws BadRequest.
  void Arrange();

  bool split() const { return split_; }
  bool repeated() const { return repeated_; }

 private:
  // Rows of one side and who has them; rows -1: no input of this side has rows.
  struct Side {
    int64_t rows = -1;
    const std::string* name = nullptr;
  };

  const Part& part(int number) const { return plan_.parts[static_cast<size_t>(number)]; }
  PartValue& value(int number) const { return values_[static_cast<size_t>(number)]; }
  // Whether the request alone calls it the user's.
  bool Named(int number) const { return !named_.empty() && named_[static_cast<size_t>(number)]; }
  // Whether the request says which user row each row belongs to.
  bool HasRowToUser() const { return plan_.row_to_user >= 0 && value(plan_.row_to_user).present(); }
  // Whether a part stands alone and has a batch dimension.
  bool HasRows(size_t number) const;
  int64_t RowsOf(const Feature& feature) const;
  void CountRows();
  void Add(bool user, int64_t rows, const std::string& name);
  // Whether rows belong to users otherwise than one to one; fills row_to_user_.
  bool ReadRowToUser();
  [[noreturn]] void FailRows() const;

  void RepeatDeclared();
  void RepeatNamed();
  [[noreturn]] void FailNamed(const std::string& name, int64_t rows, int64_t expected) const;
  // `which(part number)`: whether its rows are repeated; `from`: the row that each row of the result is.
  template <typename Which>
  void Repeat(const Which& which, const std::vector<int64_t>& from);
  void RepeatRagged(const Feature& feature, const std::vector<int64_t>& from);
  void RepeatSparse(const Feature& feature, const std::vector<int64_t>& from);
  // The values of a feature, and what comes with them.
  void TakeValues(const Feature& feature, std::vector<int64_t> entries);
  void Take(const Part& part, const std::vector<int64_t>& rows, PartValue* value);

  const SignaturePlan& plan_;
  std::vector<PartValue>& values_;
  std::vector<bool> named_;  // by part; empty: the request names none
  Side users_, items_;
  std::vector<int64_t> row_to_user_;          // [B]
  std::vector<int64_t> first_rows_;           // [B] zeros: where named inputs have one row
  std::deque<std::vector<int64_t>> entries_;  // what PartValue::taken points to
  bool split_ = false;
  bool repeated_ = false;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_USER_ROWS_H_
