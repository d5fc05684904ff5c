// The kernels that add up the squares of tensors, in float64, in the order in which the CPU adds them up: 32 sums of every
// 32nd element of a run, halved until one is left, then the sums of all runs one after the other.

#ifndef DTOPT_SQUARES_GPU_H_
#define DTOPT_SQUARES_GPU_H_

#include "gpu.h"
#include "squares.h"

namespace {

constexpr int kLanes = 32, kSquaresThreads = 256;

// The sum of the squares of a run, for lane 0.
template <typename T>
DTOPT_FN double SquaresOfRun(const T* values, int size, int lane) {
#ifdef DTOPT_GPU
  double sum = 0;
  for (int i = lane; i < size; i += kLanes) {
    const double x = Load(values[i]);
    sum += x * x;
  }
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) sum += __shfl_down_sync(0xffffffffu, sum, width);
  return sum;
#else  // one thread does what the lanes of its warp do
  double sums[kLanes] = {};
  for (int i = 0; lane == 0 && i < size; ++i) {
    const double x = Load(values[i]);
    sums[i % kLanes] += x * x;
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
#endif
}

template <typename T>
DTOPT_FN void AddUpRuns(const Squares& all) {
  const int thread = blockIdx.x * kSquaresThreads + threadIdx.x, run = thread / kLanes, lane = thread % kLanes;
  if (run >= all.first[all.count]) return;
  int at = 0;
  for (int end = all.count; end - at > 1;) {
    const int middle = (at + end) / 2;
    if (all.first[middle] <= run) at = middle;
    else end = middle;
  }
  const int64_t begin = static_cast<int64_t>(run - all.first[at]) * kSquaredAtOnce, rest = all.size[at] - begin;
  const int size = rest < kSquaredAtOnce ? static_cast<int>(rest) : kSquaredAtOnce;
  const double sum = SquaresOfRun(static_cast<const T*>(all.values[at]) + begin, size, lane);
  if (lane == 0) all.runs[run] = sum;
}

}  // namespace

#define DTOPT_SQUARES(kernel, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(kSquaresThreads) kernel(DTOPT_ARGUMENT Squares all) { AddUpRuns<T>(all); } \
  DTOPT_EMULATED(kernel, kSquaresThreads, Squares)

DTOPT_SQUARES(dtopt_squares_float32, float)
DTOPT_SQUARES(dtopt_squares_float64, double)
DTOPT_SQUARES(dtopt_squares_bfloat16, BFloat16)
DTOPT_SQUARES(dtopt_squares_float16, Half)

// Of each tensor, one thread the sums of its runs.
extern "C" __global__ void __launch_bounds__(kSquaresThreads) dtopt_squares_join(DTOPT_ARGUMENT Squares all) {
  const int at = blockIdx.x * kSquaresThreads + threadIdx.x;
  if (at >= all.count) return;
  double sum = 0;
  for (int run = all.first[at]; run < all.first[at + 1]; ++run) sum += all.runs[run];
  all.sums[at] = sum;
}
DTOPT_EMULATED(dtopt_squares_join, kSquaresThreads, Squares)

#endif  // DTOPT_SQUARES_GPU_H_
