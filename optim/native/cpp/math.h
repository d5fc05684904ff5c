// Storage types, the arithmetic of traced rules, and the loops around them. Nothing here needs TensorFlow.
//
// float32 and float64 are computed in themselves, bfloat16 and float16 in float32; scalars arrive in float64 and are
// rounded once. Every operation is IEEE's, none is contracted (see the flags in build.py), so a result depends neither
// on where a tensor is cut nor on the processor. NaN and infinity spread as in TensorFlow's ops.

#ifndef DTOPT_MATH_H_
#define DTOPT_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "abi.h"

namespace {

enum class BFloat16 : uint16_t {};  // the upper half of a float32

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

inline float Load(float x) { return x; }
inline double Load(double x) { return x; }
inline float Load(BFloat16 x) { return FromBits(static_cast<uint32_t>(x) << 16); }

inline void Store(float x, float* to) { *to = x; }
inline void Store(double x, double* to) { *to = x; }
inline void Store(float x, BFloat16* to) {
  const uint32_t wide = Bits(x);
  const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const uint32_t quiet = (wide >> 16) | 0x40u;                            // a NaN stays one
  *to = static_cast<BFloat16>(x != x ? quiet : rounded);
}

#ifdef __FLT16_MANT_DIG__
using Half = _Float16;
inline float Load(Half x) { return static_cast<float>(x); }
inline void Store(float x, Half* to) { *to = static_cast<Half>(x); }
#else
enum class Half : uint16_t {};  // for compilers without the type

inline float Load(Half x) {
  const uint32_t bits = static_cast<uint32_t>(x), sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return FromBits(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00u ? 0x400000u : 0));
  if (rest < 0x400u) {  // a multiple of 2^-24
    const float value = static_cast<float>(rest) * 0x1p-24f;
    return FromBits(Bits(value) | sign);
  }
  return FromBits(sign | ((rest << 13) + (112u << 23)));
}

inline void Store(float x, Half* to) {
  const uint32_t bits = Bits(x), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  uint32_t result;
  if (rest > 0x7f800000u) result = 0x7e00u | (rest >> 13 & 0x3ffu);
  else if (rest >= 0x477ff000u) result = 0x7c00u;
  else if (rest < 0x38800000u) result = Bits(FromBits(rest) + 0.5f) - 0x3f000000u;  // rounds to a multiple of 2^-24
  else result = (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
  *to = static_cast<Half>(sign | result);
}
#endif

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Nested choices, not `||`: the compiler turns them into vector code.

template <typename C>
inline C Max(C a, C b) {  // NaN if one of them is
  return a >= b ? a : a != a ? a : b;
}

template <typename C>
inline C Min(C a, C b) {
  return a <= b ? a : a != a ? a : b;
}

template <typename C>
inline C Clip(C x, C limit) {  // NaN if x is; in these forms each choice is one instruction
  const C low = limit < x ? limit : x;
  return -limit > low ? -limit : low;
}

template <typename C>
inline C Square(C x) {
  return x * x;
}

template <typename C>
inline C Sign(C x) {  // that of 0 is 0 and that of NaN is NaN
  return x > 0 ? C(1) : x < 0 ? C(-1) : x;
}

template <typename C>
inline C Power(C x, C exponent) {  // a square root has one rounding only
  return exponent == C(0.5) ? std::sqrt(x) : std::pow(x, exponent);
}

// Several arrays are more than Intel's processors foresee by themselves: there elements are visited in strides, and what
// lies kAhead elements ahead is asked for at each. Without it a step takes a fifth longer there, and with it a tenth
// longer on AMD's.
constexpr int64_t kAsked = 64, kAhead = 512, kCacheLine = 64;  // the last in bytes
#ifdef __x86_64__
const bool kAsks = __builtin_cpu_is("intel");
#else
constexpr bool kAsks = false;
#endif
const int64_t kStride = kAsks ? kAsked : INT64_MAX / 2;

template <typename T>
inline void AskFor(const T* elements) {
  for (int64_t byte = 0; byte < kAsked * static_cast<int64_t>(sizeof(T)); byte += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(elements) + byte, 1);
  }
}

// Where the stride ends.
template <typename... T>
inline int64_t Stride(int64_t start, int64_t size, const T*... arrays) {
  if (kAsks && start + kAhead < size) (AskFor(arrays + start + kAhead), ...);
  return start + kStride < size ? start + kStride : size;
}

