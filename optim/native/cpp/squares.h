// The arguments of the kernels that add up squares and make scales of them, for the host and for a GPU.

#ifndef DTOPT_SQUARES_H_
#define DTOPT_SQUARES_H_

constexpr int kLanes = 32;
constexpr int kSquaredAtOnce = 4096;  // elements whose squares one warp adds up
constexpr int kMostSquared = 1300;    // tensors of one launch

struct Squares {
  int count, unused;
  int first[kMostSquared + 1];        // the first run of kSquaredAtOnce elements of each tensor, and the number of all
  int place[kMostSquared];            // of its sum in `sums`
  int64_t size[kMostSquared];
  const void* values[kMostSquared];
  double* runs;                       // of each run its sum
  double* sums;
};

static_assert(sizeof(Squares) <= 32764, "it is the argument of a kernel");

// What is made of the sums of squares of all gradients of a step.
struct Scaling {
  int count;           // of gradients
  int is_joint;        // whether the norm is that of all, not of each
  int checks;          // whether there is no step if a sum is not finite
  int clips;           // whether norms are limited
  double scale;        // what gradients are multiplied by before their norms are taken
  double limit;        // of a norm
  const double* sums;
  double* control;     // as `Launch` of gpu.h reads it: whether the step is left out, then the scale of each gradient
  double* verdict;     // in memory of the host, or null: again whether it is left out
};

// The sum of number(0), ..., number(count - 1) in the order in which a warp adds up: each lane every 32nd of them, then
// halves of the lanes.
template <typename Number>
inline double SumInLanes(int64_t count, const Number& number) {
  double sums[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) sums[i % kLanes] += number(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

#endif  // DTOPT_SQUARES_H_
