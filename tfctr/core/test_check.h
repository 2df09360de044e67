// Checks of the native tests: plain programs, exit status 0 when every check held. A failed check prints where and what
// and ends the program at once, so that a sanitizer report is never followed by noise, nor by other threads.
#ifndef TFCTR_CORE_TEST_CHECK_H_
#define TFCTR_CORE_TEST_CHECK_H_

#include <cstdlib>
#include <iostream>

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      std::cerr << __FILE__ << ":" << __LINE__ << ": does not hold: " #condition << std::endl; \
      std::_Exit(1);                                                                           \
    }                                                                                          \
  } while (false)

#define CHECK_EQ(left, right)                                                                                          \
  do {                                                                                                                 \
    const auto check_left = (left);                                                                                    \
    const auto check_right = (right);                                                                                  \
    if (!(check_left == check_right)) {                                                                                \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " #left " == " #right ": " << check_left << " vs " << check_right \
                << std::endl;                                                                                          \
      std::_Exit(1);                                                                                                   \
    }                                                                                                                  \
  } while (false)

#endif  // TFCTR_CORE_TEST_CHECK_H_
