// What turns the text of traced rules into GPU kernels: one launch updates all variables of one rule and dtype.
//
// NVRTC compiles it, and g++ does with an emulated launch, which tests run. A thread reads 16 bytes of each array into
// local arrays, and calls the rule's function on these. Pointers are in the kernel's argument, so that a launch needs
// no memory of its own and no copy before it.

#ifndef DTOPT_GPU_H_
#define DTOPT_GPU_H_

#ifdef __CUDACC_RTC__
#define DTOPT_GPU
#define DTOPT_HAS_LANES  // a thread is a lane of a warp; else the first one does what all lanes do
#define DTOPT_FN __device__ __forceinline__
#define DTOPT_ARGUMENT const __grid_constant__

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uintptr_t;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

namespace std {
DTOPT_FN float sqrt(float x) { return ::sqrtf(x); }
DTOPT_FN double sqrt(double x) { return ::sqrt(x); }
DTOPT_FN float abs(float x) { return ::fabsf(x); }
DTOPT_FN double abs(double x) { return ::fabs(x); }
DTOPT_FN float exp(float x) { return ::expf(x); }
DTOPT_FN double exp(double x) { return ::exp(x); }
DTOPT_FN float log(float x) { return ::logf(x); }
DTOPT_FN double log(double x) { return ::log(x); }
DTOPT_FN float tanh(float x) { return ::tanhf(x); }
DTOPT_FN double tanh(double x) { return ::tanh(x); }
DTOPT_FN float pow(float x, float y) { return ::powf(x, y); }
DTOPT_FN double pow(double x, double y) { return ::pow(x, y); }
}  // namespace std

namespace {
DTOPT_FN float FromBits(uint32_t bits) { return __uint_as_float(bits); }
DTOPT_FN uint32_t Bits(float x) { return __float_as_uint(x); }
}  // namespace

#else  // the emulated launch: a loop over blocks and threads

#include <cmath>
#include <cstdint>
#include <cstring>

#define DTOPT_FN inline
#define DTOPT_ARGUMENT const
#define __global__
#define __launch_bounds__(...)

// For tests: the last thread comes first, as the order of threads must not matter.
extern "C" {
__attribute__((visibility("default"))) bool dtopt_goes_backwards = false;
}

namespace {
struct Index {
  unsigned x;
};
thread_local Index blockIdx, threadIdx;

inline float FromBits(uint32_t bits) {
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

#ifndef DTOPT_HAS_LANES
// Calls a kernel for each thread of each block.
template <typename Call>
void RunThreads(unsigned blocks, unsigned threads, const Call& call) {
  const uint64_t count = static_cast<uint64_t>(blocks) * threads;
  for (uint64_t n = 0; n < count; ++n) {
    const uint64_t at = dtopt_goes_backwards ? count - 1 - n : n;
    blockIdx.x = at / threads;
    threadIdx.x = at % threads;
    call();
  }
}
#endif
}  // namespace

#ifdef DTOPT_HAS_LANES
#include "lanes.h"  // of tests
#endif

#endif

#include "arithmetic.h"

#define DTOPT_UPDATE(name)                                                                               \
  DTOPT_FN void name##_run(T* __restrict variable, const Wide<T>* __restrict gradient, void* const* slots, \
                           const double* scalars, Wide<T> scale, Wide<T> limit, Wide<T> decay,           \
                           Count<kPerThread<T>> size)
#define DTOPT_ELEMENTS(...) _Pragma("unroll") for (int i = 0; i < size.value; ++i)
#define DTOPT_GRADIENT Clip(gradient[i] * scale, limit)
#define DTOPT_VARIABLE Load(variable[i]) * decay
#define DTOPT_EXPORT_UPDATE(name)                                                                                     \
  struct name##_rule {                                                                                                \
    template <typename T>                                                                                             \
    static DTOPT_FN void Run(T* variable, const Wide<T>* gradient, void* const* slots, const double* scalars,         \
                             Wide<T> scale, Wide<T> limit, Wide<T> decay) {                                           \
      name##_run<T>(variable, gradient, slots, scalars, scale, limit, decay, {});                                     \
    }                                                                                                                 \
  };

