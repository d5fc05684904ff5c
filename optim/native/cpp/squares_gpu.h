// The kernels that add up the squares of tensors, in float64, in the order in which the CPU adds them up: those of a run in
// the lanes of a warp, then the sums of all runs of a tensor in the same way. And the one that makes scales of these sums.

#ifndef DTOPT_SQUARES_GPU_H_
#define DTOPT_SQUARES_GPU_H_

#include "gpu.h"
#include "squares.h"

namespace {

constexpr int kSquaresThreads = 256;

// `SumInLanes` by the lanes of a warp, for lane 0.
template <typename Number>
DTOPT_FN double SumOfWarp(int count, int lane, const Number& number) {
#ifdef DTOPT_HAS_LANES
  double sum = 0;
#pragma unroll 4
  for (int i = lane; i < count; i += kLanes) sum += number(i);
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) sum += __shfl_down_sync(0xffffffffu, sum, width);
  return sum;
#else
  return lane == 0 ? SumInLanes(count, number) : 0.0;
#endif
}

template <typename T>
struct SquareOf {
  const T* values;
  DTOPT_FN double operator()(int i) const {
    const double x = Load(values[i]);
    return x * x;
  }
};

struct RunOf {
  const double* runs;
  DTOPT_FN double operator()(int i) const { return runs[i]; }
};

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
  const double sum = SumOfWarp(size, lane, SquareOf<T>{static_cast<const T*>(all.values[at]) + begin});
  if (lane == 0) all.runs[run] = sum;
}

// What a gradient is multiplied by; as `by_norms` of options/clipping.py has it, a norm that is not finite gives NaN.
DTOPT_FN double ScaleFor(const Scaling& all, double square) {
  const double norm = std::sqrt(square);
  const double most = norm <= all.limit ? all.limit : norm;
  return all.scale * (all.limit / most + (norm - norm));
}

}  // namespace

#define DTOPT_SQUARES(kernel, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(kSquaresThreads) kernel(DTOPT_ARGUMENT Squares all) { AddUpRuns<T>(all); } \
  DTOPT_EMULATED(kernel, kSquaresThreads, Squares)

DTOPT_SQUARES(dtopt_squares_float32, float)
DTOPT_SQUARES(dtopt_squares_float64, double)
DTOPT_SQUARES(dtopt_squares_bfloat16, BFloat16)
DTOPT_SQUARES(dtopt_squares_float16, Half)

// Of each tensor, one warp the sums of its runs.
extern "C" __global__ void __launch_bounds__(kSquaresThreads) dtopt_squares_join(DTOPT_ARGUMENT Squares all) {
  const int thread = blockIdx.x * kSquaresThreads + threadIdx.x, at = thread / kLanes, lane = thread % kLanes;
  if (at >= all.count) return;
  const int first = all.first[at];
  const double sum = SumOfWarp(all.first[at + 1] - first, lane, RunOf{all.runs + first});
  if (lane == 0) all.sums[all.place[at]] = sum;
}
DTOPT_EMULATED(dtopt_squares_join, kSquaresThreads, Squares)

// One block. Each of its threads adds up all sums, so that none has to wait for another.
extern "C" __global__ void __launch_bounds__(kSquaresThreads) dtopt_squares_scale(DTOPT_ARGUMENT Scaling all) {
  const int thread = threadIdx.x;
  double total = 0, odd = 0;
#pragma unroll 8
  for (int i = 0; i < all.count; ++i) {
    const double sum = all.sums[i];
    total += sum * all.scale * all.scale;
    odd += sum - sum;  // NaN if it is not finite
  }
  const double skips = all.checks && odd != 0 ? 1 : 0;
  if (thread == 0) all.control[0] = skips;
  if (thread == 0 && all.verdict != nullptr) *all.verdict = skips;
  for (int i = thread; i < all.count; i += kSquaresThreads) {
    const double square = all.is_joint ? total : all.sums[i] * all.scale * all.scale;
    all.control[1 + i] = all.clips ? ScaleFor(all, square) : all.scale;
  }
}
DTOPT_EMULATED(dtopt_squares_scale, kSquaresThreads, Scaling)

#endif  // DTOPT_SQUARES_GPU_H_
