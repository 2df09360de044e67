// Options of the provider openvino, as its users write them: tfctr/engines/native.py describes each.
// Thread-safety: plain values.
#ifndef TFCTR_CORE_OPENVINO_OPTIONS_H_
#define TFCTR_CORE_OPENVINO_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tfctr/core/storage/status.h"

namespace tfctr {

struct OpenVinoOptions {
  std::vector<int64_t> buckets;    // rows of the static variants, ascending
  std::map<int64_t, int64_t> pad;  // bucket -> the fewest rows that are filled up to it
  std::vector<int64_t> warm;       // rows that the dynamic variant is run with when it is opened
  int64_t users = 1;               // user rows of the static variants
  int64_t chunk = 0;               // a bucket: larger batches start with pieces of so many rows; 0: never
  bool dynamic = true;
  int contexts = 1;
  int max_contexts = 0;  // 0: processors / threads

  // kInvalid naming the option, what came and what was expected.
  static Result<OpenVinoOptions> Parse(const std::string& text);

  // With how many pieces of `chunk` rows a batch starts; what is left runs in BucketFor of its own rows.
  int64_t WholePieces(int64_t rows) const;
  // The bucket that `rows` run in: exactly, or filled up; 0: the dynamic variant. -1: none.
  int64_t BucketFor(int64_t rows) const;
  // The rows that the dynamic variant runs `rows` of them as: the same up to 32, else at most a sixteenth more.
  // OpenVINO makes kernels for every number of rows that it meets, in milliseconds, and keeps them (most of a megabyte
  // each for a small tower): a server with batches of all sizes would pay for each.
  static int64_t FilledRows(int64_t rows);
};

}  // namespace tfctr

#endif  // TFCTR_CORE_OPENVINO_OPTIONS_H_