namespace {

constexpr int kBlock = 16384;  // elements that one block of threads updates

template <typename T>
constexpr int kPerThread = 16 / sizeof(T);  // elements at a time

// How many elements there are, known when a kernel is compiled.
template <int count>
struct Count {
  static constexpr int value = count;
};

// `count` elements, read and written at once.
template <typename T, int count>
struct alignas(sizeof(T) * count < 16 ? sizeof(T) * count : 16) Pack {
  T x[count];
};

enum RoundingType { kNotRounded, kToBFloat16, kToHalf };

// The argument of a kernel, at most 32,764 bytes: `tensors` variables with S slots each, and K scalars of the rule.
// cuda.py has its layout, too.
template <typename T, int S, int K, int tensors>
struct Launch {
  int count;                             // of variables
  int rounding_type, overwrites;         // whether averages overwrite variables
  int are_places;                        // whether `scale` has places in `control`, and not the scales themselves
  const double* control;                 // in device memory, or null: not 0 if the step is left out, then scales
  double limit;                          // that gradients are clipped to
  double average_weight, value_weight;
  double scalars[K > 0 ? K : 1];
  int first[tensors + 1];                // the first block of each variable, and the number of all blocks
  int64_t size[tensors];
  const void* gradient[tensors];
  T* variable[tensors];
  T* average[tensors];                   // null: none
  void* rounding[tensors];               // the variable of which `variable` is the master copy; null: none
  T* slots[S > 0 ? S : 1][tensors];
  double scale[tensors], decay[tensors];
};

// Whether a step is left out.
template <typename L>
DTOPT_FN bool IsSkipped(const L& all) {
  return all.control != nullptr && all.control[0] != 0;
}

// The variable of which a block has a part.
template <typename L>
DTOPT_FN int VariableOf(const L& all, int block) {
  int at = 0;
  for (int end = all.count; end - at > 1;) {
    const int middle = (at + end) / 2;
    if (all.first[middle] <= block) at = middle;
    else end = middle;
  }
  return at;
}

// The arrays of one variable, number `at` of a launch, and the numbers of its step.
template <typename T, typename G, int S, int K, int tensors>
struct Arrays {
  const Launch<T, S, K, tensors>& all;
  const int at;
  const G* gradient;
  T* variable;
  T* slots[S > 0 ? S : 1];
  Wide<T> scale, limit, decay;

  DTOPT_FN Arrays(const Launch<T, S, K, tensors>& all, int at)
      : all(all),
        at(at),
        gradient(static_cast<const G*>(all.gradient[at])),
        variable(all.variable[at]),
        scale(static_cast<Wide<T>>(all.are_places ? all.control[static_cast<int>(all.scale[at])] : all.scale[at])),
        limit(static_cast<Wide<T>>(all.limit)),
        decay(static_cast<Wide<T>>(all.decay[at])) {
#pragma unroll
    for (int k = 0; k < S; ++k) slots[k] = all.slots[k][at];
  }

  // Whether packs may begin at any multiple of their size: a gradient may be a slice of another tensor.
  DTOPT_FN bool IsAligned() const {
    constexpr int P = kPerThread<T>;
    uintptr_t bits = reinterpret_cast<uintptr_t>(variable) | reinterpret_cast<uintptr_t>(all.average[at]);
#pragma unroll
    for (int k = 0; k < S; ++k) bits |= reinterpret_cast<uintptr_t>(slots[k]);
    const uintptr_t of_gradient = reinterpret_cast<uintptr_t>(gradient) % alignof(Pack<G, P>);
    const uintptr_t of_rounding = reinterpret_cast<uintptr_t>(all.rounding[at]) % alignof(Pack<Half, P>);
    return bits % 16 == 0 && of_gradient == 0 && of_rounding == 0;
  }

  template <int count, typename X, int P>
  static DTOPT_FN void Read(const X* from, Pack<X, P>* to) {
    if (count == P) {
      *to = *reinterpret_cast<const Pack<X, P>*>(from);
    } else {
      to->x[0] = *from;
    }
  }

