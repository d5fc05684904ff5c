// Which part of a shard a device updates.

#ifndef DTOPT_BOX_H_
#define DTOPT_BOX_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace dtopt {

// The part of a variable's shard that a device updates where its slots are divided further: runs of elements without a
// gap, counted as the slots lie. The number of a run, written in digits of the bases `counts`, gives its offset.
struct Box {
  int64_t first = 0, run = 0;
  std::vector<std::pair<int64_t, int64_t>> levels;  // (count, stride), the outermost first

  int64_t Offset(int64_t number) const {
    int64_t offset = first;
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
      offset += number % level->first * level->second;
      number /= level->first;
    }
    return offset;
  }

  int64_t Size() const {
    int64_t size = run;
    for (const auto& [count, stride] : levels) size *= count;
    return size;
  }

  int64_t Last() const {  // the last element's offset
    int64_t offset = first + run - 1;
    for (const auto& [count, stride] : levels) offset += (count - 1) * stride;
    return offset;
  }
};

}  // namespace dtopt

#endif  // DTOPT_BOX_H_
