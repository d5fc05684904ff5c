// State in few bits: which slots are codes, and the numbers of stochastic rounding.

#ifndef DTOPT_PACKING_H_
#define DTOPT_PACKING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "books.h"
#include "groups.h"
#include "pieces.h"

namespace dtopt {

// How many of a variable's first slots are codes. Behind all slots are the scales of each of these.
inline int64_t CodedSlots(const Group& group, int64_t slots) {
  const size_t count = group.variables.size();
  int64_t coded = 0;
  for (size_t k = 0; k < static_cast<size_t>(slots) && k * count < group.slots.size(); ++k) {
    coded += Books::Of(group.slots[k * count]->tensor()->dtype()) != nullptr;
  }
  return coded;
}

// What `packing` of calls.h says.
struct PackingNumbers {
  bool is_used = false, is_random = false, rounds_variables = false;
  uint32_t key = 0;
  std::vector<uint32_t> streams, numbers;

  absl::Status Read(const std::vector<double>& given, size_t slots, size_t count) {
    if (given.empty()) return absl::OkStatus();
    if (given.size() != 2 + slots + count) return InvalidArgument("got ", given.size(), " numbers of state in few bits");
    is_used = true;
    is_random = given[0] >= 0;
    key = is_random ? static_cast<uint32_t>(given[0]) : 0;
    rounds_variables = given[1] != 0;
    for (size_t k = 2; k < given.size(); ++k) {
      (k < 2 + slots ? streams : numbers).push_back(static_cast<uint32_t>(given[k]));
    }
    streams.push_back(0);
    return absl::OkStatus();
  }

  // Of slot k of variable i, or of the variable itself, which comes after its slots: as optim/bits/noise.py.
  uint32_t Key(size_t i, size_t k) const { return Mixed(Mixed(key ^ numbers[i]) ^ streams[k]); }

 private:
  static uint32_t Mixed(uint32_t x) {  // as Mix of arithmetic.h
    x += 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
  }
};

}  // namespace dtopt

#endif  // DTOPT_PACKING_H_
