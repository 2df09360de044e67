// The parser of packed requests: writer and reader agree, and nothing that does not fit exactly is accepted.
#include "tfctr/core/lookup/packed_layout.h"

#include <cstring>
#include <random>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

struct Request {
  std::vector<uint32_t> element_bytes;
  std::vector<int64_t> shapes;
  std::vector<uint64_t> offsets;  // as the writer placed them
  uint64_t arena_bytes = 0;
  uint64_t strings = 0;
};

bool Parse(const Request& request, std::vector<PackedInput>* inputs, std::string* error) {
  return ParsePackedLayout(request.element_bytes.data(), request.element_bytes.size(), request.shapes.data(),
                           request.shapes.size(), request.arena_bytes, request.strings, inputs, error);
}

Request RandomRequest(std::mt19937* random) {
  Request request;
  PackedSegments segments;
  constexpr uint32_t kSizes[] = {0, 1, 2, 4, 8, 16};
  const size_t count = (*random)() % 8;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t size = kSizes[(*random)() % 6];
    const size_t rank = (*random)() % 4;
    request.element_bytes.push_back(size);
    request.shapes.push_back(static_cast<int64_t>(rank));
    uint64_t elements = 1;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t dim = static_cast<int64_t>((*random)() % 6);
      request.shapes.push_back(dim);
      elements *= static_cast<uint64_t>(dim);
    }
    if (size == 0) {
      request.offsets.push_back(segments.AddStrings(elements));
    } else {
      request.offsets.push_back(elements == 0 ? 0 : segments.AddNumeric(elements * size));
    }
  }
  request.arena_bytes = segments.arena_bytes();
  request.strings = segments.strings();
  return request;
}

void TestWriterAndReaderAgree() {
  std::mt19937 random(1);
  std::vector<PackedInput> inputs;
  std::string error;
  for (int round = 0; round < 2000; ++round) {
    const Request request = RandomRequest(&random);
    CHECK(Parse(request, &inputs, &error));
    CHECK_EQ(inputs.size(), request.element_bytes.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      CHECK_EQ(inputs[i].offset, request.offsets[i]);
      if (inputs[i].is_string()) {
        CHECK(inputs[i].offset + static_cast<uint64_t>(inputs[i].elements) <= request.strings);
      } else {
        CHECK(inputs[i].offset % kPackedAlignment == 0);
        CHECK(inputs[i].offset + inputs[i].bytes() <= request.arena_bytes);
      }
    }
  }
}

// Whatever is accepted lies inside the arena and the strings, however the numbers were damaged.
void TestDamagedRequestsStayInBounds() {
  std::mt19937 random(2);
  std::vector<PackedInput> inputs;
  std::string error;
  constexpr int64_t kOdd[] = {-1, 0, 1, 5, 64, 1 << 20, INT64_MAX, INT64_MIN, int64_t{1} << 32, int64_t{1} << 62};
  int accepted = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Request request = RandomRequest(&random);
    switch (random() % 4) {
      case 0:
        if (!request.shapes.empty()) request.shapes[random() % request.shapes.size()] = kOdd[random() % 10];
        break;
      case 1:
        request.shapes.resize(random() % (request.shapes.size() + 3), kOdd[random() % 10]);
        break;
      case 2:
        request.arena_bytes = random() % 300;
        break;
      default:
        request.strings = random() % 40;
        break;
    }
    if (!Parse(request, &inputs, &error)) {
      CHECK(!error.empty());
      ++refused;
      continue;
    }
    ++accepted;
    uint64_t strings = 0;
    for (const PackedInput& input : inputs) {
      CHECK(input.dims >= request.shapes.data());
      CHECK(input.dims + input.rank <= request.shapes.data() + request.shapes.size());
      CHECK(input.elements >= 0);
      if (input.is_string()) {
        strings += static_cast<uint64_t>(input.elements);
      } else {
        CHECK(input.bytes() <= request.arena_bytes && input.offset <= request.arena_bytes - input.bytes());
      }
    }
    CHECK_EQ(strings, request.strings);
  }
  CHECK(accepted > 1000);
  CHECK(refused > 1000);
}

void TestPaddingOfTheLastSegmentMayBeLeftOut() {
  Request request;
  request.element_bytes = {8, 4};
  request.shapes = {1, 3, 1, 2};
  std::vector<PackedInput> inputs;
  std::string error;
  for (const uint64_t bytes : {72, 100, 128}) {
    request.arena_bytes = bytes;
    CHECK(Parse(request, &inputs, &error));
    CHECK_EQ(inputs[1].offset, uint64_t{64});
  }
  for (const uint64_t bytes : {0, 24, 71, 129}) {
    request.arena_bytes = bytes;
    CHECK(!Parse(request, &inputs, &error));
  }
  CHECK(error.find("the arena has 129 bytes") != std::string::npos);
}

void TestErrorsNameTheInput() {
  Request request;
  request.element_bytes = {8, 0, 4};
  request.shapes = {1, 3, 1, 2, 1, 300};
  request.arena_bytes = 128;
  request.strings = 2;
  std::vector<PackedInput> inputs;
  std::string error;
  CHECK(!Parse(request, &inputs, &error));
  CHECK(error.find("packed input 2 of 3") != std::string::npos);
  CHECK(error.find("1200 bytes at 64") != std::string::npos);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestWriterAndReaderAgree();
  tfctr::TestDamagedRequestsStayInBounds();
  tfctr::TestPaddingOfTheLastSegmentMayBeLeftOut();
  tfctr::TestErrorsNameTheInput();
  return 0;
}