constexpr int64_t kLanes = 32;

template <typename C>
double Sum(const C* values, int64_t size) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += values[i + k];
  }
  for (; i < size; ++i) sums[i % kLanes] += values[i];
  int64_t width = kLanes / 2;
  while (width >= size && width > 0) width /= 2;  // of a short row the other lanes are zero
  for (; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

}  // namespace

// DTOPT_LEVEL ends the names of all functions: one file is compiled for several instruction sets.
#define DTOPT_JOIN(a, b, c) dtopt_##a##_##b##_##c
#define DTOPT_NAME(a, b, c) DTOPT_JOIN(a, b, c)
#define DTOPT_VISIBLE extern "C" __attribute__((visibility("default"), used))

#define DTOPT_UPDATE(name)                                                                                      \
  void name##_run(T* __restrict variable, const Wide<T>* __restrict gradient, void* const* slots,               \
                  const double* scalars, Wide<T> scale, Wide<T> limit, Wide<T> decay, int64_t size)
#define DTOPT_SUMS(name)                                                                                        \
  void name##_run(const T* __restrict variable, const Wide<T>* __restrict gradient, void* const* slots,    \
                       const double* scalars, Wide<T> scale, Wide<T> limit, Wide<T> decay, int64_t size, double* sums)
#define DTOPT_STORES(name) void name##_run(void* const* slots, const double* scalars, int64_t size)
#define DTOPT_ELEMENTS(...)                                        \
  for (int64_t start = 0; start < size; start += kStride)          \
    for (int64_t i = start, end = Stride(start, size, __VA_ARGS__); i < end; ++i)
#define DTOPT_GRADIENT Clip(gradient[i] * scale, limit)
#define DTOPT_VARIABLE Load(variable[i]) * decay  // 1 changes nothing, nor does a limit of infinity

#define DTOPT_EXPORT_ALL(EXPORT_AS, name) \
  EXPORT_AS(name, float, float32)         \
  EXPORT_AS(name, double, float64)        \
  EXPORT_AS(name, BFloat16, bfloat16)     \
  EXPORT_AS(name, Half, float16)

#define DTOPT_EXPORT_UPDATE_AS(name, T, dtype)                                                                  \
  DTOPT_VISIBLE void DTOPT_NAME(name, dtype, DTOPT_LEVEL)(void* variable, const void* gradient,                 \
                                                          void* const* slots, const double* scalars,            \
                                                          double scale, double limit, double decay,             \
                                                          int64_t size) {                                       \
    name##_run<T>(static_cast<T*>(variable), static_cast<const Wide<T>*>(gradient), slots, scalars,             \
                  static_cast<Wide<T>>(scale), static_cast<Wide<T>>(limit), static_cast<Wide<T>>(decay), size); \
  }
#define DTOPT_EXPORT_UPDATE(name) DTOPT_EXPORT_ALL(DTOPT_EXPORT_UPDATE_AS, name)

#define DTOPT_EXPORT_SUMS_AS(name, T, dtype)                                                                   \
  DTOPT_VISIBLE void DTOPT_NAME(name, dtype, DTOPT_LEVEL)(const void* variable, const void* gradient,          \
                                                          void* const* slots, const double* scalars,           \
                                                          double scale, double limit, double decay,            \
                                                          int64_t size, double* sums) {                        \
    name##_run<T>(static_cast<const T*>(variable), static_cast<const Wide<T>*>(gradient), slots, scalars,      \
                  static_cast<Wide<T>>(scale), static_cast<Wide<T>>(limit), static_cast<Wide<T>>(decay), size, \
                  sums);                                                                                       \
  }
#define DTOPT_EXPORT_SUMS(name) DTOPT_EXPORT_ALL(DTOPT_EXPORT_SUMS_AS, name)

#define DTOPT_EXPORT_STORES_AS(name, T, dtype)                                                                   \
  DTOPT_VISIBLE void DTOPT_NAME(name, dtype, DTOPT_LEVEL)(void* const* slots, const double* scalars, int64_t size) { \
    name##_run<T>(slots, scalars, size);                                                                         \
  }
#define DTOPT_EXPORT_STORES(name) DTOPT_EXPORT_ALL(DTOPT_EXPORT_STORES_AS, name)

#endif  // DTOPT_MATH_H_