  // Updates `count` elements from position i on. The rule's function has kPerThread of them, whatever `count` is. others:
  // what it is given after the slots.
  template <typename Rule, int count, int more = 0>
  DTOPT_FN void Update(int64_t i, const double* scalars, void* const* others = nullptr) const {
    constexpr int P = kPerThread<T>;
    Pack<T, P> w = {}, s[S > 0 ? S : 1] = {};
    Wide<T> g[P] = {};
    void* local[S + more > 0 ? S + more : 1];
    Read<count>(variable + i, &w);
    Pack<G, P> given = {};
    Read<count>(gradient + i, &given);
#pragma unroll
    for (int j = 0; j < count; ++j) g[j] = Load(given.x[j]);
#pragma unroll
    for (int k = 0; k < S; ++k) {
      Read<count>(slots[k] + i, &s[k]);
      local[k] = s[k].x;
    }
#pragma unroll
    for (int k = 0; k < more; ++k) local[S + k] = others[k];
    Rule::template Run<T>(w.x, g, local, scalars, scale, limit, decay);
#pragma unroll
    for (int k = 0; k < S; ++k) Write<count>(s[k], slots[k] + i);
    if (all.average[at] != nullptr) Average<count>(i, &w);
    Write<count>(w, variable + i);
    if (all.rounding_type == kToBFloat16) Round<count>(w, static_cast<BFloat16*>(all.rounding[at]) + i);
    if (all.rounding_type == kToHalf) Round<count>(w, static_cast<Half*>(all.rounding[at]) + i);
  }

 private:
  template <int count, typename X, int P>
  static DTOPT_FN void Write(const Pack<X, P>& from, X* to) {
    if (count == P) {
      *reinterpret_cast<Pack<X, P>*>(to) = from;
    } else {
      *to = from.x[0];
    }
  }

  template <int count, int P>
  DTOPT_FN void Average(int64_t i, Pack<T, P>* w) const {
    const Wide<T> old_weight = static_cast<Wide<T>>(all.average_weight);
    const Wide<T> new_weight = static_cast<Wide<T>>(all.value_weight);
    T* const average = all.average[at] + i;
    Pack<T, P> a = {};
    Read<count>(average, &a);
#pragma unroll
    for (int j = 0; j < count; ++j) Store(old_weight * Load(a.x[j]) + new_weight * Load(w->x[j]), &a.x[j]);
    Write<count>(a, average);
    if (all.overwrites) *w = a;
  }

  template <int count, typename R, int P>
  static DTOPT_FN void Round(const Pack<T, P>& w, R* to) {
    Pack<R, P> rounded = {};
#pragma unroll
    for (int j = 0; j < count; ++j) Store(static_cast<float>(Load(w.x[j])), &rounded.x[j]);
    Write<count>(rounded, to);
  }
};

// The elements of its block that a thread updates: update(count, i) is called for each `count` of them, from position i on.
template <typename T, int threads, typename L, typename Update>
DTOPT_FN void ForElements(const L& all, int at, bool is_aligned, const Update& update) {
  constexpr int P = kPerThread<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x - all.first[at]) * kBlock, size = all.size[at];
  const int64_t end = begin + kBlock < size ? begin + kBlock : size;
  const int64_t packed = is_aligned ? begin + (end - begin) / P * P : begin;
  const int thread = threadIdx.x;
  for (int64_t i = begin + P * thread; i < packed; i += P * threads) update(Count<P>(), i);
  for (int64_t i = packed + thread; i < end; i += threads) update(Count<1>(), i);
}

// What one thread does.
template <typename Rule, typename T, typename G, int threads, int S, int K, int tensors>
DTOPT_FN void UpdateAll(const Launch<T, S, K, tensors>& all) {
  if (IsSkipped(all)) return;
  const int at = VariableOf(all, blockIdx.x);
  const Arrays<T, G, S, K, tensors> arrays(all, at);
  ForElements<T, threads>(all, at, arrays.IsAligned(), [&](auto count, int64_t i) {
    arrays.template Update<Rule, decltype(count)::value>(i, all.scalars);
  });
}

