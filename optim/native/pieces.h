// One shard's update, over any range of its elements, in one pass over memory.

#ifndef DTOPT_PIECES_H_
#define DTOPT_PIECES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "numbers.h"
#include "rules.h"

namespace dtopt {

constexpr int kMaxSlots = 3;
constexpr int64_t kChunk = 2 * 1024;  // elements between the loops of a pass; they stay in the first cache

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

template <typename T>
struct Piece {  // pointers to the first element of the shard; `size` counts what is updated
  T* variable = nullptr;
  const T* gradient = nullptr;
  T* slots[kMaxSlots] = {};
  T* average = nullptr;
  Wide<T> scale = 1, decay = 1;
  int64_t size = 0;
  const Box* box = nullptr;   // null: the whole shard
  std::vector<T*> replicas;   // of the variable, on other devices, which are given the new values, too
};

template <typename C>
struct Options {
  C limit, average_weight, value_weight;
  bool overwrite;
};

// In these two, `at` is where slots and average begin, `offset` where variable and gradient do. Buffers never overlap: a
// variable whose buffer anything else holds, a gradient included, was given its own before.

template <typename T, typename Rule>
void UpdateChunk(const Rule& rule, const Piece<T>& piece, Wide<T> limit, int64_t at, int64_t offset, int64_t size) {
  using C = Wide<T>;
  T* __restrict variable = piece.variable + offset;
  const T* __restrict gradient = piece.gradient + offset;
  T* __restrict a = piece.slots[0] + at;
  T* __restrict b = piece.slots[1] + at;
  T* __restrict c = piece.slots[2] + at;
  const C scale = piece.scale, decay = piece.decay;  // 1 changes nothing, nor does a limit of infinity
  for (int64_t i = 0; i < size; ++i) {
    Slots<C> s{0, 0, 0};
    if constexpr (Rule::kSlots > 0) s.a = Load(a[i]);
    if constexpr (Rule::kSlots > 1) s.b = Load(b[i]);
    if constexpr (Rule::kSlots > 2) s.c = Load(c[i]);
    const C g = Clip(Load(gradient[i]) * scale, limit);
    const C w = Load(variable[i]) * decay;
    const C change = rule(g, w, s);
    Store(w + change, variable + i);
    if constexpr (Rule::kSlots > 0) Store(s.a, a + i);
    if constexpr (Rule::kSlots > 1) Store(s.b, b + i);
    if constexpr (Rule::kSlots > 2) Store(s.c, c + i);
  }
}

template <typename T>
void AverageChunk(const Piece<T>& piece, const Options<Wide<T>>& options, int64_t at, int64_t offset, int64_t size) {
  T* __restrict variable = piece.variable + offset;
  T* __restrict average = piece.average + at;
  for (int64_t i = 0; i < size; ++i) {
    Store(options.average_weight * Load(average[i]) + options.value_weight * Load(variable[i]), average + i);
  }
  if (options.overwrite) std::copy_n(average, size, variable);
}

template <typename T, typename Rule>
void UpdateRun(const Rule& rule, const Piece<T>& piece, const Options<Wide<T>>& options, int64_t at, int64_t offset,
               int64_t size) {
  const int64_t chunk = piece.average == nullptr && piece.replicas.empty() ? size : kChunk;
  for (int64_t done = 0; done < size; done += chunk) {
    const int64_t now = std::min(chunk, size - done), begin = offset + done;
    UpdateChunk<T, Rule>(rule, piece, options.limit, at + done, begin, now);
    if (piece.average != nullptr) AverageChunk<T>(piece, options, at + done, begin, now);
    for (T* replica : piece.replicas) std::copy_n(piece.variable + begin, now, replica + begin);
  }
}

template <typename T, typename Rule>
void Update(const Wide<T>* scalars, const Piece<T>& piece, const Options<Wide<T>>& options, int64_t begin,
            int64_t end) {
  const Rule rule(scalars);
  if (piece.box == nullptr) {
    UpdateRun<T, Rule>(rule, piece, options, begin, begin, end - begin);
    return;
  }
  const int64_t run = piece.box->run;
  while (begin < end) {
    const int64_t number = begin / run, stop = std::min(end, (number + 1) * run);
    UpdateRun<T, Rule>(rule, piece, options, begin, piece.box->Offset(number) + begin - number * run, stop - begin);
    begin = stop;
  }
}

template <typename T>
struct Program {
  int slots = -1, scalars = 0;  // -1: there is no such rule
  void (*update)(const Wide<T>*, const Piece<T>&, const Options<Wide<T>>&, int64_t, int64_t) = nullptr;
};

template <typename T, typename Rule>
Program<T> Of() {
  static_assert(Rule::kSlots <= kMaxSlots);
  return {Rule::kSlots, Rule::kScalars, &Update<T, Rule>};
}

template <typename T>
Program<T> FindProgram(const std::string& rule) {
  using C = Wide<T>;
  if (rule == "sgd") return Of<T, Sgd<C>>();
  if (rule == "momentum") return Of<T, Momentum<C, false>>();
  if (rule == "nesterov") return Of<T, Momentum<C, true>>();
  if (rule == "adam") return Of<T, Adam<C, false>>();
  if (rule == "amsgrad") return Of<T, Adam<C, true>>();
  if (rule == "adadelta") return Of<T, Adadelta<C, false>>();
  if (rule == "adadelta_new_delta") return Of<T, Adadelta<C, true>>();
  if (rule == "adagrad") return Of<T, Adagrad<C>>();
  if (rule == "rmsprop") return Of<T, RMSprop<C, false, false>>();
  if (rule == "rmsprop_momentum") return Of<T, RMSprop<C, true, false>>();
  if (rule == "rmsprop_centered") return Of<T, RMSprop<C, false, true>>();
  if (rule == "rmsprop_momentum_centered") return Of<T, RMSprop<C, true, true>>();
  if (rule == "lion") return Of<T, Lion<C>>();
  if (rule == "adamax") return Of<T, Adamax<C>>();
  if (rule == "nadam") return Of<T, Nadam<C>>();
  if (rule == "ftrl") return Of<T, Ftrl<C>>();
  return {};
}

// The sum of squares of up to a few thousand elements, in float64, always added up in the same order.
template <typename T>
double SquareSum(const T* values, int64_t size) {
  constexpr int64_t kLanes = 32;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const double x = Load(values[i + k]);
      sums[k] += x * x;
    }
  }
  for (; i < size; ++i) {
    const double x = Load(values[i]);
    sums[i % kLanes] += x * x;
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

}  // namespace dtopt

#endif  // DTOPT_PIECES_H_