// The argument of a kernel of rows: one variable, of which only some rows are updated. N: how many sums of powers of its
// gradients the rule needs.
template <typename T, int S, int K, int N>
struct RowLaunch : Launch<T, S, K, 1> {
  int64_t given, columns;
  const int64_t* table;  // of each of `given` gradients its row, or -1: none
  const Wide<T>* powers[N > 0 ? N : 1];
};

// A warp has a row.
template <typename Rule, typename T, typename G, int threads, int S, int K, int N>
DTOPT_FN void UpdateRows(const RowLaunch<T, S, K, N>& all) {
  if (IsSkipped(all)) return;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x, from = thread / 32;
  const int lane = thread % 32;
  const int64_t to = from < all.given ? all.table[from] : -1;
  if (to < 0) return;
  Arrays<T, G, S, K, 1> arrays(all, 0);
  constexpr int P = kPerThread<T>;
  const int64_t begin = to * all.columns;
  const int64_t packed = all.columns % P == 0 && arrays.IsAligned() ? all.columns : 0, shift = (from - to) * all.columns;
  arrays.gradient += shift;
  const auto update = [&](auto count, int64_t i) {
    Pack<Wide<T>, P> powers[N > 0 ? N : 1] = {};
    void* local[N > 0 ? N : 1];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      arrays.template Read<decltype(count)::value>(all.powers[k] + shift + i, &powers[k]);
      local[k] = powers[k].x;
    }
    arrays.template Update<Rule, decltype(count)::value, N>(i, all.scalars, local);
  };
  for (int64_t i = P * lane; i < packed; i += P * 32) update(Count<P>(), begin + i);
  for (int64_t i = packed + lane; i < all.columns; i += 32) update(Count<1>(), begin + i);
}

}  // namespace

#ifdef DTOPT_GPU
#define DTOPT_EMULATED_BY(...)
#else
#define DTOPT_EMULATED_BY(run, kernel, threads, argument, ...)                                        \
  extern "C" __attribute__((visibility("default"))) void kernel##_emulated(const void* launch, unsigned blocks) { \
    run(blocks, threads, [=] { __VA_ARGS__(*static_cast<const argument*>(launch)); });                \
  }
#endif
#define DTOPT_EMULATED_CALL(...) DTOPT_EMULATED_BY(RunThreads, __VA_ARGS__)
#define DTOPT_EMULATED_TOGETHER(...) DTOPT_EMULATED_BY(RunBlocks, __VA_ARGS__)  // threads of a block wait for each other
#define DTOPT_EMULATED(kernel, threads, argument) DTOPT_EMULATED_CALL(kernel, threads, argument, kernel)

// The kernel of a rule for variables of type T with gradients of type G.
#define DTOPT_KERNEL(kernel, rule, T, G, threads, at_once, S, K, tensors)                             \
  using kernel##_launch = Launch<T, S, K, tensors>;                                                   \
  extern "C" __global__ void __launch_bounds__(threads, at_once) kernel(DTOPT_ARGUMENT kernel##_launch all) { \
    UpdateAll<rule##_rule, T, G, threads>(all);                                                       \
  }                                                                                                   \
  DTOPT_EMULATED_CALL(kernel, threads, kernel##_launch, UpdateAll<rule##_rule, T, G, threads>)

// The same for some rows of one variable, of which the gradients are summed up.
#define DTOPT_ROW_KERNEL(kernel, rule, T, threads, at_once, S, K, N)                                  \
  using kernel##_launch = RowLaunch<T, S, K, N>;                                                         \
  extern "C" __global__ void __launch_bounds__(threads, at_once) kernel(DTOPT_ARGUMENT kernel##_launch all) { \
    UpdateRows<rule##_rule, T, Wide<T>, threads>(all);                                                \
  }                                                                                                   \
  DTOPT_EMULATED_CALL(kernel, threads, kernel##_launch, UpdateRows<rule##_rule, T, Wide<T>, threads>)

#endif  // DTOPT_GPU_H_
